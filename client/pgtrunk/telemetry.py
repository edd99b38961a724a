"""What a trunk counts, and the picture of it that `StreamManager.stats` returns. Plain numbers, no dependency."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "RedundancyStats", "TrunkStats"]


@dataclass(slots=True)
class Counters:
    """Totals since the trunk was opened; they only grow."""

    connections_opened: int = 0
    connections_failed: int = 0
    connections_lost: int = 0
    streams_opened: int = 0
    streams_closed: int = 0
    streams_lost: int = 0
    acquires_failed: int = 0
    acquire_wait: float = 0.0
    acquire_wait_max: float = 0.0
    cancels_sent: int = 0
    goaways: int = 0
    sessions_moved: int = 0

    def acquired(self, waited: float) -> None:
        self.acquire_wait += waited
        self.acquire_wait_max = max(self.acquire_wait_max, waited)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedundancyStats:
    """What came of sending small messages twice: this end's, over all connections. Messages, but for ``losses``."""

    eligible: int = 0
    """Small messages that left for the first time while losses were being seen."""
    copies: int = 0
    suppressed_guard: int = 0
    """Copies not sent, since losses looked like congestion."""
    suppressed_window: int = 0
    """Copies not sent, since half the congestion window was in flight."""
    spurious: int = 0
    """Of which copy and original both came."""
    losses: int = 0
    """Packets lost, copies among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkStats:
    """One moment of a trunk. Numbers of now first, then totals since it was opened; times in seconds."""

    connections_connecting: int
    """QUIC connections whose handshake runs."""
    connections_ready: int
    connections_leaving: int
    """Connections that the gateway has asked to be left, and that still carry sessions; not among those ready."""
    connections_closing: int
    """Connections that were closed here and whose socket is not gone yet."""
    connections_max: int
    """``connections``."""
    streams_in_use: int
    """Streams that carry sessions. Cancels are not among them."""
    streams_max: int
    """``connections`` times ``streams_per_connection``."""
    cancels_in_use: int
    waiting: int
    """Callers that wait for a stream."""

    connections_opened: int
    connections_failed: int
    """Attempts that did not become a connection."""
    connections_lost: int
    """Connections that ended otherwise than by being closed here or by being idle."""
    streams_opened: int
    streams_closed: int
    """Sessions that ended by a close of either side."""
    streams_lost: int
    """Sessions that ended with an error: reset, or lost with their connection."""
    acquires_failed: int
    """Callers that got an error instead of a stream; those who were cancelled are not counted."""
    acquire_wait: float
    """Seconds that callers spent waiting for their stream, all together."""
    acquire_wait_max: float
    """The longest of these waits that ended with a stream."""
    cancels_sent: int
    goaways: int
    """Connections that the gateway has asked to be left."""
    sessions_moved: int
    """Idle sessions of asyncpg pools that were ended for that, to be opened on another connection."""
    redundancy: RedundancyStats = RedundancyStats()
