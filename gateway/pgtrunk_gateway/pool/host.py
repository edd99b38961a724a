"""What connections have taught about one server, shared by all pools on it.

While a server is down, one connection tries for all, after pauses that grow; the first that succeeds, or is refused by
a server that is up, ends that for everybody at once. A refusal that is about a user or a database is the pool's own
affair, and is not known here.

A server is asked for protocol 3.2. A Postgres that does not speak it says so and goes on; other servers refuse such a
startup packet, close the connection, or say nothing at all. Those are asked for 3.0 from then on, which the login that
finds it out tries at once, or where the server said nothing, the next one. A server may be replaced, or it was just
slow, or on its way down: after a day it is asked for 3.2 again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2
from pgtrunk_gateway.pool.backoff import Backoff

if TYPE_CHECKING:
    from pgtrunk_gateway.config.entries import Place
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["Host", "Tenant"]

_REMEMBERED: Final = 86_400.0
"""Seconds for which a server that does not understand protocol 3.2 is asked for 3.0."""


class Tenant(Protocol):
    """A pool, as its server sees it."""

    def maintain(self) -> None:
        """What it waited for may be possible now."""

    def desert(self, place: Place, reason: str, *, coming: bool = False) -> None:
        """Its backends at ``place`` are of no use any more.

        ``coming``: nor are the connections that are being opened, wherever they lead.
        """
        ...


class Host:
    """One address that pools connect to. ``retry``: the longest pause, in seconds, now (server_login_retry)."""

    def __init__(self, retry: Callable[[], float]) -> None:
        self.tenants: set[Tenant] = set()
        self.backoff = Backoff()
        self._retry = retry
        self._probe: object | None = None
        """The connection that tries for all."""
        self._old_until = 0.0
        """Until when it is taken not to understand protocol 3.2."""
        self._doubted = False
        """Whether it said nothing when it was asked for that."""
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
        tried_for_all = self._probe is attempt
        if tried_for_all:
            self._probe = None
        is_news = self.backoff.failed(error, began=began, now=self._loop.time(), retry=self._retry())
        if is_news or tried_for_all:
            self._tell()

    def lost(self, backend: Backend, reason: str) -> None:
        """A backend has ended."""
        return

    def abandoned(self, attempt: object) -> None:
        """The connection was given up by its pool."""
        if self._probe is attempt:
            self._probe = None
            self._tell()

    def _tell(self) -> None:
        # Each of them decides anew; while a connection tries for all, they only set their timers.
        for tenant in list(self.tenants):
            tenant.maintain()

    # -- the protocol --------------------------------------------------------------------------------------------------

    def next_protocol(self) -> int:
        """What the next startup packet is to ask for. A doubt is good for one of them."""
        doubted, self._doubted = self._doubted, False
        return PROTOCOL_3_0 if doubted or self._loop.time() < self._old_until else PROTOCOL_3_2

    def took(self, asked: int) -> None:
        """A login that asked for this protocol has succeeded, after what asked for a newer one had failed, if any."""
        now = self._loop.time()
        if asked > PROTOCOL_3_0:
            self._old_until, self._doubted = 0.0, False
        elif now >= self._old_until:
            # Not anew by each login, or it would never be asked again.
            self._old_until = now + _REMEMBERED

    def said_nothing(self) -> None:
        """It has let a login that asked for a newer protocol wait until there was no more time."""
        self._doubted = True
