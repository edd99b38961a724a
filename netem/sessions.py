"""How the client's sessions are opened, for each way to Postgres. All of them are asyncpg connections in the end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

import pgtrunk

if TYPE_CHECKING:
    from netem.plan import Run

__all__ = ["Connect", "opened", "ways"]

Connect = Callable[[], Awaitable[asyncpg.Connection]]

_AT_ONCE = 50
"""Sessions that are opened at a time; more would make a storm, which is an experiment of its own."""
_TIMEOUT = 60.0


@asynccontextmanager
async def ways(run: Run) -> AsyncIterator[tuple[Connect, pgtrunk.StreamManager | None]]:
    """Gives what opens one session; and the trunk, where there is one."""
    login: dict[str, Any] = {
        "user": run.user,
        "password": run.password,
        "database": run.database,
        "timeout": _TIMEOUT,
        # As many statements as the workload has, and none of them parsed for the sake of types that are known.
        "statement_cache_size": 100,
    }
    if run.arm.kind == "quic":
        trunk = pgtrunk.StreamManager(
            f"{run.host}:{run.port}",
            ca_file=run.ca_file,
            connections=run.arm.connections,
            streams_per_connection=run.arm.streams,
            acquire_timeout=_TIMEOUT,
        )
        async with trunk:
            yield lambda: trunk.connect(**login), trunk
        return
    encryption: ssl.SSLContext | bool = False
    if run.arm.kind in ("tls", "pgbouncer-tls"):
        encryption = ssl.create_default_context(cafile=run.ca_file)
    yield lambda: asyncpg.connect(host=run.host, port=run.port, ssl=encryption, **login), None


@asynccontextmanager
async def opened(connect: Connect, count: int) -> AsyncIterator[list[asyncpg.Connection]]:
    """``count`` sessions, opened some at a time, and closed at the end."""
    connections: list[asyncpg.Connection] = []
    turns = asyncio.Semaphore(_AT_ONCE)

    async def open_one() -> None:
        async with turns:
            connections.append(await connect())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(open_one())
        yield connections
    finally:
        for connection in connections:
            connection.terminate()
