"""TLS over any transport, for either role: what is written is encrypted, what is received decrypted.

To the transport below it is the protocol, to the protocol above it is the transport. It holds nothing of its own beyond
one read: pausing and watermarks are those of the transport below. Knows nothing of Postgres.

asyncio's ``loop.start_tls`` would serve for neither leg. It cannot be fed the octets of a ClientHello that have been
read already, which is how direct TLS begins; its buffers come on top of the socket's, so that a client that does not
read is noticed later; and asyncio's and uvloop's differ in how they end. This one is the same on both loops, over QUIC
streams and over the transports of tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, Final

from cryptography import x509

__all__ = ["HandshakeError", "TlsTransport", "describe"]

_RECORD: Final = 16 << 10
"""Octets that one record holds at most, and so one read gives."""
_LINGER: Final = 30.0
"""Seconds that a peer has to take what was written before :meth:`TlsTransport.close`."""


class HandshakeError(ConnectionError):
    """The handshake has failed; the message says why in one line, as the log shows it."""


def describe(error: ssl.SSLError) -> str:
    """What went wrong, without Python's brackets and places."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    return (error.reason or str(error)).lower().replace("_", " ")


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """See asyncio.Transport; only what TLS adds is described here.

    It takes the place of ``below``'s protocol, which becomes its own. Until :meth:`handshake` has returned, what is
    written is dropped: there is nobody yet whom it could be told.

    ``get_extra_info`` knows 'ssl_object', 'sslcontext', 'peercert' (as a QUIC stream does: an x509.Certificate, or
    None) and 'tls' ("version/cipher"); all else is asked below.
    """

    def __init__(
        self,
        below: asyncio.Transport,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        super().__init__()
        self._below = below
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._loop = asyncio.get_running_loop()
        self._shaken: asyncio.Future[None] = self._loop.create_future()
        self._open = False
        """The handshake is complete."""
        self._paused = False
        self._closing = False
        self._ended = False
        """The other side sends no more."""
        self._told_end = False
        self._error: Exception | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.set_protocol(below.get_protocol())
        below.set_protocol(self)

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open" if self._open else "in its handshake"
        return f"<TlsTransport {state} over {self._below!r}>"

    # -- the handshake -------------------------------------------------------------------------------------------------

    async def handshake(self, received: bytes = b"") -> None:
        """Returns when it is complete; ``received`` are octets of it that have been read already.

        Raises :class:`HandshakeError` where it fails; the other side has been told then, and the connection ends. The
        deadline is the caller's.
        """
        self._incoming.write(received)
        self._shake()
        await self._shaken

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._fail(HandshakeError(describe(error)))
        else:
            self._open = True
            self._flush()
            if not self._shaken.done():
                self._shaken.set_result(None)
            if self._incoming.pending and not self._paused:
                self._deliver()

    def _fail(self, error: Exception) -> None:
        """The connection is over, for this reason."""
        self._error = error
        # The one who waits shall hear of it before the protocol does.
        if not self._shaken.done():
            self._shaken.set_exception(error)
        self._closing = True
        self._flush()  # the alert
        self._close_below()

    # -- protocol and extra info ---------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol: Any = protocol
        self._receive: Any = getattr(protocol, "data_received", None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "ssl_object":
                return self._tls
            case "sslcontext":
                return self._tls.context
            case "peercert":
                return self._peer_certificate()
            case "tls":
                cipher = self._tls.cipher()
                return f"{self._tls.version()}/{cipher[0]}" if cipher is not None else default
            case _:
                return self._below.get_extra_info(name, default)

    def _peer_certificate(self) -> x509.Certificate | None:
        der = self._tls.getpeercert(binary_form=True) if self._open else None
        if der is None:
            return None
        try:
            return x509.load_der_x509_certificate(der)
        except ValueError:
            # OpenSSL is less strict. Who cannot be named has shown nothing that anybody could be told by.
            return None

    # -- reading: hot --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._closing or self._ended:
            return
        self._incoming.write(data)
        if not self._open:
            self._shake()
        elif not self._paused:
            self._deliver()

    def _deliver(self) -> None:
        """Hands on all that has come, in one piece: what the transport below reads at once is the bound."""
        tls, incoming = self._tls, self._incoming
        parts: list[bytes] = []
        error: ssl.SSLError | None = None
        try:
            while part := tls.read(_RECORD):
                parts.append(part)
                if not incoming.pending and not tls.pending():
                    break
            else:
                self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as failure:
            error = failure
        if self._outgoing.pending:
            # A key update wants an answer.
            self._flush()
        if parts:
            self._receive(parts[0] if len(parts) == 1 else b"".join(parts))
        if error is not None:
            self._fail(ConnectionAbortedError(describe(error)))
        elif self._ended:
            self._tell_end()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True
        if not self._below.is_closing():
            self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            # Never from within the protocol's own call: that is what it expects of TCP too.
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._paused or self._closing:
            return
        if self._incoming.pending or self._tls.pending():
            self._deliver()
        elif self._ended:
            self._tell_end()
        if self.is_reading() and not self._below.is_closing():
            self._below.resume_reading()

    def eof_received(self) -> bool:
        if not self._open:
            self._fail(HandshakeError("unexpected eof"))
        elif not self._closing:
            # Without close_notify: as Postgres does, it is left to the messages to tell whether something is missing.
            self._ended = True
            self._tell_end()
        return True

    def _tell_end(self) -> None:
        if self._told_end or self._paused or self._closing:
            return
        self._told_end = True
        if not self._protocol.eof_received():
            self.close()

    # -- writing: hot --------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not self._open or not data:
            return
        try:
            written = self._tls.write(data)
            while written < len(data):
                written += self._tls.write(memoryview(data)[written:])
        except ssl.SSLError as error:
            self._fail(ConnectionAbortedError(describe(error)))
            return
        # A transport of uvloop's that is closed raises.
        if not self._below.is_closing():
            self._below.write(self._outgoing.read())

    def _flush(self) -> None:
        if self._outgoing.pending and not self._below.is_closing():
            self._below.write(self._outgoing.read())

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # -- the end -------------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing or self._below.is_closing()

    def close(self) -> None:
        """Sends what was written, and close_notify behind it. Nobody waits for that of the other side."""
        if self._closing:
            return
        self._closing = True
        if self._open:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._close_below()

    def _close_below(self) -> None:
        if self._linger is None:
            self._linger = self._loop.call_later(_LINGER, self._below.abort)
        self._below.close()

    def abort(self) -> None:
        self._closing = True
        self._below.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not self._shaken.done():
            self._shaken.set_exception(exc or HandshakeError("the other side closed the connection"))
            # Whoever waited may have been cancelled, by the protocol above all.
            self._shaken.exception()
        self._protocol.connection_lost(self._error or exc)
