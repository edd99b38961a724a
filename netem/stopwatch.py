"""How long runs take on the clock of the wall, by arm: what somebody who waits for `make wan` wants to know."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Stopwatch"]


class Stopwatch:
    """``arms``: seconds for each, in the order in which they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = self._since = clock()
        self.arms: dict[str, float] = {}

    def lap(self, arm: str) -> float:
        """Seconds since the last call, or since the beginning, which count for ``arm``."""
        now = self._clock()
        seconds, self._since = now - self._since, now
        self.arms[arm] = self.arms.get(arm, 0.0) + seconds
        return seconds

    @property
    def total(self) -> float:
        return self._clock() - self._begin

    def __str__(self) -> str:
        return ", ".join(f"{arm} {seconds:.0f} s" for arm, seconds in self.arms.items())
