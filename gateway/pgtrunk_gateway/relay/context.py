"""What all sessions of a gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pgtrunk_gateway.relay.tally import Tally
from pgtrunk_gateway.tls import TlsKeeper

if TYPE_CHECKING:
    from pgtrunk.wire.startup import CancelRequest
    from pgtrunk_gateway.auth import Found, LoginLimiter, LoginPolicy
    from pgtrunk_gateway.cancel.dispatch import Cancellable
    from pgtrunk_gateway.cancel.keys import CancelKey
    from pgtrunk_gateway.cancel.lane import Lane
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import Deriver
    from pgtrunk_gateway.pool.databases import DatabaseState
    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.relay.lifecycle import Lifecycle
    from pgtrunk_gateway.relay.passage import Ferry
    from pgtrunk_gateway.relay.visiting import Visit
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["Context", "SessionCounters"]


class Cancels(Protocol):
    """The cancel keys of all sessions, and what is done with a request."""

    def register(self, session: Cancellable, *, long: bool = False) -> CancelKey:
        """A key for ``session``, until :meth:`forget`; ``long``: its client speaks protocol 3.2."""
        ...

    def forget(self, key: CancelKey) -> None: ...

    async def serve(self, request: CancelRequest, address: str | None) -> None:
        """Acts on the request of the client at ``address`` (None: a unix socket); returns when the client may be told,
        by closing, that it is done."""

    def cancel(self, backend: Backend) -> None:
        """Cancels what ``backend`` runs, in the background."""


class Door(Protocol):
    """The console."""

    def enter(self, session: Lifecycle, visit: Visit, rest: bytes, *, over: bool) -> None:
        """Goes on with the transport of ``session``; ``rest`` came behind its login, and no more will if ``over``."""


@dataclass(slots=True)
class SessionCounters:
    """Totals since the gateway started."""

    opened: int = 0
    admitted: int = 0
    refused: int = 0
    """Logins that were refused, for whatever reason."""
    closed: int = 0
    early_queries: int = 0
    """Queries that ran before the handshake of their connection was complete (quic_early_data = read-only)."""


async def nobody(database: DatabaseConfig, user: str) -> None:
    """Where there is no auth_query."""


@dataclass(slots=True, kw_only=True)
class Context:
    """The gateway as its sessions see it."""

    config: Config
    catalogue: Catalogue
    policy: LoginPolicy
    limiter: LoginLimiter
    cancels: Cancels
    lanes: Mapping[int, Lane] = field(default_factory=dict)
    """Cancels that are on their way to peers, by peer_id."""
    derive: Deriver
    pool: Callable[[DatabaseConfig, str], Pool]
    """The pool of a database for a client's user."""
    random: Callable[[int], bytes]
    lookup: Callable[[DatabaseConfig, str], Awaitable[Found | None]] = nobody
    """What auth_query knows of a user, for a login to a database."""
    console: Door | None = None
    """What serves the database `pgbouncer`."""
    replicate: Ferry | None = None
    """What goes on with clients that replicate, once they are logged in."""
    tls: TlsKeeper = field(default_factory=TlsKeeper)
    """How clients may come in over TCP."""
    sessions: set[Lifecycle] = field(default_factory=set)
    """All of them, those in their login too."""
    tally: Tally = field(default_factory=Tally)
    """How many sessions there are, by database and user."""
    databases: dict[str, DatabaseState] = field(default_factory=dict)
    """What the console has said about databases."""
    draining: bool = False
    """No new sessions."""
    has_moment: Callable[[asyncio.BaseTransport], bool] | None = None
    """Whether a session still has time to move before it counts that the gateway is draining (GOAWAY)."""
    suspended: bool = False
    """Nobody is read (SUSPEND)."""
    closing_idle: bool = False
    """Sessions end as soon as they are outside a transaction."""
    counters: SessionCounters = field(default_factory=SessionCounters)
    counted: Callable[[int], None] | None = None
    """Is told how many sessions there are, each time that it changes."""
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def admitted(self) -> int:
        """Sessions that count against max_client_conn."""
        return self.tally.total

    def session_begins(self, session: Lifecycle) -> None:
        self.sessions.add(session)
        self.counters.opened += 1
        self._emptied.clear()
        self._count()

    def session_goes_on(self, session: Lifecycle, other: Lifecycle) -> None:
        """``other`` has taken the place of ``session``, and is the same to whoever counts them."""
        self.sessions.discard(session)
        self.sessions.add(other)

    def session_ends(self, session: Lifecycle) -> None:
        self.sessions.discard(session)
        self.counters.closed += 1
        if not self.sessions:
            self._emptied.set()
        self._count()

    def _count(self) -> None:
        if self.counted is not None:
            self.counted(len(self.sessions))

    async def sessions_end(self, timeout: float) -> bool:
        """Waits until there is no session, at most ``timeout`` seconds (0: no limit) -> whether there is none."""
        if self.sessions:
            try:
                async with asyncio.timeout(timeout or None):
                    await self._emptied.wait()
            except TimeoutError:
                return False
        return True
