"""Takes a trunk's connections to where they should be: back to a gateway that was lost and is there again, above all.

Every while it looks for one that is misplaced (`Gateways.misplaced`). Where there is one, another is opened in the
right place, and when that is ready it replaces the first, as if that had become too old: idle sessions of pools move,
what is in use stays until it ends. One at a time, and each trunk at moments of its own, so that a gateway that comes
back does not get everybody at once. What does not answer is tried ever more rarely, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import random
from typing import TYPE_CHECKING, Final

from pgtrunk.errors import PgtrunkError

if TYPE_CHECKING:
    from pgtrunk.dialer import Dialer
    from pgtrunk.gateways import Move
    from pgtrunk.trunk import Trunk

__all__ = ["Balancer"]

logger = logging.getLogger("pgtrunk")

LOOK: Final = 10.0
"""Seconds between two looks, less up to half at random."""


class Balancer:
    """Of one trunk, on its loop. It does nothing where there is but one address to go to."""

    def __init__(self, trunk: Trunk, dialer: Dialer) -> None:
        self._trunk = trunk
        self._dialer = dialer
        self._timer: asyncio.TimerHandle | None = None
        self._move: asyncio.Task[None] | None = None
        self._has_stopped = False

    def start(self) -> None:
        """Looks from now on, until `stop`."""
        if not self._has_stopped:
            self._timer = self._trunk.loop.call_later(LOOK * (1.0 - random() / 2), self._look)

    def stop(self) -> None:
        """Looks no more, and gives up what it is at."""
        if self._timer is not None:
            self._timer.cancel()
        self._has_stopped = True
        if self._move is not None:
            self._move.cancel()

    async def wait_stopped(self) -> None:
        """Waits until nothing is left of that."""
        if self._move is not None:
            await asyncio.wait([self._move])

    def _look(self) -> None:
        gateways, now = self._dialer.gateways, self._trunk.loop.time()
        move = gateways.misplaced(self._dialer.counts(), now) if self._trunk.lines.has_room_to_move else None
        if move is None:
            self.start()
            return
        self._move = self._trunk.loop.create_task(self._take(move), name=f"pgtrunk move to {move.gateway}")
        self._move.add_done_callback(self._taken)

    async def _take(self, move: Move) -> None:
        try:
            new = await self._trunk.lines.wait_answered(partial(self._dialer.probe, move))
        except PgtrunkError as exc:
            logger.debug("%s: nothing moves to %s yet: %s", self._trunk.gateway, move.gateway, exc)
            return
        # A gateway that drains may still be answering.
        self._dialer.told_to_leave(new)
        # Meanwhile anything may have happened to those that are there.
        placed = [each for each, at in self._dialer.placed().items() if at == move.source]
        self._trunk.lines.replace(placed, new, f"{move.gateway} is the better place")

    def _taken(self, move: asyncio.Task[None]) -> None:
        self._move = None
        if move.cancelled():
            return
        if (error := move.exception()) is not None:
            logger.error("%s: no connection was moved", self._trunk.gateway, exc_info=error)
        self.start()
