"""The octets of a login: what the client has sent is read here, message by message.

Knows nothing of what a login says. A client that sends ahead is read up to a bound, then no further until somebody
reads what has come.

What comes before a QUIC handshake is complete is early data (0-RTT), and anybody who has seen its packets can send them
again (RFC 8446 section 8). Once the handshake is complete, it is the client's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pgtrunk.wire.framing import MessageReader
from pgtrunk_gateway.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography import x509

__all__ = ["Dialogue"]

_MESSAGE: Final = 66 << 10
"""Octets of one message during login; PostgreSQL takes passwords of up to 65,535 (PG_MAX_AUTH_TOKEN_LENGTH)."""
_UNREAD: Final = 64 << 10
"""Octets that a client may send ahead before it is not read any more."""


class Dialogue:
    """One client's side of a login, over ``transport``."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.ended = False
        """The client says no more."""
        self.channel_binding: bytes | None = None
        """tls-server-end-point of the certificate that the gateway has shown over TCP; None without TLS."""
        self._inbox = Inbox()
        self._reader = MessageReader(_MESSAGE)
        self._paused = False
        self._claimed = self._host if self.is_early else None
        """Where early data says that it comes from."""

    @property
    def is_early(self) -> bool:
        """Whether what has come may be a replay of early data."""
        return bool(self.transport.get_extra_info("early"))

    async def confirmed(self) -> None:
        """Returns when nothing of what has come can be a replay; at once where it was no early data. If the handshake
        fails, the session ends, and with it who waits here.

        Raises :class:`ConnectionError` where early data came from another host than the rest: anybody can send it from
        any address, and what a login comes to counts for or against one.
        """
        if self.is_early:
            complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            connection = self.transport.get_extra_info("quic_connection")
            connection.call_when_confirmed(lambda: None if complete.done() else complete.set_result(None))
            await complete
        if self._claimed is not None and self._claimed != self._host:
            raise ConnectionResetError("the client has gone to another address during its handshake")
        self._claimed = None

    @property
    def _host(self) -> str | None:
        peer = self.transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else None

    @property
    def peer_certificate(self) -> x509.Certificate | None:
        """The client's certificate, verified by the CAs of the front that it came in by; None where it showed none."""
        certificate: x509.Certificate | None = self.transport.get_extra_info("peercert")
        return certificate

    @property
    def has_unread(self) -> bool:
        """Whether there is something to :meth:`read` at once."""
        return bool(self._inbox)

    @property
    def is_over(self) -> bool:
        """The client says no more, and all that it has said has been read."""
        return self.ended and not self._inbox and not self._reader

    def data_received(self, data: bytes) -> None:
        self._inbox.data_received(data)
        if len(self._inbox) > _UNREAD and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def eof_received(self) -> None:
        """What the client has said still counts: a cancel request often ends so."""
        self._inbox.connection_lost(None)
        self.ended = True

    def write(self, data: bytes) -> None:
        """Sends ``data`` to the client."""
        self.transport.write(data)

    async def read(self) -> bytes:
        """What comes next, as it comes. Raises :class:`ConnectionError` at the end."""
        try:
            return await self._inbox.read()
        finally:
            # More may come while a derivation runs, but not without bound.
            self._resume()

    def unread(self, data: bytes) -> None:
        """The messages begin with ``data``, which :meth:`read` has given."""
        self._reader.feed(data)

    async def message(self) -> tuple[int, bytes]:
        """The type and the body of the next message. Raises :class:`ProtocolViolation` for what is none."""
        while (message := self._reader.next()) is None:
            self._reader.feed(await self.read())
        return message

    async def ahead(self, is_whole: Callable[[bytes], bool]) -> bytes:
        """What the client has said ahead, as soon as it ``is_whole``, while it may be a replay; b"" once it cannot be
        one any more. It is still to be read."""
        if self.is_early:
            self.transport.get_extra_info("quic_connection").call_when_confirmed(self._inbox.stir)
        while self.is_early:
            self._reader.feed(self._inbox.take())
            data = self._reader.rest()
            self._reader.feed(data)
            if is_whole(data):
                return data
            await self._inbox.change()
        return b""

    def skip(self) -> None:
        """What :meth:`ahead` has given has been dealt with."""
        self._reader.rest()
        self._resume()

    def rest(self) -> bytes:
        """What came behind the last message; the dialogue is over."""
        rest = self._reader.rest() + self._inbox.take()
        self._resume()
        return rest

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
