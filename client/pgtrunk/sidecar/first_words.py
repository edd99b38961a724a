"""What a driver says over a stream whose connection is still at its handshake, kept so that it can be said again.

A gateway acts on nothing before that is complete (early data may be a replay); over TCP it has not even heard of it. So
if the connection ends first, nothing has happened, and the session is opened again, without the driver noticing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgtrunk.connection import AGAIN

if TYPE_CHECKING:
    import asyncio

__all__ = ["FirstWords"]

MOST = 64 << 10
"""Octets; who says more, unheard, is told of the end."""


class FirstWords:
    """Those of one session."""

    __slots__ = ("_left", "_said", "is_kept")

    def __init__(self) -> None:
        self.is_kept = False
        """Whether there is something that could be said again."""
        self._said = b""
        self._left = AGAIN

    def begin(self, stream: asyncio.Transport, said: bytes) -> None:
        """``said`` was the first over ``stream``."""
        if self._left and stream.get_extra_info("early"):
            self.is_kept, self._said = True, said
            # Over TCP there is a connection for each session, and its transport stands for it.
            connection: Any = stream.get_extra_info("quic_connection") or stream
            connection.call_when_confirmed(self.forget)

    def add(self, said: bytes) -> None:
        """And this came next."""
        self._said += said
        if len(self._said) > MOST:
            self.forget()

    def forget(self) -> None:
        """The handshake is complete: what has been said may have been acted on."""
        self.is_kept, self._said = False, b""

    def take(self) -> bytes:
        """All of it, to be said again."""
        said = self._said
        self.forget()
        self._left -= 1
        return said
