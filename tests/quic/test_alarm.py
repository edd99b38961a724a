"""The timer that would rather fire too early than be moved."""

from __future__ import annotations

import asyncio
from typing import cast

from helpers.quic_pair import VirtualLoop
from pgtrunk.quic.alarm import Alarm


def test_it_fires_no_later_than_last_set_and_is_seldom_moved() -> None:
    loop = VirtualLoop()
    fired: list[float] = []
    alarm = Alarm(cast("asyncio.AbstractEventLoop", loop), lambda: fired.append(round(loop.time() - 1000, 3)))
    alarm.set(1001.0)
    for later in range(100):
        alarm.set(1001.0 + later)
    assert loop.timers == 1
    alarm.set(1000.5)
    while loop.tick(1010.0):
        pass
    assert fired == [0.5]
    alarm.set(1010.5)
    alarm.cancel()
    alarm.cancel()
    assert loop.timers == 0
    alarm.set(1011.0)
    while loop.tick(1020.0):
        pass
    assert fired == [0.5, 11.0]
