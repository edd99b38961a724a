"""asyncpg over a stream, by documented parameters of asyncpg only.

asyncpg reaches the network through the event loop that it is given: for a host that starts with "/" it calls
``loop.create_unix_connection``, without TLS and without touching a socket. So each connection gets a loop of its own,
which is the running one but for that method. The first call is the session and takes a stream of the trunk; every
later one is a CancelRequest and goes outside the cap, on the same QUIC connection: a cancel that waited at the cap
would wait for the very query that it is to end.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from pgtrunk.anticipation import Anticipation
from pgtrunk.connection import AGAIN
from pgtrunk.dsn import check_session_arguments
from pgtrunk.errors import LoginTimeout, UsageError
from pgtrunk.login_memory import LoginMemory
from pgtrunk.pooled import PooledSessions
from pgtrunk.refusal import Limit, seconds
from pgtrunk.trunk import CANCEL_TIMEOUT
from pgtrunk.witness import Undertaking, Witness

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk.address import Address
    from pgtrunk.trunk import Opened, Trunk

__all__ = ["AsyncpgAdapter", "keep_session"]

CONNECT_TIMEOUT = 60.0
"""asyncpg's own default for ``timeout``."""

NO_FILE = os.path.join(__file__, "none")
"""A path that never exists: a file has no entries. asyncpg would take the password of localhost from ~/.pgpass."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def keep_session(_connection: asyncpg.Connection) -> None:
    """The ``reset`` of a trunk's pool: nothing.

    asyncpg's own costs a round trip, and resets a backend that a transaction-pooling gateway has given to somebody
    else by then. An open transaction is still rolled back by asyncpg, before this is called.
    """


class AsyncpgAdapter:
    """Makes asyncpg connections and pools on one trunk."""

    def __init__(
        self, trunk: Trunk, address: Address, *, acquire_timeout: float, verified: bool, anticipates: bool = True
    ) -> None:
        self._trunk = trunk
        self._anticipates = anticipates
        self._memory = LoginMemory()
        self._acquire_timeout = acquire_timeout
        self._verified = verified
        self._pooled = PooledSessions(trunk)
        self._logins: dict[int, StreamLoop] = {}
        trunk.lines.movers.append(self._open_elsewhere)
        # What asyncpg shows as the address of a connection: /pgtrunk/gw.example.net/.s.PGSQL.6432.
        self._place = {"host": f"/pgtrunk/{address.host}", "port": address.port}

    async def connect(self, dsn: str | None, arguments: dict[str, Any]) -> asyncpg.Connection:
        """Opens a session; see `StreamManager.connect`."""
        return (await self._open(dsn, arguments))[0]

    async def _open(
        self, dsn: str | None, arguments: dict[str, Any]
    ) -> tuple[asyncpg.Connection, Opened[asyncio.Protocol]]:
        self._check(dsn, arguments)
        timeout = arguments.pop("timeout", CONNECT_TIMEOUT)
        clock = asyncio.timeout(timeout)
        forced: dict[str, Any] = {
            "timeout": None,
            "ssl": False,
            "direct_tls": False,
            "passfile": NO_FILE,
            **self._place,
        }
        anticipate = self._anticipation(dsn, arguments) if self._anticipates else Anticipation
        loop = StreamLoop(self._trunk, clock, timeout, self._acquire_timeout, anticipate)
        try:
            async with clock:
                while True:
                    forced["loop"] = loop
                    self._logins[id(loop)] = loop
                    try:
                        connection = await asyncpg.connect(dsn, **(arguments | forced))
                        break
                    except Exception as exc:
                        if not self._may_open_again(loop, exc):
                            raise
                    finally:
                        del self._logins[id(loop)]
                    again = loop.again + 1
                    loop = StreamLoop(self._trunk, clock, timeout, self._acquire_timeout)
                    loop.again = again
        except TimeoutError as exc:
            # An AcquireTimeout is a TimeoutError too; only our own clock's stands for the login.
            if not clock.expired():
                raise
            raise LoginTimeout(f"the session was not ready within timeout={seconds(timeout)}: {loop.progress}") from exc
        return connection, loop.take()

    def _may_open_again(self, loop: StreamLoop, error: Exception) -> bool:
        """Whether nothing of a session has run that has failed so, and another will do better."""
        if loop.was_given_up:
            return True
        if isinstance(error, (asyncpg.CannotConnectNowError, asyncpg.AdminShutdownError)):
            # It was on its way when the gateway asked for its connection to be left, and came too late. The next one
            # will be on another.
            return loop._link is not None and self._trunk.lines.is_leaving(loop._link)
        return loop.is_in_vain and loop.again < AGAIN

    def _open_elsewhere(self, link: int) -> None:
        """Sessions that are being opened on a connection that does not answer: nothing has run on them yet, so they
        need not wait for it now that there is another."""
        if self._trunk.lines.is_suspect(link):
            for loop in list(self._logins.values()):
                if loop._link == link:
                    loop.give_up()

    def _anticipation(self, dsn: str | None, arguments: dict[str, Any]) -> Callable[[Any], Anticipation]:
        # A hash, since a DSN may hold a password. Two logins that have the same cost each other a round trip at most.
        who = hash((dsn, str(arguments.get("user")), str(arguments.get("database"))))
        memory = self._memory
        return lambda protocol: Anticipation(protocol, memory, who, self._saved)

    def _saved(self) -> None:
        self._trunk.counters.round_trips_saved += 1

    def create_pool(self, dsn: str | None, arguments: dict[str, Any]) -> asyncpg.Pool:
        """Makes a pool; see `StreamManager.create_pool`."""
        if arguments.get("connect") is not None:
            raise UsageError("connect= of a pool is how the trunk opens its sessions, and cannot be replaced")
        self._check(dsn, arguments)

        async def connect(*args: Any, loop: object, **kwargs: Any) -> asyncpg.Connection:
            # Called by the pool with its own loop, which is ours.
            connection, opened = await self._open(args[0] if args else None, kwargs)
            self._pooled.add(connection, opened)
            return connection

        arguments = {"reset": keep_session} | arguments
        forced: dict[str, Any] = {"loop": self._trunk.loop, "connect": connect}
        return asyncpg.create_pool(dsn, **(arguments | self._pooled.hooks(arguments) | forced))

    def _check(self, dsn: str | None, arguments: dict[str, Any]) -> None:
        self._trunk.check()
        if arguments.get("loop") is not None:
            raise UsageError("loop= is how the trunk carries asyncpg, and cannot be given; the running loop is used")
        check_session_arguments(dsn, arguments, gateway=self._trunk.gateway, verified=self._verified)


class StreamLoop:
    """The loop of one asyncpg connection: the running one, but that connections are streams of a trunk."""

    def __init__(
        self,
        trunk: Trunk,
        clock: asyncio.Timeout,
        timeout: float | None,
        acquire_timeout: float,
        anticipate: Callable[[Any], Anticipation] = Anticipation,
    ) -> None:
        self.anticipate = anticipate
        self._ahead: Anticipation | None = None
        self._trunk = trunk
        self._loop = trunk.loop
        self._clock = clock
        self._timeout = timeout
        self._acquire_timeout = acquire_timeout
        self.was_given_up = False
        self.again = 0
        """How often the session was opened before."""
        self._session: Opened[Any] | None = None
        self._link: int | None = None
        """The connection that the session's stream is on, once it is open."""
        self._undertaking: Undertaking | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def create_future(self) -> asyncio.Future[Any]:
        """asyncpg asks for one when it begins an operation."""
        future = self._loop.create_future()
        if self._undertaking is not None:
            self._undertaking.begin(weakref.ref(future))
        return future

    def give_up(self) -> None:
        """End the session's stream, which is still at its login."""
        if self._session is not None:
            self.was_given_up = True
            self._session.transport.abort()

    def take(self) -> Opened[Any]:
        """The session's stream, once it is open. It refers to this loop: who gets it is alone in having it."""
        session, self._session, self._ahead = self._session, None, None
        assert session is not None
        return session

    # asyncio.current_task(loop) looks a task up by its loop, so this has to be found as the real one.
    def __eq__(self, other: object) -> bool:
        return other is self or other is self._loop

    def __hash__(self) -> int:
        return hash(self._loop)

    @property
    def is_in_vain(self) -> bool:
        """The session's stream has ended, and nothing that was said over it has had an effect."""
        return self._ahead is not None and self._ahead.is_in_vain

    @property
    def progress(self) -> str:
        """How far the session got, for the message of a timeout."""
        if self._link is None:
            return "no stream had been asked for yet (is password= a function that takes long?)"
        return "it had its stream, but the gateway did not end the login; perhaps it waits for a backend"

    async def create_unix_connection(
        self, factory: Callable[[], P], path: str | None = None, **_: object
    ) -> tuple[asyncio.Transport, P]:
        """The first call opens the session's stream, later ones a CancelRequest's."""
        self._trunk.check()
        if self._link is not None:
            return await self._open_cancel(factory, self._link)
        deadline = self._clock.when()
        limit = self._stricter(deadline)
        # The wait for a stream has its own deadline and its own error, which would lose a race with this clock.
        self._set_clock(None)
        opened = await self._trunk.open_stream(lambda: self.anticipate(factory()), limit)
        self._set_clock(deadline)
        self._ahead, protocol = opened.protocol, opened.protocol.protocol
        self._session, self._link = opened._replace(protocol=protocol), opened.link
        self._undertaking = Undertaking(opened.transport.get_extra_info("outbox"))
        self._ahead.hand_to(Witness(protocol, self._undertaking))
        return opened.transport, protocol

    async def create_connection(self, *_: object, **__: object) -> Any:
        raise UsageError("asyncpg asked for a TCP connection in a session that is a stream")

    async def _open_cancel(self, factory: Callable[[], P], link: int) -> tuple[asyncio.Transport, P]:
        limit = Limit("the time for a cancel", CANCEL_TIMEOUT, self._loop.time() + CANCEL_TIMEOUT)
        opened = await self._trunk.open_stream(factory, limit, link=link)
        return opened.transport, opened.protocol

    def _stricter(self, deadline: float | None) -> Limit:
        acquire = Limit("acquire_timeout", self._acquire_timeout, self._loop.time() + self._acquire_timeout)
        if deadline is None or self._timeout is None or acquire.deadline <= deadline:
            return acquire
        return Limit("timeout", self._timeout, deadline)

    def _set_clock(self, when: float | None) -> None:
        # Once it has expired the task is being cancelled, and the clock can no longer be set.
        if not self._clock.expired():
            self._clock.reschedule(when)
