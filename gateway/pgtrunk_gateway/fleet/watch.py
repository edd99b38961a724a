"""Which workers turn their event loops: what the supervisor sees of each, look by look.

Each worker counts on the board; who has not counted on from one look to the next has not turned its loop in between. It
is looked a second apart, and looks are counted, not seconds: where the whole machine stands still, or the supervisor
does, that is one look, and nobody's fault.

    state     look            then
    AWAKE     counts on       AWAKE
    AWAKE     does not        AWAKE, until STUCK_AFTER looks in a row: STUCK
    STUCK     counts on       AWAKE: it gets connections again
    STUCK     does not        STUCK, until ``limit`` looks in a row: HUNG
    HUNG      whatever        HUNG, until another worker is in its place

A stuck one may be at work, with a large file or too few cores, so it only gets no more connections; a hung one is
killed, since its sessions and all new QUIC connections of its share wait for nothing. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

__all__ = ["LOOK", "STUCK_AFTER", "Finding", "Watch"]

LOOK: Final = 1.0
"""Seconds between two looks, at least."""
STUCK_AFTER: Final = 5
"""Looks."""


class Finding(Enum):
    """What has become of a worker since the last look."""

    STUCK = auto()
    AWAKE = auto()
    """Again."""
    HUNG = auto()


@dataclass(slots=True)
class _Seen:
    count: int
    silent: int = 0
    hung: bool = False


class Watch:
    """Over the workers that serve."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def join(self, index: int, count: int) -> None:
        """Worker ``index`` serves from now on, and has counted so far."""
        self._seen[index] = _Seen(count)

    def leave(self, index: int) -> None:
        """It does not any more."""
        self._seen.pop(index, None)

    @property
    def watched(self) -> tuple[int, ...]:
        """The workers that serve."""
        return tuple(self._seen)

    def silent(self, index: int) -> int:
        """Looks for which it has not counted; 0 where it has, or does not serve."""
        seen = self._seen.get(index)
        return 0 if seen is None else seen.silent

    def look(self, index: int, count: int, limit: int) -> Finding | None:
        """It has counted to ``count``; ``limit``: looks without, after which it counts as hung, 0: never."""
        seen = self._seen[index]
        if seen.hung:
            return None
        if count != seen.count:
            was_stuck = seen.silent >= STUCK_AFTER
            seen.count, seen.silent = count, 0
            return Finding.AWAKE if was_stuck else None
        seen.silent += 1
        if limit and seen.silent >= max(limit, STUCK_AFTER + 1):
            seen.hung = True
            return Finding.HUNG
        return Finding.STUCK if seen.silent == STUCK_AFTER else None
