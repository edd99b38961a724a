"""What a client asks with: sessions of its own that stay, a pool of them, or a new one for each request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from netem.sessions import opened
from netem.workloads import Ask, connecting, pooled, prepare

if TYPE_CHECKING:
    import asyncpg

    from netem.plan import Run
    from netem.sessions import Way

__all__ = ["asks"]


@asynccontextmanager
async def asks(run: Run, way: Way) -> AsyncIterator[tuple[list[Ask], asyncpg.Pool | None]]:
    """As many as may be under way at a time; and the pool, if they have one in common, which makes them wait itself."""
    arm = run.arm
    if arm.per_request:
        yield [connecting(way.connect, run.workload)] * arm.sessions, None
    elif arm.initial:
        options: dict[str, Any] = {} if arm.reset else {"reset": _keep}
        async with way.create_pool(min_size=arm.initial, max_size=arm.sessions, **options) as pool:
            yield [pooled(pool, run.workload)] * (run.load.users or arm.sessions), pool
    else:
        async with opened(way.connect, arm.sessions) as connections:
            yield list(await asyncio.gather(*(_first(connection, run) for connection in connections))), None


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
