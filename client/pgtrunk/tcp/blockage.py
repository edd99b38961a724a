"""What is known of UDP on the way to a trunk's gateways: whether it is let through, and when to look again. Pure.

One dial in which nothing came back over UDP, while TCP was answered, shows that it is blocked. From then on dials go
by TCP at once, until a look at UDP is answered: those come further and further apart.
"""

from __future__ import annotations

from typing import Final

from pgtrunk.backoff import Backoff

__all__ = ["Blockage"]

LOOKS: Final = Backoff(base=2.0, factor=2.0, ceiling=300.0)
"""Seconds between looks. The first comes soon: it may have been a gateway that was just being restarted."""


class Blockage:
    """Of all the way, not of one gateway: it is nearly always the client's network that decides."""

    def __init__(self, backoff: Backoff = LOOKS) -> None:
        self.since: float | None = None
        """When it was found; None: UDP is let through, as far as is known."""
        self.retry_at = 0.0
        """When to look again."""
        self._backoff = backoff
        self._looks = 0

    @property
    def is_there(self) -> bool:
        return self.since is not None

    def found(self, now: float) -> bool:
        """A dial has found it. Returns whether that is news. What is under way over UDP is the first look."""
        if self.since is not None:
            return False
        self.since = self.retry_at = now
        self._looks = 0
        return True

    def still_there(self, now: float, jitter: float) -> None:
        """A look was not answered."""
        self._looks += 1
        self.retry_at = now + self._backoff.delay(self._looks, jitter)

    def over(self, now: float) -> float | None:
        """UDP was answered. Returns the seconds for which it was blocked, None where it was not."""
        if self.since is None:
            return None
        lasted, self.since = now - self.since, None
        return lasted
