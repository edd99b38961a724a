"""Receive credit: what the peer may send before anybody reads it.

Rule 1: a stream gets credit when its bytes are consumed. A session that does not read stops its far end, and only that
        one.
Rule 2: a connection gets credit when bytes arrive. Blocked streams use up their own windows, never the connection's,
        so they cannot starve the others.
Rule 3: what is held plus what is promised stays within the connection's budget, and the process's. The windows of all
        streams together are at most three quarters of the connection's budget, so rule 2 always finds room.
Where the process's budget is exhausted, a connection above its reserve waits until bytes are consumed: memory goes
first.

Arithmetic only; ``now`` and the round trip time are arguments. RFC 9000 section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic.quic.connection import Limit

    from .config import ByteBudget, QuicLimits
    from .stream import Stream

__all__ = ["ConnectionCredit"]

MAX_AHEAD = 4 << 20
"""Bytes of connection credit given ahead at most: 1 Gbit/s at 30 ms."""

FORGET = 10.0
"""Seconds after which a stream or connection that was busy counts as new."""

FAST = 0.002
"""Seconds added to two round trips: what our event loop and the peer's take to turn credit into data."""


class ConnectionCredit:
    """One connection's account: bytes held, bytes promised, and the windows of its streams."""

    def __init__(
        self, limits: QuicLimits, max_data: Limit, budget: ByteBudget | None, wake: Callable[[], None]
    ) -> None:
        self._base = limits.initial_window
        self._widest = max(limits.max_stream_window, self._base)
        self._limit = limits.connection_budget
        self._widening_room = limits.connection_budget * 3 // 4 - self._base * max(limits.max_streams, 128)
        self._least_ahead = min(256 << 10, limits.connection_budget // 4)
        if budget is not None:
            self._least_ahead = min(self._least_ahead, budget.reserve)
        self._most_ahead = max(min(MAX_AHEAD, limits.connection_budget // 4), self._least_ahead)
        self._ahead = self._least_ahead
        self._renewed_at = -FORGET
        self._max_data = max_data
        self._budget = budget
        self._wake = wake
        self._reserve = 0 if budget is None else budget.reserve
        self._released = 0
        self._widened = 0
        self._closed = False
        self._is_starved = False
        max_data.value = max_data.sent = self._ahead
        if budget is not None:
            budget.join(self)

    @property
    def held(self) -> int:
        """Bytes received, gaps included, and neither consumed nor dropped."""
        return self._max_data.used - self._released

    @property
    def is_low(self) -> bool:
        """Whether the peer has less than half of what it should have ahead."""
        return self._max_data.value - self._max_data.used < self._ahead >> 1

    def release(self, size: int) -> None:
        """Bytes were consumed, or never will be."""
        if self._closed:
            return
        self._released += size
        if self._is_starved:
            self._is_starved = False
            self._wake()
        if self._budget is not None:
            # A commitment below the reserve is not worth telling: the reserve is what the budget counts.
            after = self._max_data.value - self._released
            if after + size > self._reserve:
                self._budget.change(after + size, max(after, self._reserve))

    def renew(self, now: float, rtt: float) -> bool:
        """Raise MAX_DATA if the peer runs low and the budgets have room; True when it was raised."""
        if not self.is_low:
            return False
        elapsed, limit = now - self._renewed_at, self._max_data
        if elapsed < 2 * rtt + FAST:
            self._ahead = min(self._ahead * 2, self._most_ahead)
        elif elapsed >= FORGET:
            self._ahead = self._least_ahead
        step = min(self._ahead - (limit.value - limit.used), self._room())
        if step <= 0:
            self._is_starved = True
            if self._budget is not None:
                self._budget.wait(self)
            return False
        self._renewed_at = now
        before = limit.value - self._released
        limit.value += step
        if self._budget is not None:
            self._budget.change(max(before, self._reserve), max(before + step, self._reserve))
        return True

    def _room(self) -> int:
        committed = self._max_data.value - self._released
        room = self._limit - committed
        if self._budget is not None:
            room = min(room, self._budget.room + max(self._reserve - committed, 0))
        return room

    def renew_stream(self, stream: Stream, now: float, rtt: float) -> None:
        """Raise a stream's limit to what it consumed and its window, the window itself first where it is too small."""
        elapsed, stream.renewed_at = now - stream.renewed_at, now
        if elapsed < 2 * rtt + FAST:
            step = min(stream.window, self._widest - stream.window)
            if step > 0 and self._widened + step <= self._widening_room and self._has_process_room():
                stream.window += step
                self._widened += step
        elif elapsed >= FORGET:
            self.narrow(stream)
        stream.max_stream_data_local = max(stream.max_stream_data_local, stream.consumed + stream.window)

    def narrow(self, stream: Stream) -> None:
        """Take back what a stream's window grew, save what the peer was promised and may still use."""
        window = max(self._base, stream.max_stream_data_local - stream.consumed)
        self._widened -= stream.window - window
        stream.window = window

    def forget(self, stream: Stream) -> None:
        """The stream is over."""
        self._widened -= stream.window - self._base

    def _has_process_room(self) -> bool:
        return self._budget is None or self._budget.room > self._budget.limit >> 2

    def on_room(self) -> None:
        """The process's budget has room again."""
        self._wake()

    def close(self) -> None:
        """The connection is gone, and all that it held."""
        if not self._closed and self._budget is not None:
            self._budget.leave(self, self._max_data.value - self._released)
        self._closed = True
        self._released = self._max_data.used
