"""How long to wait before the gateway is tried again. Pure: randomness is an argument."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential back-off with jitter."""

    base: float = 0.1
    """Seconds before the attempt that follows the first failure."""
    factor: float = 2.0
    ceiling: float = 5.0
    """Seconds that no wait exceeds: half of the default ``acquire_timeout``, so that whoever waits sees an attempt."""

    def delay(self, failures: int, jitter: float) -> float:
        """Returns the seconds to wait after ``failures`` in a row (at least 1).

        ``jitter``, in [0, 1), takes off up to half, so that a thousand clients that lost one gateway at the same
        moment come back spread out.
        """
        # The exponent is bounded too: 2.0 ** 1024 raises after a long outage.
        full = min(self.ceiling, self.base * self.factor ** min(failures - 1, 64))
        return full * (1.0 - jitter / 2)
