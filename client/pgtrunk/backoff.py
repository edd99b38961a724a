"""How long to wait before the gateway is tried again. Pure: randomness is an argument."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential back-off with jitter: one for those who wait, and one, `calm`, where nobody does.

    Whoever waits for a gateway that was lost has it tried again almost at once, after 50 to 100 ms: less than the
    handshake takes over a long way, and enough for a thousand clients not to come in the same millisecond. The gateway
    admits them in order. A connection that is only to be kept ready can come whenever it is convenient, so those of a
    thousand clients come over seconds.
    """

    base: float = 0.1
    """Seconds before the attempt that follows the first failure."""
    factor: float = 2.0
    ceiling: float = 5.0
    """Seconds that no wait exceeds: half of the default ``acquire_timeout``, so that whoever waits sees an attempt."""
    spread: float = 5.0
    """Seconds over which the first attempts are spread where nobody waits."""
    calm_ceiling: float = 30.0
    """Seconds that no wait exceeds where nobody waits."""

    def delay(self, failures: int, jitter: float) -> float:
        """Returns the seconds to wait after ``failures`` in a row (at least 1).

        ``jitter``, in [0, 1), takes off up to half, so that a thousand clients that lost one gateway at the same
        moment come back spread out.
        """
        return _grown(self.base, self.factor, failures, self.ceiling) * (1.0 - jitter / 2)

    def calm(self, failures: int, jitter: float) -> float:
        """The same where nobody waits; never less. After the first failure ``jitter`` takes off up to all of it."""
        full = _grown(self.spread, self.factor, failures, self.calm_ceiling)
        calm = full * (1.0 - jitter if failures == 1 else 1.0 - jitter / 2)
        return max(calm, self.delay(failures, jitter))


def _grown(base: float, factor: float, failures: int, ceiling: float) -> float:
    # The exponent is bounded too: 2.0 ** 1024 raises after a long outage.
    return min(ceiling, base * factor ** min(failures - 1, 64))
