"""When to try again after connections have failed: pauses that grow, and end with the first success."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.pool.decisions import pause_after

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError

__all__ = ["Backoff"]


class Backoff:
    """Of one server, or one login. Times of the loop's clock, in seconds."""

    __slots__ = ("_failed_at", "failures", "last_error", "retry_at")

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self.retry_at = 0.0
        self.last_error: GatewayError | None = None
        self._failed_at = 0.0

    def succeeded(self) -> None:
        """All is forgotten."""
        self.failures, self.retry_at, self.last_error = 0, 0.0, None

    def failed(self, error: GatewayError, *, began: float, now: float, retry: float) -> bool:
        """A connection that was begun at ``began`` has failed -> whether that is news.

        Those that were opened together fail together: that is one failure. ``retry``: the longest pause.
        """
        is_news = began >= self._failed_at
        self.failures += is_news
        self._failed_at = now
        self.last_error = error
        self.retry_at = now + pause_after(self.failures, retry)
        return is_news
