"""A timer that looks, when it fires, how long there is still to wait."""

from __future__ import annotations

import asyncio

from helpers.waiting import until
from pgtrunk_gateway.relay.lazy_timer import LazyTimer


class Clock:
    """What is waited for."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.due: float | None = None
        self.looks = 0
        self.late = 0
        self.timer = LazyTimer(self.loop, self._look, self._late)

    def _look(self) -> float | None:
        self.looks += 1
        return self.due

    def _late(self) -> None:
        self.late += 1


async def test_it_fires_once_when_it_is_due() -> None:
    clock = Clock()
    clock.due = clock.loop.time() + 0.01
    clock.timer.start()
    await until(lambda: clock.late)
    await asyncio.sleep(0.03)
    assert clock.late == 1


async def test_what_begins_anew_is_not_touched() -> None:
    clock = Clock()
    clock.due = clock.loop.time() + 0.05
    for _ in range(100):
        clock.timer.start()
    assert clock.looks == 1
    clock.due += 0.1
    later = clock.due
    await until(lambda: clock.late)
    assert clock.loop.time() >= later
    assert clock.looks == 3


async def test_it_does_not_wait_for_nothing() -> None:
    clock = Clock()
    clock.timer.start()
    clock.due = clock.loop.time() + 0.01
    clock.timer.start()
    clock.due = None
    await until(lambda: clock.looks == 3)
    await asyncio.sleep(0.02)
    assert clock.late == 0
    assert clock.looks == 3


async def test_it_stops() -> None:
    clock = Clock()
    clock.due = clock.loop.time() + 0.01
    clock.timer.start()
    clock.timer.stop()
    clock.timer.stop()
    await asyncio.sleep(0.03)
    assert clock.late == 0
