"""One end of a bus whose other end does not do its part."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from pgtrunk_gateway.errors import WorkerLost
from pgtrunk_gateway.fleet import bus as buses
from pgtrunk_gateway.fleet.bus import Bus

pytestmark = pytest.mark.both_loops


@contextlib.asynccontextmanager
async def stuck() -> AsyncIterator[Bus]:
    """A bus to a worker that reads nothing."""
    ours, theirs = socket.socketpair()
    bus = Bus("worker 3")
    await asyncio.get_running_loop().create_unix_connection(lambda: bus, sock=ours)
    try:
        yield bus
    finally:
        theirs.close()
        bus.close()
        await asyncio.wait_for(bus.wait_closed(), 20)


async def test_who_reads_nothing_is_given_up_before_it_costs_all_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(buses, "_MOST_UNREAD", 1 << 20)
    async with stuck() as bus:
        asked = asyncio.ensure_future(bus.ask("anything", timeout=30))
        await asyncio.sleep(0)
        # What the kernel holds, and as much as may wait here, and more.
        for _ in range(100):
            bus.tell("something", {"long": "x" * 100_000})
        with pytest.raises(WorkerLost, match="worker 3 has gone"):
            await asked
        await asyncio.wait_for(bus.wait_closed(), 20)
        assert not bus.is_open
    assert caplog.text.count("worker 3 reads nothing") == 1


async def test_an_end_at_once_waits_for_nobody_who_reads_nothing() -> None:
    async with stuck() as bus:
        for _ in range(20):
            bus.tell("something", {"long": "x" * 100_000})
        bus.abort()
        await asyncio.wait_for(bus.wait_closed(), 20)
