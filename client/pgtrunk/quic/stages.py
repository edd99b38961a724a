"""Where the time of queries goes: what the client measures and what gateways report, put together. Pure.

A client sees how long each exchange took, from the first octet of a request to the ReadyForQuery that ends its answer.
Of that the gateway knows the wait for a backend and the execution, and reports both about once per second (STATS). What
is left is the transfer: the network, and all queues on the way.

A report does not say which query is which. So the client's exchanges since the report before are laid beside the
report's times, the longest beside the longest. The sum of the transfer is right by that, and each single one where
queries are slow for one reason at a time.

Nothing of this is done when a query ends, but for putting its time into a list.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from pgtrunk.histogram import Histogram, bucket_of, middle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .control import Stage, Stats

__all__ = ["ConnectionStages", "StageMeter"]

MOST: Final = 20_000
"""Exchanges of one connection that are kept until somebody looks: a second's of a client in Python, and many minutes'
of one whose gateway reports nothing. What is beyond them is forgotten."""

FEW: Final = 200
"""Exchanges between two reports that are each looked at; more of them by their buckets."""


class StageMeter:
    """The stages of all queries of a trunk."""

    def __init__(self) -> None:
        self.exchange = Histogram()
        """From the request's first octet to the end of its answer, as the client sees it."""
        self.wait = Histogram()
        """For a backend. What had one at once is not in it."""
        self.execution = Histogram()
        self.transfer = Histogram()
        self.connections: WeakSet[ConnectionStages] = WeakSet()
        self.lock = Lock()
        """Whoever looks may be in another thread than the connections."""

    def look(self) -> None:
        """Takes in what connections have measured."""
        with self.lock:
            for connection in self.connections:
                connection.look()


class ConnectionStages:
    """Those of one connection, until `end`."""

    __slots__ = ("__weakref__", "_is_whole", "_looked_at", "_meter", "_times", "took")

    def __init__(self, meter: StageMeter) -> None:
        self._meter = meter
        self._times: deque[float] = deque(maxlen=MOST)
        self._looked_at: list[float] = []
        """Measured since the report before, and in the meter already."""
        self._is_whole = True
        self.took: Callable[[float], None] = self._times.append
        """An exchange has ended; it took so many seconds."""
        with meter.lock:
            meter.connections.add(self)

    def look(self) -> None:
        """Takes in what was measured; under the meter's lock."""
        times = self._times
        taken = [times.popleft() for _ in range(len(times))]
        if not taken:
            return
        self._meter.exchange.merge(Counter(map(bucket_of, taken)).items(), sum(taken))
        self._is_whole = self._is_whole and len(taken) < MOST and len(self._looked_at) < MOST
        self._looked_at = [*self._looked_at, *taken] if self._is_whole else []

    def report(self, stats: Stats) -> None:
        """The gateway reports what has ended since its last report."""
        with self._meter.lock:
            self._take_in(stats)

    def _take_in(self, stats: Stats) -> None:
        self.look()
        meter = self._meter
        meter.wait.merge(stats.wait.counts, stats.wait.microseconds / 1e6)
        meter.execution.merge(stats.execution.counts, stats.execution.microseconds / 1e6)
        if self._is_whole:
            # As many as there are exchanges: what a gateway says does not decide how much is done here.
            for count, seconds in _rest(_runs(self._looked_at), _Runs(stats.execution), _Runs(stats.wait)):
                meter.transfer.add(seconds, count)
        self._looked_at, self._is_whole = [], True

    def end(self) -> None:
        """The connection is gone."""
        with self._meter.lock:
            self.look()
            self._meter.connections.discard(self)


def _runs(times: list[float]) -> Iterable[tuple[float, int]]:
    """Times, and how many there are of each, the longest first."""
    if len(times) <= FEW:
        return ((seconds, 1) for seconds in sorted(times, reverse=True))
    return _scaled(sorted(Counter(map(bucket_of, times)).items()), sum(times))


def _scaled(counts: Iterable[tuple[int, int]], total: float) -> list[tuple[float, int]]:
    """The same of counts by bucket. Their sum is exact where the buckets are not: so the times of one bucket are, too,
    where all are alike."""
    shown = [(middle(bucket), count) for bucket, count in counts if count]
    about = sum(seconds * count for seconds, count in shown)
    exact = total / about if about else 1.0
    return [(seconds * exact, count) for seconds, count in reversed(shown)]


class _Runs:
    """The times of a stage, the longest first, and then zeros without end."""

    def __init__(self, stage: Stage) -> None:
        self._further = iter(_scaled(stage.counts, stage.microseconds / 1e6))
        self.left = 0.0
        self.take(0)

    def take(self, count: int) -> None:
        self.left -= count
        if not self.left:
            self.seconds, self.left = next(self._further, (0.0, inf))


def _rest(times: Iterable[tuple[float, int]], *stages: _Runs) -> Iterator[tuple[int, float]]:
    """What is left of the times when those of the stages are taken away, as (count, seconds)."""
    for seconds, left in times:
        while left:
            count = int(min(left, *(stage.left for stage in stages)))
            yield count, max(seconds - sum(stage.seconds for stage in stages), 0.0)
            left -= count
            for stage in stages:
                stage.take(count)
