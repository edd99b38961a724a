"""Open loops: what is asked when is fixed beforehand, and waits for a free session, however long that takes."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from netem import schedule
from netem.loop import Loop

if TYPE_CHECKING:
    from netem.plan import Run
    from netem.workloads import Ask

__all__ = ["OpenLoop"]

_TICK = 0.001


class OpenLoop(Loop):
    """A session asks whatever has waited longest. Latency includes that wait."""

    def __init__(self, run: Run, asks: list[Ask]) -> None:
        super().__init__(run, asks)
        self._queue: deque[float] = deque()
        self._idle: deque[asyncio.Future[float]] = deque()
        self._next = self._idle.popleft if run.load.turns else self._idle.pop
        self._over = False
        # Ahead of the start: at its top, a ramp has no time for square roots.
        self._moments = array("d", map(partial(schedule.moment, run.load), range(schedule.total(run.load))))

    @property
    def queued(self) -> int:
        return len(self._queue)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._ask_queued(*each)) for each in enumerate(self._asks)]

    def _give_up(self) -> None:
        now = self.now()
        self.waited.extend(int((now - intended) * 1e6) for intended in self._queue)
        self._queue.clear()

    # -- hot

    async def _schedule(self) -> None:
        moments = self._moments
        number, last = 0, len(moments)
        while number < last:
            now = self.now()
            while number < last and moments[number] <= now:
                self._put(moments[number])
                number += 1
            await asyncio.sleep(_TICK)
        self._over = True
        for idle in self._idle:
            idle.cancel()
        self._idle.clear()

    def _put(self, intended: float) -> None:
        self.asked += 1
        while self._idle:
            idle = self._next()
            if not idle.done():
                idle.set_result(intended)
                return
        self._queue.append(intended)

    async def _ask_queued(self, number: int, ask: Ask) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._queue:
                intended = self._queue.popleft()
            elif self._over:
                return
            else:
                idle = loop.create_future()
                self._idle.append(idle)
                try:
                    intended = await idle
                except asyncio.CancelledError:
                    if self._over:
                        return
                    raise
            await self._ask(number, ask, intended)
