"""The protocol's side of a session's transport, over whatever its octets go.

One protocol's mistake ends its own transport, and nothing else: as in asyncio.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SessionTransport"]

_NOBODY: Final = asyncio.Protocol()
"""The protocol of a transport whose own has been told of the end."""


class SessionTransport(asyncio.Transport):
    """What a stream over QUIC and a session over TCP have in common. ``high`` and ``low``: octets written above which
    the protocol is paused, and from which on it writes again."""

    __slots__ = (
        "_closing", "_done", "_eof_read", "_eof_written", "_high", "_low", "_paused", "_protocol", "_receive",
        "_write_paused", "on_closed",
    )  # fmt: skip

    def __init__(self, high: int, low: int) -> None:
        super().__init__()
        self._high, self._low = high, low
        self._protocol: Any = None
        self._receive: Any = None
        self._paused = False
        self._write_paused = False
        self._eof_read = False
        self._eof_written = False
        self._closing = False  # close() or abort() was called, or it is lost
        self._done = False  # connection_lost is on its way, or was there
        self.on_closed: Callable[[BaseException | None], None] | None = None
        """Called after the protocol's ``connection_lost``, with the same argument."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._receive = getattr(protocol, "data_received", None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    # -- how much may be written

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def _set_marks(self, high: int | None, low: int | None, default: int) -> None:
        if high is None:
            high = default if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._low, self._high = low, high

    # -- calling the protocol

    def _deliver_eof(self) -> None:
        if self._eof_read or self._closing:
            return
        self._eof_read = True
        try:
            keep_open = self._protocol.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._blame(exc, "eof_received")
            return
        if not keep_open:
            self.close()

    def _tell_lost(self, error: BaseException | None) -> None:
        self._call(self._protocol.connection_lost, error)
        if self.on_closed is not None:
            self._call(self.on_closed, error)
        # It refers to its transport: who has dropped it need not wait for the garbage collector to be rid of it.
        self.set_protocol(_NOBODY)
        self.on_closed = None

    def _call(self, method: Any, *args: Any) -> None:
        try:
            method(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._report(exc, getattr(method, "__name__", "?"))

    def _blame(self, exc: BaseException, method: str) -> None:
        """Reports it, and ends the transport."""
        raise NotImplementedError

    def _report(self, exc: BaseException, method: str) -> None:
        self._get_loop().call_exception_handler(
            {
                "message": f"protocol.{method}() failed",
                "exception": exc,
                "transport": self,
                "protocol": self._protocol,
            }
        )

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        raise NotImplementedError
