"""The largest message that a session takes (max_packet_size), and what becomes of a larger one.

Between :class:`~pgtrunk_gateway.relay.begun.Begun` and :class:`~pgtrunk_gateway.relay.session.Session`. It ends the
session; but its client is still writing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.half_close import half_close
from pgtrunk_gateway.relay.begun import Begun
from pgtrunk_gateway.session.shapes import shape_within

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.relay.context import Context

__all__ = ["Measuring"]

_PATIENCE: Final = 60.0
"""Seconds that a client has for the rest of a message that is too large."""


class Measuring(Begun):
    """The measure of a session's messages."""

    def __init__(self, context: Context, front: str) -> None:
        super().__init__(context, front)
        self._limit_messages()
        self._unwanted = 0
        """Octets still to come of a message that has ended the session."""

    def _limit_messages(self) -> None:
        limit = self.context.config.max_packet_size
        self._inbound.limit = limit
        self._shape_of = shape_within(limit)

    def reconfigure(self) -> None:
        self._limit_messages()
        super().reconfigure()

    def _hang_up(self) -> None:
        if not self._unwanted or self.transport.is_closing():
            super()._hang_up()
            return
        # Drivers take an end of the connection while they write for a crash, and do not look whether something was said
        # before it. So this one may write its message to the end, which nobody keeps, before it is hung up on.
        if self._paused:
            self._paused = 0
            self.transport.resume_reading()
        if self._linger is not None:
            self._linger.cancel()
        self._linger = self._loop.call_later(_PATIENCE, self.transport.abort)

    def kill(self, error: GatewayError | None = None) -> None:
        super().kill(error)
        if self._unwanted:
            self.transport.abort()

    def _drop(self, data: bytes) -> None:
        self._unwanted = max(0, self._unwanted - len(data))
        if self._unwanted:
            return
        if self.transport.can_write_eof():
            # What follows the message is still read: a socket closed over unread data takes the last words along.
            half_close(self.transport)
        else:
            self.transport.close()
