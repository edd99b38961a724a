"""Who waits for a slot: sessions, and cancels, each in order of arrival. Pure."""

from __future__ import annotations

from typing import Generic

from pgtrunk.decisions import W

__all__ = ["Queues"]


class Queues(Generic[W]):
    """Those who wait, by number."""

    def __init__(self) -> None:
        self.sessions: dict[int, W] = {}
        self.cancels: dict[int, W] = {}

    def add(self, waiter: W) -> None:
        """A waiter that comes back with its old number gets its old place."""
        queue = self._of(waiter)
        in_order = not queue or waiter.number > next(reversed(queue))
        queue[waiter.number] = waiter
        if not in_order:
            ordered = sorted(queue.items())
            queue.clear()
            queue.update(ordered)

    def forget(self, waiter: W) -> bool:
        """Returns whether it was still there."""
        return self._of(waiter).pop(waiter.number, None) is not None

    def oldest(self, now: float) -> float:
        """Seconds that the session waits that waits longest."""
        return now - min((first.since for first in self.sessions.values()), default=now)

    def _of(self, waiter: W) -> dict[int, W]:
        return self.sessions if waiter.link is None else self.cancels
