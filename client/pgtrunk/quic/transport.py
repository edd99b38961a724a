"""One bidirectional QUIC stream as an asyncio.Transport.

What a protocol may rely on: exact ``bytes``, in order; ``pause_reading`` stops the far end once its window is used up;
``pause_writing``/``resume_writing`` at the watermarks; ``connection_lost`` once, never from within a call that the
protocol makes. It knows its driver and its stream, no packets and no sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from pgtrunk.errors import SessionLost
from pgtrunk.session_transport import SessionTransport

from .stream import NEVER, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import ConnectionDriver

__all__ = ["StreamTransport"]

NO_ERROR = 0
"""Application error code of a stream that is merely over."""

_NOTHING: deque[bytes] = deque(maxlen=0)
"""What transports have unread that never paused: a deque of one's own takes as much memory as all the rest of one."""


class StreamTransport(SessionTransport):
    """See asyncio.Transport; only what a stream adds or does otherwise is described here.

    ``get_extra_info`` knows 'peername', 'sockname', 'stream_id', 'transport' ("quic"), 'quic_connection' (the driver),
    'peercert' (the verified client certificate or None) and 'early' (whether the handshake is still under way: what is
    read then may be a replay, what is written leaves as early data). It has no 'socket' and no 'ssl_object': asyncpg
    would use them.
    """

    __slots__ = ("_driver", "_eof_waits", "_owed", "_stream", "_unread")

    def __init__(self, driver: ConnectionDriver, stream: Stream) -> None:
        super().__init__(driver.quic.limits.high_water, driver.quic.limits.low_water)
        self._driver = driver
        self._stream = stream
        self._unread = _NOTHING
        self._owed = 0  # bytes that the protocol got, and whose credit waits because it paused
        self._eof_waits = False  # the FIN came, but not to the protocol yet

    def __repr__(self) -> str:
        state = "lost" if self._done else "closing" if self._closing else "paused" if self._paused else "open"
        return f"<StreamTransport {self._stream.stream_id} {state} of {self._driver!r}>"

    # -- its beginning, and extra info

    def start(self, accept: Callable[[StreamTransport], asyncio.BaseProtocol]) -> None:
        """Have ``accept`` make the protocol of a stream that the peer opened; for the driver."""
        self.set_protocol(asyncio.Protocol())
        try:
            self.set_protocol(accept(self))
            self._protocol.connection_made(self)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:  # see _deliver
            self._blame(exc, "connection_made")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "stream_id":
            return self._stream.stream_id
        if name == "outbox":
            return self._stream.sender
        return self._driver.get_extra_info(name, default)

    @property
    def is_asking(self) -> bool:
        """Whether something is to be answered; known to those who look at what passes."""
        return False

    # -- reading

    @property
    def unread(self) -> int:
        """Bytes received, gaps included, that the protocol has not consumed."""
        return self._stream.unread

    def pause_reading(self) -> None:
        """Deliver nothing more and give no credit; what arrives within the window waits here, counted in the budget."""
        if not self._closing:
            self._paused = True

    def resume_reading(self) -> None:
        if not self._paused or self._closing:
            return
        self._paused = False
        if self._owed:
            owed, self._owed = self._owed, 0
            self._consume(owed)
        if self._unread or self._eof_waits:
            # Never from within the protocol's own call: that is what it expects of TCP too.
            self._driver.loop.call_soon(self._deliver_unread)

    def receive(self, data: bytes, end_of_stream: bool) -> None:
        """Data arrived; for the driver."""
        if self._closing:
            return
        if end_of_stream:
            self._eof_waits = True
        if data:
            if self._paused or self._unread:
                if self._unread is _NOTHING:
                    self._unread = deque()
                self._unread.append(data)
                return
            self._deliver(data)
        if self._eof_waits and not self._paused and not self._unread:
            self._deliver_eof()

    def _deliver(self, data: bytes) -> None:
        try:
            self._receive(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            # As asyncio does: one protocol's mistake ends its own transport, not the connection that others share.
            self._blame(exc, "data_received")
            return
        if self._closing:
            return  # all that was unread has been dropped, this too
        if self._paused:
            self._owed += len(data)
        elif self._driver.quic.consume(self._stream, len(data)):
            self._driver.touch()

    def _deliver_unread(self) -> None:
        while self._unread and not self._paused and not self._closing:
            self._deliver(self._unread.popleft())
        if self._eof_waits and not (self._unread or self._paused or self._closing):
            self._deliver_eof()

    def _consume(self, size: int) -> None:
        if self._driver.quic.consume(self._stream, size):
            self._driver.touch()

    # -- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_written:
            raise RuntimeError("cannot write after write_eof()")
        sender = self._stream.sender
        # The far end may have asked us to stop (STOP_SENDING), and what is written then has nowhere to go.
        if self._closing or not data or sender._reset_error_code is not None:
            return
        sender.write(data)
        if not self._stream.queued:
            self._driver.quic.activate(self._stream)
        self._driver.touch()
        if len(sender._buffer) > self._high and not self._write_paused:
            self._pause_writer()

    def write_eof(self) -> None:
        if self._eof_written or self._closing:
            return
        self._eof_written = True
        self._finish_writing()

    def _finish_writing(self) -> None:
        sender = self._stream.sender
        if sender._reset_error_code is None and sender._buffer_fin is None:
            self._driver.quic.write(self._stream, b"", True)
            self._driver.touch()

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet acknowledged."""
        return len(self._stream.sender._buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._set_marks(high, low, self._driver.quic.limits.high_water)
        if self._write_paused:
            self._stream.low_mark = self._low
        elif len(self._stream.sender._buffer) > self._high:
            self._pause_writer()

    def _pause_writer(self) -> None:
        self._write_paused = True
        self._stream.low_mark = self._low
        self._call(self._protocol.pause_writing)

    def resume_writer(self) -> None:
        """The buffer has drained to the low-water mark; for the driver."""
        if self._write_paused:
            self._write_paused = False
            if not self._done:
                self._call(self._protocol.resume_writing)

    # -- the end

    def close(self) -> None:
        """Send what was written and the FIN, then report ``connection_lost(None)``. Nothing more is delivered."""
        if self._closing:
            return
        self._closing = True
        self._finish_writing()
        self._stop_reading(NO_ERROR)
        self._driver.flush_then_drop(self)

    def abort(self) -> None:
        """Drop everything, both ways: RESET_STREAM and STOP_SENDING."""
        if self._done:
            return
        self._driver.quic.reset(self._stream, NO_ERROR)
        self._end(None)

    def _stop_reading(self, error_code: int) -> None:
        self._unread.clear()
        self._owed = 0
        self._eof_waits = False
        self._driver.quic.stop(self._stream, error_code)
        self._driver.touch()

    @property
    def is_flushed(self) -> bool:
        """Whether all that was written, the FIN too, has left at least once."""
        return self._stream.sender.buffer_is_empty

    def drop(self) -> None:
        """All is flushed after close(); for the driver."""
        self._end(None)

    def on_reset(self, error_code: int) -> None:
        """The far end gave up its half, and with it the session; unless it only obeys our STOP_SENDING."""
        if not self._closing:
            self._driver.quic.reset(self._stream, error_code)
            self._end(self._lost(f"stream {self._stream.stream_id} was reset by the other end (code {error_code})"))

    def on_stop_sending(self) -> None:
        """The far end reads no more. What it has sent may still be on its way, so the session ends with that."""
        self._stream.low_mark = NEVER
        self.resume_writer()
        if self._closing:
            self._end(None)

    def lose(self, error: SessionLost) -> None:
        """The connection is gone; for the driver. A stream that both ends had closed has lost nothing by it."""
        self._end(None if self._closing and self._eof_read else self._lost(str(error), error.forgotten))

    def _lost(self, words: str, forgotten: bool = False) -> SessionLost:
        """What is known here of a loss: where nothing was ever sent, nothing was asked for."""
        return SessionLost(words, sent=self._stream.sender.departed > 0, forgotten=forgotten)

    def _end(self, error: SessionLost | None) -> None:
        if self._done:
            return
        self._done = self._closing = True
        self._stop_reading(NO_ERROR)
        self._driver.loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: SessionLost | None) -> None:
        self._driver.release(self._stream)
        self._stream.low_mark = NEVER
        self._tell_lost(error)

    # -- calling the protocol

    def _blame(self, exc: BaseException, method: str) -> None:
        self._report(exc, method)
        if not self._done:
            self._driver.quic.reset(self._stream, NO_ERROR)
            self._end(SessionLost(f"stream {self._stream.stream_id} was aborted: its protocol failed in {method}"))

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        return self._driver.loop
