"""A start that a signal may cut short."""

from __future__ import annotations

import asyncio
import signal

import pytest

from pgtrunk_gateway.signals import unless_stopped


async def nothing() -> None:
    """Starts at once."""
    await asyncio.sleep(0)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_it_starts() -> None:
    signals: asyncio.Queue[int] = asyncio.Queue()
    assert await unless_stopped(nothing(), signals)
    assert signals.empty()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_a_signal_that_ends_it_is_quicker(signum: int) -> None:
    signals: asyncio.Queue[int] = asyncio.Queue()
    signals.put_nowait(signum)
    assert not await asyncio.wait_for(unless_stopped(for_ever(), signals), 30)


async def test_other_signals_are_for_later() -> None:
    signals: asyncio.Queue[int] = asyncio.Queue()
    begun = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, begun.set)
    for signum in (signal.SIGHUP, signal.SIGUSR1):
        signals.put_nowait(signum)
    assert await unless_stopped(_until(begun), signals)
    assert [signals.get_nowait() for _ in range(2)] == [signal.SIGHUP, signal.SIGUSR1]


async def test_what_goes_wrong_is_the_callers() -> None:
    async def broken() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await unless_stopped(broken(), asyncio.Queue())


async def _until(event: asyncio.Event) -> None:
    await event.wait()
