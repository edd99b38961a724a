"""A stream that notes how long its exchanges take: from the first octet of a request, written while nothing was asked,
to the ReadyForQuery that ends an answer.

Found by the end of what arrives, without a walk over messages: a ReadyForQuery is the last of what a gateway has to
say. What looks like one at the end of a packet, in the middle of a row, makes one time too short; a request that is
written before the one before it is answered counts as a part of that. Postgres' protocol 3.0, ReadyForQuery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .transport import StreamTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import ConnectionDriver
    from .stream import Stream

__all__ = ["TimedTransport"]

_READY: Final = b"Z\x00\x00\x00\x05"
_SIZE: Final = 6
_IDLE: Final = 0.0
_LOGIN: Final = -1.0


class TimedTransport(StreamTransport):
    """``took(seconds)`` is called for each exchange after the login, ``clock`` tells the time."""

    __slots__ = ("_asked", "_clock", "_tail", "_took")

    def __init__(
        self, driver: ConnectionDriver, stream: Stream, *, took: Callable[[float], object], clock: Callable[[], float]
    ) -> None:
        super().__init__(driver, stream)
        self._took = took
        self._clock = clock
        self._asked = _LOGIN
        """When what is to be answered was asked."""
        self._tail = b""

    @property
    def is_asking(self) -> bool:
        """Whether something is to be answered, the login not counted."""
        return self._asked > _IDLE and not self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._asked == _IDLE:
            self._asked = self._clock()
        StreamTransport.write(self, data)

    def receive(self, data: bytes, end_of_stream: bool) -> None:
        # Looked at before it is delivered: in that call the protocol may ask the next thing.
        asked = self._asked
        if asked and (data[-_SIZE:-1] == _READY or self._ends_in_pieces(data)):
            if asked > _IDLE:
                self._took(self._clock() - asked)
            self._asked = _IDLE
        StreamTransport.receive(self, data, end_of_stream)

    def _ends_in_pieces(self, data: bytes) -> bool:
        """Whether a ReadyForQuery ends here that began in another packet."""
        self._tail = (self._tail + data)[-_SIZE:] if len(data) < _SIZE else data[-_SIZE:]
        return self._tail[:-1] == _READY
