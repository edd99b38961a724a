"""Closed loops: users who think, ask, and wait for their answer. As many ask at a time as there are sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from netem.loop import Loop

if TYPE_CHECKING:
    from netem.plan import Run
    from netem.workloads import Ask

__all__ = ["ClosedLoop"]


class ClosedLoop(Loop):
    """Latency counts from when a user wants to ask, so that it includes the wait for a free session."""

    def __init__(self, run: Run, asks: list[Ask]) -> None:
        super().__init__(run, asks)
        self._free: asyncio.LifoQueue[tuple[int, Ask]] = asyncio.LifoQueue()

    @property
    def queued(self) -> int:
        return 0

    def _tasks(self) -> list[asyncio.Task[None]]:
        for free in enumerate(self._asks):
            self._free.put_nowait(free)
        users = self.run.load.users or len(self._asks)
        return [asyncio.create_task(self._ask_closed()) for _ in range(users)]

    async def _ask_closed(self) -> None:
        shortest, longest = self.run.load.think
        seconds = self.run.load.seconds
        while self.now() < seconds:
            if longest:
                # Who would think beyond the end asks no more.
                await asyncio.sleep(min(self._random.uniform(shortest, longest), seconds - self.now()))
            wanted = self.now()
            if wanted >= seconds:
                return
            self.asked += 1
            free = await self._free.get()
            try:
                await self._ask(*free, wanted)
            finally:
                self._free.put_nowait(free)
