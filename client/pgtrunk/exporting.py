"""What exporters have in common: trunks by name, and a picture of each, taken once for all that is asked at a time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk.errors import TrunkClosed, UsageError
from pgtrunk.histogram import BUCKETS, MICRO, lower
from pgtrunk.metric import families
from pgtrunk.telemetry import TrunkStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgtrunk.metric import Family, Sample
    from pgtrunk.stages import Timing

__all__ = ["BOUNDS", "PREFIX", "Recent", "Trunks", "Watched", "cumulative", "described"]

PREFIX: Final = "pgtrunk"

MINUTE: Final = 60.0

FRESH: Final = 0.1
"""Seconds for which a picture is taken for new: what a reader asks for at a time is to be of one moment."""

BOUNDS: Final = tuple(bucket for bucket in range(BUCKETS) if lower(bucket).bit_count() == 1 and lower(bucket) >= 64)[
    :20
]
"""The buckets before which counts are told: they begin at powers of two, from 64 microseconds to 34 seconds."""


class Watched(Protocol):
    """A trunk: a `StreamManager`, or a `BackgroundTrunk`."""

    @property
    def gateway(self) -> str: ...

    def stats(self) -> TrunkStats: ...


class Recent:
    """Timings of the last one to two minutes, or since the look before the last where looks are further apart."""

    def __init__(self) -> None:
        self._older: Mapping[object, Timing] = {}
        self._newer: Mapping[object, Timing] = {}
        self._turned_at: float | None = None

    def look(self, timings: Mapping[object, Timing], now: float) -> None:
        """All timings are these now, by whatever they are known by."""
        if self._turned_at is None or now - self._turned_at >= MINUTE:
            self._older, self._newer, self._turned_at = self._newer, timings, now

    def of(self, key: object, timing: Timing) -> Timing:
        """What has come to one of them in that time."""
        before = self._older.get(key)
        return timing if before is None else timing.since(before)


class Trunks:
    """The trunks of one exporter. May be asked from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, Watched] = {}
        self._taken: list[tuple[str, list[Family]]] = []
        self._taken_at: float | None = None
        self._recent = Recent()

    def add(self, trunk: Watched, name: str | None = None) -> None:
        """Exports one more, as ``trunk=name``; its gateway's address where there is no name."""
        name = trunk.gateway if name is None else name
        with self._lock:
            if self._entries.setdefault(name, trunk) is not trunk:
                raise UsageError(f"a trunk {name!r} is exported already: give this one another name")
            self._taken_at = None

    def remove(self, trunk: Watched) -> None:
        """Exports it no more."""
        with self._lock:
            self._entries = {name: each for name, each in self._entries.items() if each is not trunk}
            self._taken_at = None

    def families(self) -> list[tuple[str, list[Family]]]:
        """What there is to tell of each trunk that is open, by its name."""
        with self._lock:
            now = self._clock()
            if self._taken_at is None or now - self._taken_at > FRESH:
                self._taken = list(self._pictures())
                self._taken_at = now
                self._recent.look(dict(self._timings()), now)
            return self._taken

    def recent(self, trunk: str, family: Family, sample: Sample) -> Timing:
        """What has come to a timing in the last minute or two; see `Recent`."""
        with self._lock:
            return self._recent.of(_key(trunk, family, sample), sample.value)

    def _timings(self) -> Iterator[tuple[object, Timing]]:
        for trunk, found in self._taken:
            for family in found:
                if family.kind == "times":
                    yield from ((_key(trunk, family, sample), sample.value) for sample in family.samples)

    def _pictures(self) -> Iterator[tuple[str, list[Family]]]:
        for name, trunk in self._entries.items():
            try:
                stats = trunk.stats()
            except TrunkClosed:
                continue  # it was never opened
            yield name, families(stats)


def _key(trunk: str, family: Family, sample: Sample) -> object:
    return trunk, family.name, tuple(sorted(sample.labels.items()))


def described() -> list[Family]:
    """All families that there are, with no samples to speak of."""
    return families(TrunkStats())


def cumulative(timing: Timing) -> Iterator[tuple[float, int]]:
    """How many times were below each of some bounds, in seconds."""
    below, rest = 0, list(timing.buckets)
    for bound in BOUNDS:
        while rest and rest[0][0] < bound:
            below += rest.pop(0)[1]
        yield lower(bound) * MICRO, below
