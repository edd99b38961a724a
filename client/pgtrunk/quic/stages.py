"""Where the time of queries goes: what the client measures and what gateways report, put together. Pure.

A client sees how long each exchange took, from the first octet of a request to the ReadyForQuery that ends its answer.
Of that the gateway knows the wait for a backend and the execution, and reports both about once per second (STATS). What
is left is the transfer: the network, and all queues on the way.

A report does not say which query is which. So the client's exchanges since the report before are laid beside the
report's times, the longest beside the longest. The sum of the transfer is exact by that, and each single one where
queries are slow for one reason at a time.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from pgtrunk.histogram import Histogram, middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .control import Stage, Stats

__all__ = ["ConnectionStages", "StageMeter"]

MOST: Final = 20_000
"""Exchanges of one connection that are kept for the next report: it is late, or there is none. More than 20,000 in a
second no client in Python has on one connection."""


class StageMeter:
    """The stages of all queries of a trunk."""

    def __init__(self) -> None:
        self.exchange = Histogram()
        """From the request's first octet to the end of its answer, as the client sees it."""
        self.wait = Histogram()
        """For a backend. What had one at once is not in it."""
        self.execution = Histogram()
        self.transfer = Histogram()


class ConnectionStages:
    """Those of one connection."""

    __slots__ = ("_meter", "_times", "_whole")

    def __init__(self, meter: StageMeter) -> None:
        self._meter = meter
        self._times: list[float] = []
        self._whole = True

    def took(self, seconds: float) -> None:
        """An exchange has ended."""
        self._meter.exchange.add(seconds)
        times = self._times
        times.append(seconds)
        if len(times) >= MOST:
            times.clear()
            self._whole = False

    def report(self, stats: Stats) -> None:
        """The gateway reports what has ended since its last report."""
        meter = self._meter
        meter.wait.merge(stats.wait.counts, stats.wait.microseconds / 1e6)
        meter.execution.merge(stats.execution.counts, stats.execution.microseconds / 1e6)
        times, whole = self._times, self._whole
        self._times, self._whole = [], True
        if whole:
            times.sort(reverse=True)
            # As many as there are exchanges: what a gateway says does not decide how much is done here.
            for seconds, execution, wait in zip(times, _longest(stats.execution), _longest(stats.wait), strict=False):
                meter.transfer.add(max(seconds - execution - wait, 0.0))


def _longest(stage: Stage) -> Iterator[float]:
    """The times of a stage, the longest first, and then zeros without end."""
    shown = [(middle(bucket), count) for bucket, count in reversed(stage.counts)]
    total = sum(seconds * count for seconds, count in shown)
    # The sum is exact and the buckets are not: with it the times of one bucket are, too, where they are alike.
    exact = stage.microseconds / 1e6 / total if total else 1.0
    return chain.from_iterable((*(repeat(seconds * exact, count) for seconds, count in shown), repeat(0.0)))
