"""One driver's connection, and the stream behind it: bytes, pauses, FIN and reset go both ways.

Nothing is held back but what a driver says before it has its stream, which is its first packet. An end of the stream is
told to the driver in Postgres's words, where the bytes that it has got leave room for them. It knows no sockets: any
two transports will do.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING, TypeVar, cast

from pgtrunk.errors import PgtrunkError, ProtocolViolation, SessionLost
from pgtrunk.half_close import half_close
from pgtrunk.sidecar.first_words import FirstWords
from pgtrunk.sidecar.messages import Answers, Greeting
from pgtrunk.sidecar.owed import Owed
from pgtrunk.sidecar.stream_end import StreamEnd
from pgtrunk.sidecar.unbound import Unbound
from pgtrunk.wire import backend
from pgtrunk.wire.hints import hint_for
from pgtrunk.wire.startup import CancelRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from pgtrunk.trunk import Opened

    P = TypeVar("P", bound=asyncio.BaseProtocol)

    class Exchange(Protocol):
        """What a session asks of those it belongs to."""

        def joined(self, session: Session) -> None:
            """Called once, when the driver is connected."""
            ...

        async def open_session(self, factory: Callable[[], P]) -> Opened[P]: ...

        async def open_cancel(self, factory: Callable[[], P], request: CancelRequest) -> Opened[P]: ...

        def left(self, session: Session) -> None:
            """Called once, when nothing of the session is left."""
            ...


__all__ = ["Session"]

logger = logging.getLogger("pgtrunk.sidecar")

GREETING_TIMEOUT = 60.0
"""Seconds that a driver may take to say what it wants."""

HELD_MAX = 64 << 10
"""Octets that a driver may say before it has its stream; then it is not read. Drivers wait by themselves."""

LINGER = 5.0
"""Seconds without progress after which a driver is not waited for that neither takes its last bytes nor closes."""


class Session(asyncio.Protocol):
    """What a driver's transport is given; it makes the `StreamEnd` for the other one.

    It ends when either side does. A FIN of the driver is passed on, and answers still come; the gateway's FIN, or the
    loss of the stream, is the end of the session.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._greeting = Greeting()
        self._owed = Owed()
        self._answers = Answers(self._owed)
        self._first = FirstWords()
        self._driver: asyncio.Transport
        self._stream: asyncio.Transport | None = None
        self._unbound: Unbound | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_finished = False  # the driver's FIN came
        self._is_over = False  # nothing is passed on any more
        self._is_gone = False  # the driver's transport is closed
        self.link: int | None = None
        """The number of the QUIC connection that carries the session."""

    def __repr__(self) -> str:
        state = "over" if self._is_over else "open" if self._stream else "waiting" if self._opening else "silent"
        return f"<Session {state} {self._answers!r}>"

    @property
    def pid(self) -> int | None:
        """In the key by which a cancel names this session; None until it has logged in."""
        key = self._answers.key
        return None if key is None else key.pid

    def is_named_by(self, request: CancelRequest) -> bool:
        """Whether a cancel is for this session. Sessions at several gateways may have the same pid, not the secret."""
        key = self._answers.key
        return key is not None and key.pid == request.pid and hmac.compare_digest(key.secret, request.secret)

    @property
    def is_silent(self) -> bool:
        """Whether the driver has not said yet what it wants."""
        return self._greeting.packet is None

    @property
    def is_cancel(self) -> bool:
        return isinstance(self._greeting.packet, CancelRequest)

    # The driver's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._driver = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_later(GREETING_TIMEOUT, self._driver.abort)
        self._exchange.joined(self)

    def data_received(self, data: bytes) -> None:
        if self._stream is not None:
            self._owed.asked(data)
            if self._first.is_kept:
                self._first.add(data)
            self._stream.write(data)
        elif not self._is_over:
            self._hold(data)

    def eof_received(self) -> bool:
        self._has_finished = True
        if self._stream is not None and not self._is_over:
            if not self.is_cancel:
                self._stream.write_eof()
            return True
        # Who sends a cancel need not wait for it. Who wants a session and says no more, wants none.
        return self._opening is not None and self.is_cancel

    def connection_lost(self, exc: BaseException | None) -> None:
        self._is_over = self._is_gone = True
        self._stop_timer()
        if self._opening is not None and not self.is_cancel:
            self._opening.cancel()
        if self._stream is not None and not self.is_cancel:
            # Who has said all and left without reading the answers is heard to the end, as by a Postgres.
            if self._has_finished:
                self._stream.close()
            else:
                self._stream.abort()
        self._leave_if_done()

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.pause_reading()

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.resume_reading()

    # Before there is a stream.

    def _hold(self, data: bytes) -> None:
        try:
            answer = self._greeting.feed(data)
        except ProtocolViolation as exc:
            self._refuse(exc)
            return
        if answer:
            self._driver.write(answer)
        if self._greeting.packet is None:
            return
        if self._opening is None:
            self._stop_timer()
            self._opening = self._loop.create_task(self._open(), name="pgtrunk sidecar session")
            # Not a `finally` in the task: one that is cancelled before its first step never gets there.
            self._opening.add_done_callback(self._opening_ended)
        if len(self._greeting.data) > HELD_MAX:
            self._driver.pause_reading()

    async def _open(self) -> None:
        packet = self._greeting.packet
        try:
            if isinstance(packet, CancelRequest):
                opened = await self._exchange.open_cancel(self._stream_end, packet)
            else:
                opened = await self._exchange.open_session(self._stream_end)
            self._begin(opened.transport, opened.link)
        except PgtrunkError as exc:
            self._refuse(exc)

    def _open_again(self) -> None:
        self.link = None
        self._owed = Owed()
        self._answers = Answers(self._owed)
        self._greeting.data = b""
        self._hold(self._first.take())

    def _opening_ended(self, _: asyncio.Task[None]) -> None:
        self._opening = None
        if self._stream is None and not self._is_over:
            # Whatever it was, the driver must not wait for it.
            self._driver.abort()
        self._leave_if_done()

    def _stream_end(self) -> StreamEnd:
        return StreamEnd(self)

    def _begin(self, stream: asyncio.Transport, link: int) -> None:
        self._stream, self.link = stream, link
        self._unbound = Unbound() if stream.get_extra_info("transport") == "tcp" else None
        if not self._is_over:
            # First, since the write may pause it again.
            self._driver.resume_reading()
        held, self._greeting.data = self._greeting.data, b""
        self._owed.begin(int.from_bytes(held[:4], "big"))
        self._owed.asked(held)
        if not self.is_cancel:
            self._first.begin(stream, held)
        stream.write(held)
        if self._is_over:
            # Only a cancel gets here without its driver; a session's task was cancelled.
            stream.close()

    def _refuse(self, error: PgtrunkError) -> None:
        logger.info("%s refused: %s", "cancel" if self.is_cancel else "session", error)
        # Nobody reads an answer to a cancel.
        self._finish(b"" if self.is_cancel else _fatal(error.sqlstate, str(error)))

    # The stream's side.

    def from_stream(self, data: bytes) -> None:
        """The gateway says something."""
        # The transport closes when it cannot write; that is reported a moment later, and until then it takes nothing.
        if not (self._is_over or self._driver.is_closing()):
            if self._unbound is not None:
                data = self._unbound.feed(data)
                self._unbound = None if self._unbound.is_done else self._unbound
            self._answers.feed(data)
            self._driver.write(data)

    def stream_finished(self) -> None:
        """The gateway says no more, and reads no more: it ends sessions so, after its last words."""
        self._finish()

    def stream_lost(self, error: BaseException | None) -> None:
        """The stream is closed."""
        stream, self._stream = self._stream, None
        if self._first.is_kept and not (self._is_over or self._has_finished):
            self._open_again()
        elif isinstance(error, PgtrunkError) and stream is not None and not self.is_cancel:
            logger.info("session lost: %s", error)
            self._end_with(error.sqlstate, str(error), self._hint(stream, error))
        else:
            self._finish()
        self._leave_if_done()

    def pause_driver(self) -> None:
        """The stream takes no more now."""
        if not (self._is_over or self._driver.is_closing()):
            self._driver.pause_reading()

    def resume_driver(self) -> None:
        if not (self._is_over or self._driver.is_closing()):
            self._driver.resume_reading()

    # The end.

    def dismiss(self, sqlstate: str, words: str) -> None:
        """Ends the session from here."""
        if self._opening is not None:
            self._opening.cancel()
        stream = self._stream
        if stream is not None:
            stream.abort()
        if self.is_silent or self.is_cancel:
            self._finish()
        else:
            self._end_with(sqlstate, words, "" if stream is None else self._hint(stream))

    def abort(self) -> None:
        """Ends it without a word."""
        self._is_over = True
        if self._opening is not None:
            self._opening.cancel()
        if self._stream is not None:
            self._stream.abort()
        self._driver.abort()

    def _hint(self, stream: asyncio.Transport, error: PgtrunkError | None = None) -> str:
        """What the driver is told of a retry, now that what the stream has not sent will never leave."""
        outbox = stream.get_extra_info("outbox")
        departed = self._owed.written if outbox is None else outbox.departed
        sent = self._owed.has_left(departed) and not (isinstance(error, SessionLost) and error.retry_safe)
        return hint_for(sent=sent, in_transaction=self._owed.in_transaction)

    def _end_with(self, sqlstate: str, words: str, hint: str) -> None:
        if self._is_over:
            return
        if self._answers.is_between_messages:
            self._finish(_fatal(sqlstate, words, hint))
        else:
            # Anything more would be taken for the rest of a row.
            self._is_over = True
            self._driver.abort()

    def _finish(self, last_words: bytes = b"") -> None:
        """Says the last words and the FIN, and then waits for the driver's.

        A socket that is closed while it has data unread is reset, and takes along what the driver has not read.
        """
        if self._is_over:
            return
        self._is_over = True
        if self._driver.is_closing():
            return
        if last_words:
            self._driver.write(last_words)
        if self._has_finished:
            self._driver.close()
            return
        half_close(self._driver)
        if self._driver.is_closing():
            return
        self._driver.resume_reading()
        self._linger(self._driver.get_write_buffer_size())

    def _linger(self, size: int) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(LINGER, self._look_after, size)

    def _look_after(self, before: int) -> None:
        size = self._driver.get_write_buffer_size()
        if 0 < size < before:
            self._linger(size)
        else:
            self._driver.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave_if_done(self) -> None:
        if self._is_gone and self._stream is None and self._opening is None:
            self._exchange.left(self)


def _fatal(sqlstate: str, words: str, hint: str = "") -> bytes:
    return backend.error(sqlstate, words, severity="FATAL", hint=hint)
