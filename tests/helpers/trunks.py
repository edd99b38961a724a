"""A trunk on a fake gateway, and the proof that it has lost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from helpers.fake_gateway import FakeGateway, PipeEnd, Sink
from pgtrunk.allocation import Rules
from pgtrunk.refusal import Limit
from pgtrunk.trunk import Opened, Trunk


def limit(trunk: Trunk, seconds: float = 30.0) -> Limit:
    return Limit("acquire_timeout", seconds, trunk.loop.time() + seconds)


async def open_session(trunk: Trunk, seconds: float = 30.0) -> Opened[Sink]:
    return await trunk.open_stream(Sink, limit(trunk, seconds))


async def turns(count: int = 5) -> None:
    """Lets the loop turn a few times: enough for tasks to reach their first wait, too few for a timer."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds that nothing announces; a generous time at most."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.0005)


async def until_idle(trunk: Trunk) -> None:
    """Waits until no stream is in use, nobody waits and nothing is dialled."""
    await until(lambda: not _busy(trunk))


def _busy(trunk: Trunk) -> int:
    stats = trunk.stats()
    return stats.streams_in_use + stats.cancels_in_use + stats.waiting + stats.connections_connecting


async def assert_nothing_lost(trunk: Trunk, gateway: FakeGateway) -> None:
    """Every slot of the trunk can still be used, and gives way to the next."""
    await until_idle(trunk)
    assert gateway.open_streams == 0
    most = trunk.stats().streams_max
    sessions = [await open_session(trunk) for _ in range(most)]
    assert trunk.stats().streams_in_use == most
    for session in sessions:
        session.transport.close()
    await until_idle(trunk)
    assert gateway.open_streams == 0


@asynccontextmanager
async def fake_trunk(
    gateway: FakeGateway | None = None, *, connections: int = 1, streams: int = 2, **rules: Any
) -> AsyncIterator[tuple[Trunk, FakeGateway]]:
    gateway = gateway or FakeGateway()
    trunk = Trunk(
        "gw.test:6432",
        Rules(connections=connections, streams_per_connection=streams, **rules),
        gateway.connect,
    )
    try:
        yield trunk, gateway
    finally:
        await trunk.close()


__all__ = ["PipeEnd", "assert_nothing_lost", "fake_trunk", "limit", "open_session", "turns", "until", "until_idle"]
