"""What failed connections have taught about one server, shared by all pools on it.

While a server is down, one connection tries for all, after pauses that grow; the first that succeeds, or is refused by
a server that is up, ends that for everybody at once. A refusal that is about a user or a database is the pool's own
affair, and is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pgtrunk_gateway.pool.decisions import pause_after

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError

__all__ = ["Host", "Tenant"]


class Tenant(Protocol):
    """A pool, as its server sees it."""

    def maintain(self) -> None:
        """What it waited for may be possible now."""

    def host_failed(self, error: GatewayError) -> None:
        """A connection of some pool has failed, and it is the server's fault."""


class Host:
    """One address that pools connect to. ``retry``: the longest pause, in seconds, now (server_login_retry)."""

    def __init__(self, retry: Callable[[], float]) -> None:
        self.tenants: set[Tenant] = set()
        self.known = False
        """Whether any connection has ever succeeded."""
        self.failures = 0
        self.retry_at = 0.0
        self.last_error: GatewayError | None = None
        self._retry = retry
        self._failed_at = 0.0
        self._probe: object | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def admits(self) -> int | None:
        """How many connections may be opened now, ``retry_at`` aside; None: any number."""
        if not self.failures:
            return None
        return 0 if self._probe is not None else 1

    def begins(self, attempt: object) -> None:
        """A connection is tried; ``attempt`` is its name in the calls that follow, one of which is made."""
        if self.failures and self._probe is None:
            self._probe = attempt

    def succeeded(self, attempt: object) -> None:
        """The server has answered."""
        was_down = bool(self.failures)
        self.known = True
        self.failures, self.retry_at, self.last_error = 0, 0.0, None
        self._probe = None
        if was_down:
            self._tell()

    def failed(self, attempt: object, error: GatewayError, began: float) -> float:
        """The connection that was begun at ``began`` has failed -> the pause until the next."""
        if self._probe is attempt:
            self._probe = None
        # Those that were opened together fail together: that is one failure.
        is_news = began >= self._failed_at
        self.failures += is_news
        self._failed_at = self._loop.time()
        self.last_error = error
        pause = pause_after(self.failures, self._retry())
        self.retry_at = self._failed_at + pause
        if is_news:
            for tenant in list(self.tenants):
                tenant.host_failed(error)
            self._tell()
        return pause

    def abandoned(self, attempt: object) -> None:
        """The connection was given up by its pool."""
        if self._probe is attempt:
            self._probe = None
            self._tell()

    def _tell(self) -> None:
        # Each of them decides anew; while a connection tries for all, they only set their timers.
        for tenant in list(self.tenants):
            tenant.maintain()
