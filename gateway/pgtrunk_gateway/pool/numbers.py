"""Numbers of backends and sessions. Pure."""

from __future__ import annotations

import itertools

__all__ = ["Numbers"]


class Numbers:
    """1, 2, 3 ...; in worker ``index`` of ``count`` every ``count``-th of them, so that no two workers have the same.

    They stay small that way: the column of the console that has them is an int4.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __next__(self) -> int:
        return next(self._numbers)

    def spread(self, index: int, count: int) -> None:
        """To be called before the first one is taken."""
        self._numbers = itertools.count(index + 1, count)
