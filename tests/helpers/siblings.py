"""Dispatchers of cancels in the test's loop that are workers of one fleet: a hub and buses, and no processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.cancels import SiblingCancels
from pgtrunk_gateway.fleet.hub import Hub
from pgtrunk_gateway.fleet.member import Member

if TYPE_CHECKING:
    from pgtrunk_gateway.cancel.dispatch import Dispatcher

__all__ = ["Family", "siblings"]


class Family:
    """Workers 0 and on. ``ends``: the workers' ends of their buses, by number; ``there``: the supervisor's."""

    def __init__(self) -> None:
        self.ends: list[Bus] = []
        self.there: dict[int, Bus] = {}
        self.members: list[Member] = []
        self.hub = Hub(lambda: self.there)

    async def add(self, dispatcher: Dispatcher, count: int) -> None:
        loop = asyncio.get_running_loop()
        index = len(self.ends)
        ours, theirs = socket.socketpair()
        end, there = Bus("the supervisor"), Bus(f"worker {index}", lambda: self._lost(index))
        await loop.create_unix_connection(lambda: end, sock=ours)
        await loop.create_unix_connection(lambda: there, sock=theirs)
        self.ends.append(end)
        self.there[index] = there
        self.hub.serve(index, there)
        self.members.append(Member(index, count, end))
        SiblingCancels(self.members[-1], dispatcher)

    async def kill(self, index: int) -> None:
        """The worker is gone, as far as the others see."""
        self.ends[index].close()
        await self.ends[index].wait_closed()

    def _lost(self, index: int) -> None:
        self.there.pop(index, None)

    async def close(self) -> None:
        for bus in (*self.ends, *self.there.values()):
            bus.close()
            await bus.wait_closed()


@contextlib.asynccontextmanager
async def siblings(*dispatchers: Dispatcher) -> AsyncIterator[Family]:
    """Makes one fleet of them, until the end of the block."""
    family = Family()
    try:
        for dispatcher in dispatchers:
            await family.add(dispatcher, len(dispatchers))
        yield family
    finally:
        await family.close()
        for dispatcher in dispatchers:
            dispatcher.siblings = None
