"""A connection to Postgres for auth_query and nothing else. Questions are pipelined, answers come in their order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import MessageReader
from pgtrunk_gateway.auth import Answer, Found, request
from pgtrunk_gateway.errors import GatewayError, LookupFailed
from pgtrunk_gateway.pool.connect import log_in
from pgtrunk_gateway.pool.primary import HostList

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Line", "Times"]

log = logging.getLogger(__name__)

_LIMIT: Final = 1 << 20
"""Octets of one message of an answer."""


@dataclass(frozen=True, slots=True)
class Times:
    """In seconds; 0: no limit."""

    connect: float
    """server_connect_timeout."""
    idle: float
    """server_idle_timeout."""
    lifetime: float
    """server_lifetime; 0: it is closed as soon as nothing is asked any more."""


class Line(asyncio.Protocol):
    """Connects at once. ``first``: SQL that goes ahead of the first question. ``closed`` is told when it has ended.

    ``host``: the list of servers that the target is, where it is one.
    """

    def __init__(
        self,
        target: Target,
        times: Times,
        *,
        first: str,
        derive: Deriver,
        tune: SocketTuner,
        closed: Callable[[Line], None],
        host: Host | None = None,
    ) -> None:
        self.target = target
        self.opened = False
        """Whether the login is done."""
        self.pid = 0
        """Process id in Postgres, 0 where unknown."""
        self._times = times
        self._first = first
        self._derive = derive
        self._tune = tune
        self._closed = closed
        self._host = host
        self._asked: deque[tuple[Answer, asyncio.Future[Found | None]]] = deque()
        self._reader = MessageReader(_LIMIT)
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._coming = 0
        """Who will ask as soon as it is open."""
        self._retired = False
        self._gone = False
        self._loop = asyncio.get_running_loop()
        self._born = self._loop.time()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._opening = self._loop.create_task(self._open(), name="open auth_query")

    async def ask(self, query: str, user: str) -> Found | None:
        """Asks for ``user``. Raises :class:`ConnectionError` where the connection is lost, what :func:`log_in` raises,
        and :class:`LookupFailed`."""
        self._coming += 1
        try:
            # A future, and not the task: those who wait must not be cancelled when it is.
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            self._coming -= 1
            self._rest()
            raise
        self._coming -= 1
        if self._transport is None or self._gone:
            raise ConnectionResetError("the connection is closed")
        answer: asyncio.Future[Found | None] = self._loop.create_future()
        self._asked.append((Answer(), answer))
        self._rest()
        self._transport.write(request(query, user))
        return await answer

    def retire(self) -> None:
        """It closes when nothing is asked any more."""
        self._retired = True
        self._rest()

    def abort(self) -> None:
        """Ends it now."""
        self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionAbortedError("the connection was given up"))

    async def ended(self) -> None:
        """Returns when nothing of it is left."""
        await asyncio.gather(self._opening, return_exceptions=True)

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            opened = await self._log_in()
        except GatewayError as error:
            self._end(error)
            return
        self._transport, self.opened = opened.transport, True
        self.pid = opened.handshake.key.pid if opened.handshake.key is not None else 0
        log.info("auth_query: %s@%s new connection to server (pid=%d)", self.target.user, self.target, self.pid)
        opened.transport.set_protocol(self)
        opened.transport.resume_reading()
        self._asked.append((Answer(), self._loop.create_future()))
        opened.transport.write(client.query(self._first.encode()))
        self._ready.set_result(None)
        self.data_received(opened.rest)

    async def _log_in(self) -> Opened:
        timeout, derive, tune = self._times.connect, self._derive, self._tune
        if isinstance(self._host, HostList):
            return await self._host.find(self.target, name="auth_query", timeout=timeout, derive=derive, tune=tune)
        return await log_in(self.target, timeout=timeout, derive=derive, tune=tune)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (message := self._reader.next()) is not None:
                self._message(*message)
        except ProtocolViolation as error:
            self._fail(str(error))

    def _message(self, kind: int, body: bytes) -> None:
        if not self._asked:
            # Between two questions Postgres says only what it says by itself; an error is its farewell.
            return
        answer, future = self._asked[0]
        answer.feed(kind, body)
        if not answer.done:
            return
        self._asked.popleft()
        if not future.done():
            try:
                future.set_result(answer.result())
            except LookupFailed as error:
                _refuse(future, error)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionResetError(f"server conn crashed? ({exc})" if exc else "server conn crashed?"))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Sets the clock where nothing is asked, and stops it where something is."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._transport is None or self._asked or self._coming or self._gone:
            return
        times = self._times
        if self._retired or self._loop.time() >= self._born + times.lifetime:
            self._bye()
        elif times.idle:
            self._idle = self._loop.call_later(times.idle, self._bye)

    def _bye(self) -> None:
        if self._transport is not None:
            self._transport.write(client.TERMINATE_MESSAGE)
            self._transport.close()
        self._end(ConnectionAbortedError("the connection has been closed"))

    def _fail(self, reason: str) -> None:
        log.warning("auth_query: connection to server %s closed because: %s", self.target, reason)
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionResetError(reason))

    def _end(self, error: ConnectionError | GatewayError) -> None:
        if self._gone:
            return
        self._gone = True
        if self._idle is not None:
            self._idle.cancel()
        _refuse(self._ready, error)
        for _, future in self._asked:
            _refuse(future, error)
        self._asked.clear()
        self._closed(self)


def _refuse(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Whoever waited may be gone by now; nobody else reads it.
        future.exception()
