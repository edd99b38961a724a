"""Times counted in buckets: log-linear, with the same boundaries everywhere, so that counts can be added up. Pure.

A time is a whole number of microseconds, rounded down. Below 16 each has a bucket of its own; above, each power of two
has eight of equal width, so a bucket is an eighth to a sixteenth of its times wide. Bucket b begins at b microseconds
below 16, and else at ``(8 + b % 8) << (b // 8 - 1)``; the last, 255, begins after 4.5 hours and has no end. This is
part of the control stream's format, see ARCHITECTURE.md.

Our own, since a number of buckets that fits an octet is all that is needed: the HDR histograms of the field bring
readers and writers of files along, and their Python costs several microseconds for each time.
"""

from __future__ import annotations

from bisect import bisect
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["BUCKETS", "Histogram", "bucket_of", "lower", "middle"]

BUCKETS: Final = 256
MICRO: Final = 1e-6


def lower(bucket: int) -> int:
    """Microseconds at which a bucket begins."""
    return bucket if bucket < 16 else (8 + bucket % 8) << (bucket // 8 - 1)


def middle(bucket: int) -> float:
    """Seconds that stand for the times of a bucket; 0 for those too short to be measured."""
    if bucket in (0, BUCKETS - 1):
        return lower(bucket) * MICRO
    return (lower(bucket) + lower(bucket + 1)) / 2 * MICRO


_BOUNDS: Final = [lower(bucket) * MICRO for bucket in range(1, BUCKETS)]


bucket_of: Final[Callable[[float], int]] = partial(bisect, _BOUNDS)
"""The bucket of a time in seconds."""


class Histogram:
    """How many times there were in each bucket, and how long they were together."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0.0
        """Seconds; exact, where the buckets are not."""

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[bucket_of(seconds)] += times
        self.total += seconds * times

    def merge(self, counts: Iterable[tuple[int, int]], total: float) -> None:
        """Adds (bucket, count) pairs of somebody else's, which are ``total`` seconds together."""
        for bucket, count in counts:
            self.counts[bucket] += count
        self.total += total

    @property
    def count(self) -> int:
        return sum(self.counts)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """The buckets that are not empty, as (bucket, count)."""
        return ((bucket, count) for bucket, count in enumerate(self.counts) if count)
