"""A session over TCP as an asyncio.Transport: there at once, while its connection is still to be made.

What a protocol may rely on is what a stream over QUIC gives it: exact ``bytes``, in order; ``pause_reading`` stops the
far end; ``pause_writing``/``resume_writing`` at the watermarks; ``connection_lost`` once, never from within a call that
the protocol makes. What is written before there is a line waits here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pgtrunk.errors import SessionLost, TrunkError
from pgtrunk.session_transport import SessionTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk.tcp.line import Line

__all__ = ["TcpTransport"]

HIGH_WATER: Final = 64 << 10
"""Octets written and not yet sent above which a protocol is paused, unless it sets another mark."""


class TcpTransport(SessionTransport):
    """See asyncio.Transport; only what is different is described here.

    ``get_extra_info`` knows 'transport' ("tcp"), 'outbox' (`pgtrunk.witness`), 'early' (whether there is no line yet:
    what was written has had no effect if it ends so), and once there is a line 'peername', 'sockname' and 'cipher'. It
    has no 'socket' and no 'ssl_object': asyncpg would use them.
    """

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__(HIGH_WATER, HIGH_WATER // 4)
        self._loop = asyncio.get_running_loop()
        self._line: Line | None = None
        self._below: asyncio.Transport | None = None
        self.written = 0
        """Octets, all together."""
        self._held: list[bytes] = []
        self._size = 0  # of what is held
        self._cut: TrunkError | None = None
        self._awaits_line: list[Callable[[], None]] = []
        self.set_protocol(protocol)

    def __repr__(self) -> str:
        state = "lost" if self._done else "closing" if self._closing else "open" if self._line else "connecting"
        return f"<TcpTransport {state}>"

    @property
    def is_wanted(self) -> bool:
        """Whether there is any use in a line."""
        return not self._done

    @property
    def departed(self) -> int:
        """Those of the octets written that may have reached the gateway."""
        return 0 if self._line is None else self._line.departed

    # -- the line

    def attach(self, line: Line) -> None:
        """Here is its line, usable and nobody's."""
        self._line, self._below = line, line.take(self)
        self._below.set_write_buffer_limits(self._high, self._low)
        awaiting, self._awaits_line = self._awaits_line, []
        for callback in awaiting:
            self._call(callback)
        if self._paused:
            line.pause_reading()
        held, self._held, self._size = b"".join(self._held), [], 0
        was_paused, self._write_paused = self._write_paused, False
        line.write(held)
        if self._eof_written:
            line.write_eof()
        if self._closing:
            line.close()
        elif was_paused and not self._write_paused:
            self._call(self._protocol.resume_writing)

    def refuse(self, error: TrunkError) -> None:
        """There will be no line."""
        self._end(error)

    def call_when_confirmed(self, callback: Callable[[], None]) -> None:
        """Calls it when there is a line, if there ever is: as of a QUIC connection that is early."""
        if self._line is None:
            self._awaits_line.append(callback)
        else:
            callback()

    # -- extra info

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "transport":
            return "tcp"
        if name == "outbox":
            return self
        if name == "early":
            return self._line is None
        if name == "cipher" and self._line is not None:
            return self._line.cipher()
        if name in ("peername", "sockname") and self._below is not None:
            return self._below.get_extra_info(name, default)
        return default

    # -- reading: hot

    def received(self, data: bytes) -> None:
        """From the line."""
        if self._closing:
            return
        try:
            self._receive(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            # As asyncio does: one protocol's mistake ends its own transport.
            self._blame(exc, "data_received")

    def finished(self) -> None:
        """From the line: the gateway has ended the session."""
        self._deliver_eof()

    def pause_reading(self) -> None:
        if not (self._closing or self._paused):
            self._paused = True
            if self._line is not None:
                self._line.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            if self._line is not None:
                self._line.resume_reading()

    # -- writing: hot

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_written:
            raise RuntimeError("cannot write after write_eof()")
        if self._closing or not data:
            return
        self.written += len(data)
        if self._line is not None:
            self._line.write(data)
            return
        self._held.append(bytes(data))
        self._size += len(data)
        if self._size > self._high:
            self.pause_writing()

    def write_eof(self) -> None:
        if self._eof_written or self._closing:
            return
        self._eof_written = True
        if self._line is not None:
            self._line.write_eof()

    def get_write_buffer_size(self) -> int:
        """Octets written and not yet taken by the kernel."""
        return self._size if self._below is None else self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._set_marks(high, low, HIGH_WATER)
        if self._below is not None:
            # One of uvloop's that is closed raises.
            if not self._below.is_closing():
                self._below.set_write_buffer_limits(self._high, self._low)
        elif self._size > self._high:
            self.pause_writing()

    def pause_writing(self) -> None:
        """From the line too."""
        if not (self._write_paused or self._done):
            self._write_paused = True
            self._call(self._protocol.pause_writing)

    def resume_writing(self) -> None:
        """From the line."""
        if self._write_paused:
            self._write_paused = False
            if not self._done:
                self._call(self._protocol.resume_writing)

    # -- the end

    def close(self) -> None:
        """Sends what was written, then reports ``connection_lost(None)``. Nothing more is delivered."""
        if self._closing:
            return
        self._closing = True
        if self._line is not None:
            self._line.close()
        elif not self._held:
            self._end(None)

    def abort(self) -> None:
        """Drops everything, both ways."""
        self._closing = True
        if self._line is not None:
            self._line.abort()
        else:
            self._end(None)

    def cut(self, error: TrunkError) -> None:
        """The trunk is closed under it: what was written leaves, and then it is lost."""
        self._closing = True
        if self._line is None:
            self._end(error)
        else:
            self._cut = error
            self._line.close()

    def lost(self, error: TrunkError | None) -> None:
        """From the line: it is gone."""
        if self._cut is not None:
            error = self._cut
        elif self._closing and self._eof_read:
            # A session that both ends had closed has lost nothing by it.
            error = None
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._done:
            return
        self._done = self._closing = True
        self._held.clear()
        self._loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: BaseException | None) -> None:
        self._tell_lost(error)
        self._awaits_line.clear()

    # -- calling the protocol

    def _blame(self, exc: BaseException, method: str) -> None:
        self._report(exc, method)
        if self._line is not None:
            self._line.abort()
        self._end(SessionLost(f"the session was aborted: its protocol failed in {method}"))

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop
