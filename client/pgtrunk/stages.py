"""The stages of a query, as `StreamManager.stats` shows them: how long each took, by count, sum and percentiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgtrunk.histogram import BUCKETS, Histogram, middle
from pgtrunk.metric import times

if TYPE_CHECKING:
    from pgtrunk.quic.stages import StageMeter

__all__ = ["Stages", "Timing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often something was done and how long it took, in seconds; percentiles within a sixteenth."""

    count: int = 0
    total: float = 0.0
    """All times together; exact."""
    p50: float = 0.0
    """Half of the times were at most this."""
    p90: float = 0.0
    p99: float = 0.0
    buckets: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """How many times there were in each bucket of `pgtrunk.histogram`, as (bucket, count)."""

    @classmethod
    def of(cls, histogram: Histogram) -> Timing:
        # Whoever looks may be in another thread, and things go on in this one.
        counts, total = histogram.counts[:], histogram.total
        return cls._of(counts, total)

    @classmethod
    def _of(cls, counts: list[int], total: float) -> Timing:
        p50, p90, p99 = (_quantile(counts, share) for share in (0.5, 0.9, 0.99))
        pairs = tuple((bucket, count) for bucket, count in enumerate(counts) if count)
        return cls(count=sum(counts), total=total, p50=p50, p90=p90, p99=p99, buckets=pairs)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The time that this share of all, 0 to 1, did not exceed; 0 where there is none."""
        return _quantile(self._counts(), share)

    def since(self, earlier: Timing) -> Timing:
        """What has come since an earlier picture of the same trunk: of the last minute, say, not of all its life."""
        before = earlier._counts()
        counts = [max(count - old, 0) for count, old in zip(self._counts(), before, strict=True)]
        return Timing._of(counts, max(self.total - earlier.total, 0.0))

    def _counts(self) -> list[int]:
        counts = [0] * BUCKETS
        for bucket, count in self.buckets:
            counts[bucket] = count
        return counts


def _quantile(counts: list[int], share: float) -> float:
    rank = share * sum(counts)
    below = 0
    for bucket, count in enumerate(counts):
        below += count
        if count and below >= rank:
            return middle(bucket)
    return 0.0


_HELP = "How long a stage took."


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Where the time goes. Each stage by what it begins and ends with.

    ``backend`` and ``execution`` are what gateways report, about once per second, where they can (since pgtrunk's
    control stream has STATS); ``exchange`` and ``transfer`` need ``timings``, and a login is none.
    """

    stream: Timing = times(_HELP, Timing(), name="stage", stage="stream")
    """Per session: the wait for its stream, a new connection's handshake included."""
    backend: Timing = times(_HELP, Timing(), name="stage", stage="backend")
    """Per request that went to Postgres: the gateway had none of its backends for it; 0 where it had one at once."""
    execution: Timing = times(_HELP, Timing(), name="stage", stage="execution")
    """Per request that went to Postgres: from its hand-over to a backend to the end of the answer, as the gateway sees
    it. A client that reads slowly makes it longer. The gateway's clock has milliseconds, where it runs on uvloop."""
    transfer: Timing = times(_HELP, Timing(), name="stage", stage="transfer")
    """Per exchange that the gateway has reported on: what is left, which is the network and the queues on both ends."""
    exchange: Timing = times(_HELP, Timing(), name="stage", stage="exchange")
    """Per request, as the client sees it: from its first octet to the ReadyForQuery that ends its answer."""

    @classmethod
    def of(cls, waits: Histogram, meter: StageMeter | None = None) -> Stages:
        """By the waits for streams, and what connections have measured and heard."""
        stream = Timing.of(waits)
        if meter is None:
            return cls(stream=stream)
        meter.look()
        execution = Timing.of(meter.execution)
        backend = meter.wait.counts[:]
        # A request that is still running has waited already.
        backend[0] += max(execution.count - sum(backend), 0)
        return cls(
            stream=stream,
            backend=Timing._of(backend, meter.wait.total),
            execution=execution,
            transfer=Timing.of(meter.transfer),
            exchange=Timing.of(meter.exchange),
        )
