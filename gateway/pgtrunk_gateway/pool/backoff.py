"""When to try again after connections have failed: pauses that grow, and end with the first success."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.errors import BackendUnavailable
from pgtrunk_gateway.pool.decisions import pause_after

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError

__all__ = ["DOWN", "Backoff", "is_down", "is_for_now"]

DOWN: Final = frozenset({"57P01", "57P02", "57P03"})
"""Postgres refuses all logins with these: it stops, has crashed, or starts."""
_FULL: Final = frozenset({"53000", "53100", "53200", "53300", "53400"})
"""It refuses a login with these only for now."""


def is_down(error: GatewayError) -> bool:
    """Whether a connection to the server would fail for anybody."""
    return isinstance(error, BackendUnavailable) or error.sqlstate in DOWN


def is_for_now(error: GatewayError) -> bool:
    """Whether the same login may succeed in a moment."""
    return is_down(error) or error.sqlstate in _FULL


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
