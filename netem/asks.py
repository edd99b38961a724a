"""What a client asks with: sessions of its own that stay, a pool of them, or a new one for each request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from netem.sessions import opened
from netem.workloads import Ask, connecting, pooled, prepare

if TYPE_CHECKING:
    import asyncpg

    from netem.plan import Run
    from netem.sessions import Way

__all__ = ["Asks", "asks"]


@dataclass(frozen=True, slots=True)
class Asks:
    """``ready``: as many as may be under way at a time. ``pool``: if they have one in common, which makes them wait."""

    ready: list[Ask]
    pool: asyncpg.Pool | None = None
    ports: list[int] = field(default_factory=list)
    """Of the sockets of each, where they stay: 0 for one that has no port."""


@asynccontextmanager
async def asks(run: Run, way: Way) -> AsyncIterator[Asks]:
    """Opens what the arm has open ahead of its load, and closes it."""
    arm = run.arm
    if arm.per_request:
        yield Asks([connecting(way.connect, run.workload)] * arm.sessions)
    elif arm.initial:
        options: dict[str, Any] = {} if arm.reset else {"reset": _keep}
        async with way.create_pool(min_size=arm.initial, max_size=arm.sessions, **options) as pool:
            yield Asks([pooled(pool, run.workload)] * (run.load.users or arm.sessions), pool=pool)
    else:
        async with opened(way.connect, arm.sessions) as connections:
            ready = await asyncio.gather(*(_first(connection, run) for connection in connections))
            yield Asks(ready, ports=[_port(connection) for connection in connections])


def _port(connection: asyncpg.Connection) -> int:
    """Of the socket that the session's data leave by: over a trunk, that of its QUIC connection."""
    name = connection._transport.get_extra_info("sockname")
    return name[1] if isinstance(name, tuple) else 0


async def _keep(_connection: asyncpg.Connection) -> None:
    """The reset of a pool that does without."""


async def _first(connection: asyncpg.Connection, run: Run) -> Ask:
    """What the session asks, prepared and asked once.

    asyncpg prepares with Flush, without Sync: PgBouncer's server stays with this session until it asks something. Were
    all sessions to prepare first, those without a server would wait for ever.
    """
    ask = await prepare(connection, run.workload)
    await ask(0)
    return ask
