"""What an allocation goes by. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgtrunk.backoff import Backoff

__all__ = ["LIFETIME_JITTER", "Rules"]

LIFETIME_JITTER = 0.1
"""The part of ``max_lifetime`` by which a connection's own may be shorter, at random: connections that were opened
together, by one trunk or by a thousand, are not replaced together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an allocation goes by. The names are those that pools have for it."""

    connections: int = 4
    """QUIC connections at most. A suspect one does not count, so for as long as they live there may be twice as many,
    and one more while another is being replaced."""
    streams_per_connection: int = 100
    """Sessions at most on each of them."""
    min_connections: int = 0
    """Connections that are opened before anybody asks, and kept open without streams."""
    patience: float = 10.0
    """Seconds after which an outage counts as one: from then on, callers are refused without waiting."""
    max_idle: float = 5.0
    """Seconds that a connection without streams is kept, beyond ``min_connections``. Half of QUIC's idle timeout: no
    stream may be opened on a connection that the gateway is just about to forget."""
    max_lifetime: float | None = 3600.0
    """Seconds after which a connection is replaced, less up to `LIFETIME_JITTER`; None: never."""
    stable: float = 5.0
    """Seconds that a connection must have lived for earlier failures to be forgotten."""
    backoff: Backoff = field(default_factory=Backoff)

    def expiry(self, now: float, jitter: float) -> float:
        """When a connection that is ready now has lived long enough. ``jitter`` is in [0, 1)."""
        return float("inf") if self.max_lifetime is None else now + self.max_lifetime * (1 - jitter * LIFETIME_JITTER)
