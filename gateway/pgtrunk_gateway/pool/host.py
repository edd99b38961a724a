"""What failed connections have taught about one server, shared by all pools on it.

While a server is down, one connection tries for all, after pauses that grow; the first that succeeds, or is refused by
a server that is up, ends that for everybody at once. A refusal that is about a user or a database is the pool's own
affair, and is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pgtrunk_gateway.pool.backoff import Backoff

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError

__all__ = ["Host", "Tenant"]


class Tenant(Protocol):
    """A pool, as its server sees it."""

    def maintain(self) -> None:
        """What it waited for may be possible now."""


class Host:
    """One address that pools connect to. ``retry``: the longest pause, in seconds, now (server_login_retry)."""

    def __init__(self, retry: Callable[[], float]) -> None:
        self.tenants: set[Tenant] = set()
        self.backoff = Backoff()
        self._retry = retry
        self._probe: object | None = None
        """The connection that tries for all."""
        self._loop = asyncio.get_running_loop()

    @property
    def admits(self) -> int | None:
        """How many connections may be opened now, ``retry_at`` aside; None: any number."""
        if not self.backoff.failures:
            return None
        return 0 if self._probe is not None else 1

    def begins(self, attempt: object) -> None:
        """A connection is tried; ``attempt`` is its name in the calls that follow, one of which is made."""
        if self.backoff.failures and self._probe is None:
            self._probe = attempt

    def succeeded(self) -> None:
        """The server has answered."""
        was_down = bool(self.backoff.failures)
        self.backoff.succeeded()
        self._probe = None
        if was_down:
            self._tell()

    def failed(self, attempt: object, error: GatewayError, began: float) -> None:
        """The connection that was begun at ``began`` has failed."""
        if self._probe is attempt:
            self._probe = None
        if self.backoff.failed(error, began=began, now=self._loop.time(), retry=self._retry()):
            self._tell()

    def abandoned(self, attempt: object) -> None:
        """The connection was given up by its pool."""
        if self._probe is attempt:
            self._probe = None
            self._tell()

    def _tell(self) -> None:
        # Each of them decides anew; while a connection tries for all, they only set their timers.
        for tenant in list(self.tenants):
            tenant.maintain()
