"""Somebody who waits for a slot: the future behind `decisions.Waiter`, and the limit of its wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk.link import Slot
    from pgtrunk.refusal import Limit

__all__ = ["SlotWaiter"]


class SlotWaiter:
    """Waits for a slot.

    The future is done exactly once: by an offer, by a refusal, or by the cancellation of the task that awaits it.
    """

    __slots__ = ("future", "limit", "link", "number", "since")

    def __init__(
        self, number: int, link: int | None, limit: Limit, since: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.number = number
        self.link = link
        self.limit = limit
        self.since = since
        self.future: asyncio.Future[Slot] = loop.create_future()

    def offer(self, slot: Slot) -> bool:
        if self.future.done():
            return False
        self.future.set_result(slot)
        return True

    def refuse(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def again(self) -> None:
        """Makes ready for another wait in the old place: the slot was taken away before it could be used."""
        self.future = self.future.get_loop().create_future()

    def leftover(self) -> Slot | None:
        """Returns the slot that was handed over in the very moment in which the waiting task was cancelled."""
        if not self.future.done() or self.future.cancelled() or self.future.exception() is not None:
            return None
        return self.future.result()
