"""A session at the console: the shell around :class:`~pgtrunk_gateway.console.exchange.Exchange`.

A task that reads, runs and writes; it ends with its connection, and whatever it waits for ends with it. A client that
does not read is not served further, one that sends ahead is read up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire.startup import PROTOCOL_3_2
from pgtrunk_gateway.console.exchange import Exchange
from pgtrunk_gateway.console.running import run, undo
from pgtrunk_gateway.errors import GatewayError, InternalError, ProtocolError, QueryCanceled
from pgtrunk_gateway.inbox import Inbox

if TYPE_CHECKING:
    from pgtrunk_gateway.console.calls import Call
    from pgtrunk_gateway.console.console import Console
    from pgtrunk_gateway.console.reply import Reply
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.relay.lifecycle import Lifecycle
    from pgtrunk_gateway.relay.visiting import Visit

__all__ = ["ConsoleSession"]

log = logging.getLogger(__name__)

_UNREAD: Final = 64 << 10
"""Octets that a client may send ahead."""
_UNSENT: Final = 8 << 10
"""Octets of answers that are made before they are sent, and others have their turn."""
_LINGER: Final = 10.0
"""Seconds that a client has to take what is left for it."""


class ConsoleSession(asyncio.Protocol):
    """Takes over the transport of ``session``, which has logged in as ``visit``.

    ``rest`` came behind the login; nothing more will where it is ``over``.
    """

    backend: Backend | None = None
    """What a cancel request looks for: there never is one."""

    def __init__(self, console: Console, session: Lifecycle, visit: Visit, rest: bytes, *, over: bool) -> None:
        self.id = session.id
        self.front = session.front
        self.peer = session.peer
        self.address = session.address
        self.user = visit.user
        self.application_name = visit.application_name
        self.database = visit.database
        self.admin = visit.admin
        self._place = visit.place
        self.transport = session.transport
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is gone."""
        self.since = self.asked_at = self._loop.time()
        self._console = console
        self._exchange = Exchange(fleet=console.others is not None)
        self._inbox = Inbox()
        if rest:
            self._inbox.data_received(rest)
        if over:
            self._inbox.connection_lost(None)
        self._reading = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._said_all = over
        """The client sends no more."""
        self._deadline: asyncio.Timeout | None = None
        self._running: asyncio.Task[Reply] | None = None
        self._reason = "client unexpected eof"
        self._closed = False
        self._linger: asyncio.TimerHandle | None = None
        self.key = console.view.context.cancels.register(self, long=visit.protocol >= PROTOCOL_3_2)
        self._task = self._loop.create_task(self._serve(), name=f"console C-{self.id}")
        self._task.add_done_callback(self._served)

    def __str__(self) -> str:
        return f"C-{self.id}: {self.database}/{self.user}@{self.peer}"

    @property
    def busy(self) -> bool:
        """Whether a command is being run."""
        return self._running is not None

    # -- the transport -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._inbox.data_received(data)
        if len(self._inbox) > _UNREAD and self._reading:
            self._reading = False
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """What it has asked for is still answered, if that does not take long: it may as well be dead."""
        self._said_all = True
        self._inbox.connection_lost(None)
        if self._deadline is not None:
            self._deadline.reschedule(self._loop.time() + _LINGER)
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._close()
        if self._linger is not None:
            self._linger.cancel()
        self.gone.set_result(None)
        if self._place is not None:
            self._place.leave()
        self._console.left(self)

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            await self._write(self._welcome())
            await self._converse()
            await self._write(self._exchange.take())
            self._reason = "client close request"
        except ConnectionError:
            pass
        except TimeoutError:
            self._reason = "client unexpected eof, while its command was waiting"
        except ProtocolViolation as violation:
            self._tell(ProtocolError(str(violation)))
        self._close()

    def _served(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            # A fault of ours: it ends this session, and is logged with all that is known.
            log.error("%s the console failed", self, exc_info=fault)
            self.end(InternalError())

    async def _converse(self) -> None:
        exchange = self._exchange
        while not exchange.ended:
            advanced = exchange.advance()
            if exchange.call is not None:
                await self._run(exchange.call)
            elif not advanced or exchange.size > _UNSENT:
                await self._write(exchange.take())
            if not advanced:
                exchange.feed(await self._read())

    async def _read(self) -> bytes:
        data = await self._inbox.read()
        if not self._reading and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()
        return data

    async def _write(self, data: bytes) -> None:
        if data:
            self.transport.write(data)
        await self._writable.wait()
        # However much is asked for at once, others have their turn.
        await asyncio.sleep(0)

    async def _run(self, call: Call) -> None:
        console = self._console
        # Its own of a fleet: it remembers what there is to undo.
        operations = console.operations if console.others is None else console.others.command()
        self.asked_at = self._loop.time()
        console.stats.xact_count += 1
        begun = False

        async def begin() -> Reply:
            nonlocal begun
            begun = True
            return await run(call, console.view, operations, admin=self.admin, others=console.others)

        self._running = running = self._loop.create_task(begin(), name=f"console C-{self.id} command")
        try:
            async with asyncio.timeout(_LINGER if self._said_all else None) as self._deadline:
                reply = await running
        except asyncio.CancelledError:
            if not self._is_cancelled(running):
                raise
            # One that was cancelled before it began has paused nothing; somebody else may have.
            if begun:
                await undo(call, operations)
            self._exchange.failed(QueryCanceled())
        except GatewayError as error:
            self._exchange.failed(error)
        else:
            self._exchange.done(reply)
        finally:
            self._running = self._deadline = None

    @staticmethod
    def _is_cancelled(running: asyncio.Task[Reply]) -> bool:
        """Whether a cancel request came for the command, and it is not the session that ends."""
        task = asyncio.current_task()
        return running.cancelled() and task is not None and not task.cancelling()

    @property
    def waits(self) -> bool:
        """Whether a cancel request has something to end."""
        return self._running is not None

    def cancel(self) -> None:
        """A cancel request: PAUSE waits no longer, and there is no pause."""
        if self._running is not None:
            self._running.cancel()

    def _welcome(self) -> bytes:
        welcome = [server.authentication_ok()]
        welcome += [server.parameter_status(name, value) for name, value in self._console.parameters.items()]
        welcome += [server.backend_key_data(self.key.pid, self.key.secret), server.ready()]
        return b"".join(welcome)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, error: GatewayError) -> None:
        """Ends the session with ``error``: the gateway stops, or an administrator wants it so."""
        if not self._closed:
            self._tell(error)
            self._close()

    def _tell(self, error: GatewayError) -> None:
        self._reason = error.message
        last = self._exchange.take()
        last += server.error(
            error.sqlstate, error.message, severity="FATAL", detail=error.detail or "", hint=error.hint or ""
        )
        self.transport.write(last)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        context = self._console.view.context
        context.cancels.forget(self.key)
        if self._task is not asyncio.current_task():
            self._task.cancel()
        if context.config.log_disconnections:
            log.info("%s closing because: %s (age=%ds)", self, self._reason, int(self._loop.time() - self.since))
        self.transport.close()
        self._linger = self._loop.call_later(_LINGER, self.transport.abort)
