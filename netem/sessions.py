"""How the client's sessions are opened, for each way to Postgres. All of them are asyncpg connections in the end."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

import pgtrunk
from netem.errors import LabError
from netem.folder import make_folder
from netem.plan import AT_ONCE

if TYPE_CHECKING:
    from netem.plan import Run

__all__ = ["Connect", "Way", "opened", "ways"]

Connect = Callable[[], Awaitable[asyncpg.Connection]]

_TIMEOUT = 60.0
_LOOK = 0.005
"""Seconds between two looks whether a sidecar listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What opens one session, and what makes a pool of them; and the trunk, where the client has one itself."""

    connect: Connect
    create_pool: Callable[..., asyncpg.Pool]
    trunk: pgtrunk.StreamManager | None = None


@asynccontextmanager
async def ways(run: Run, tickets: str | None = None) -> AsyncIterator[Way]:
    """A way that nobody has gone yet: without a trunk, or a session, so far. ``tickets``: the file in which a trunk
    finds what one before it was given to come back with, and leaves what it is given."""
    login: dict[str, Any] = {
        "user": run.user,
        "password": run.password,
        "database": run.database,
        "timeout": _TIMEOUT,
        # As many statements as the workload has, and none of them parsed for the sake of types that are known.
        "statement_cache_size": 100,
    }
    if run.arm.kind == "quic":
        async with _trunk(run, tickets) as trunk:
            yield Way(
                connect=lambda: trunk.connect(**login), create_pool=partial(trunk.create_pool, **login), trunk=trunk
            )
    elif run.arm.starts_sidecar:
        async with _sidecar(run, tickets) as folder:
            yield _over_sockets(login | {"host": folder, "ssl": False})
    else:
        tls = run.arm.kind in ("tls", "pgbouncer-tls")
        place = {"host": run.host, "port": run.port, "ssl": _context(run) if tls else False}
        yield _over_sockets(login | place | ({"direct_tls": True} if run.arm.tls_at_once else {}))


def _over_sockets(arguments: dict[str, Any]) -> Way:
    return Way(connect=lambda: asyncpg.connect(**arguments), create_pool=partial(asyncpg.create_pool, **arguments))


def _context(run: Run) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=run.ca_file)
    # Who begins with TLS at once has to name the protocol: the port might be anybody's.
    context.set_alpn_protocols(["postgresql"])
    if run.arm.login == "cert":
        context.load_cert_chain(run.cert_file, run.key_file)
    return context


def _trunk(run: Run, tickets: str | None) -> pgtrunk.StreamManager:
    options: dict[str, Any] = {} if tickets is None else {"tickets": tickets}
    if run.arm.login == "cert":
        options |= {"cert_file": run.cert_file, "key_file": run.key_file}
    if run.arm.redundancy:
        options["redundancy"] = run.arm.redundancy
    return pgtrunk.StreamManager(
        f"{run.host}:{run.port}",
        ca_file=run.ca_file,
        connections=run.arm.connections,
        streams_per_connection=run.arm.streams,
        acquire_timeout=_TIMEOUT,
        **options,
    )


@asynccontextmanager
async def _sidecar(run: Run, tickets: str | None) -> AsyncIterator[str]:
    """A sidecar of our own; gives the folder of its socket. Raises :class:`LabError` where it does not start."""
    size = ["--connections", str(run.arm.connections), "--streams-per-connection", str(run.arm.streams)]
    trust = ["--ca", run.ca_file, "--acquire-timeout", str(_TIMEOUT)]
    if run.arm.login == "cert":
        trust += ["--cert", run.cert_file, "--key", run.key_file]
    if tickets is not None:
        trust += ["--tickets", tickets]
    guarded = await asyncio.to_thread(make_folder)
    try:
        async with _running(run, trust + size, str(guarded.path / "sidecar")) as folder:
            yield folder
    finally:
        await asyncio.to_thread(guarded.remove)


@asynccontextmanager
async def _running(run: Run, options: list[str], folder: str) -> AsyncIterator[str]:
    # It makes the folder, for itself alone, and dies with us, whatever becomes of us.
    program = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "pgtrunk.cli"]
    command = [*program, "sidecar", f"{run.host}:{run.port}", *options, "--quiet", "--listen", folder]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(_TIMEOUT):
            while not os.path.exists(f"{folder}/.s.PGSQL.5432"):  # noqa: ASYNC240 - in memory
                if process.returncode is not None:
                    raise LabError(f"the sidecar has ended with exit code {process.returncode}")
                await asyncio.sleep(_LOOK)
        yield folder
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def opened(connect: Connect, count: int) -> AsyncIterator[list[asyncpg.Connection]]:
    """``count`` sessions, opened some at a time, and closed at the end."""
    connections: list[asyncpg.Connection] = []
    turns = asyncio.Semaphore(AT_ONCE)

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
