"""One TCP connection to a gateway, from its SSLRequest or ClientHello on. No octet of a session leaves it in clear.

    ASKING    SSLRequest is sent   -> SHAKING at "S"; anything else ends it: `TlsNotOffered` at "N"
    SHAKING   the handshake runs   -> OPEN, once the certificate is accepted
    OPEN      what is written is encrypted, what comes is decrypted and given to the ``owner``
    OVER

A line that has no owner yet may be told nothing: servers of Postgres do not speak first, and one that does, or that
ends the connection, makes it useless. asyncio's own TLS would serve, but for its buffers of 256 kB a connection, and
for what asyncio's and uvloop's do differently when they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast

from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost, TrunkError
from pgtrunk.tcp.failures import NotDirect, TlsFailed, TlsNotOffered
from pgtrunk.tcp.tls import ALPN, certificate_error, check_certificate, describe
from pgtrunk.wire.startup import SSLRequest

if TYPE_CHECKING:
    from pgtrunk.tcp.owner import Owner
    from pgtrunk.tcp.tls import TlsTerms

__all__ = ["Line"]

RECORD: Final = 16 << 10
"""Octets that one record holds at most, and so one read gives."""

LINGER: Final = 10.0
"""Seconds that a gateway has to take what was written before the line was closed."""


class _State(Enum):
    ASKING = "asking for TLS"
    SHAKING = "in its handshake"
    OPEN = "open"
    OVER = "over"


class Line(asyncio.Protocol):
    """The protocol of a TCP transport. ``await opened``, then ``take`` it."""

    def __init__(self, terms: TlsTerms, peer: str, *, direct: bool) -> None:
        self._terms = terms
        self._peer = peer
        self._direct = direct
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = terms.context.wrap_bio(self._incoming, self._outgoing, server_hostname=terms.name)
        self._loop = asyncio.get_running_loop()
        self._wire: asyncio.Transport
        self._owner: Owner | None = None
        self._state = _State.SHAKING if direct else _State.ASKING
        self._error: TrunkError | None = None
        self._paused = False
        self._finished = False  # close_notify came
        self._is_cut = False  # TCP's own end came
        self._told = False
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self.departed = 0
        """Octets of the owner's that may have left."""
        self.opened: asyncio.Future[None] = self._loop.create_future()
        """Done when TLS is up. Raises `CertificateError`, `TlsNotOffered`, `NotDirect`, `GatewayUnreachable`."""

    def __repr__(self) -> str:
        return f"<Line {self._peer} {self._state.value}>"

    @property
    def is_usable(self) -> bool:
        """Whether a session may begin on it."""
        return self._state is _State.OPEN and not self._closing and not self._finished

    @property
    def is_closing(self) -> bool:
        return self._closing or self._state is _State.OVER

    def take(self, owner: Owner) -> asyncio.Transport:
        """Gives it to its owner, and returns the transport below, for what it knows of addresses and buffers."""
        self._owner = owner
        return self._wire

    def cipher(self) -> tuple[str, str, int] | None:
        return self._tls.cipher()

    # -- the beginning

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast("asyncio.Transport", transport)
        if self._direct:
            self._shake()
        else:
            self._wire.write(SSLRequest().encode())

    def _ask(self, answer: bytes) -> None:
        if answer == b"S":
            self._state = _State.SHAKING
            self._shake()
        elif answer[:1] == b"S":
            # Put there by somebody between the two, to be taken for what comes encrypted (CVE-2021-23222).
            self._fail(TlsFailed(f"{self._peer} sent unencrypted data after its answer to SSLRequest"))
        elif answer[:1] in (b"N", b"E"):
            self._fail(
                TlsNotOffered(
                    f"TCP at {self._peer} does not offer TLS: set client_tls_sslmode=require, client_tls_cert_file and "
                    "client_tls_key_file in the gateway's ini file"
                )
            )
        else:
            self._fail(
                GatewayUnreachable(f"{self._peer} answered SSLRequest with {answer[:1]!r}: no Postgres protocol")
            )

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as exc:
            self._flush()  # the alert
            self._fail(certificate_error(exc, self._terms, self._tls, self._peer) or self._unshaken(describe(exc)))
            return
        try:
            check_certificate(self._terms, self._tls, self._peer)
        except CertificateError as exc:
            self._fail(exc)
            return
        if self._direct and self._tls.selected_alpn_protocol() != ALPN:
            # Whoever else speaks TLS there must not be given a password (CVE-2024-10977, the ALPACA attack).
            self._fail(self._unshaken(f"the other end does not speak {ALPN} (ALPN)"))
            return
        self._state = _State.OPEN
        self._flush()
        if not self.opened.done():
            self.opened.set_result(None)
        if self._incoming.pending:
            self._deliver()

    def _unshaken(self, reason: str) -> TlsFailed:
        kind = NotDirect if self._direct else TlsFailed
        return kind(f"no TLS with {self._peer} over TCP: {reason}")

    def _fail(self, error: TrunkError) -> None:
        """It is over, for this reason."""
        self._error = self._error or error
        if self.opened.done():
            self._wire.abort()
        else:
            self.opened.set_exception(self._error)
            # Whoever waited may have been cancelled, and hear of it no more.
            self.opened.exception()
            # An alert may have to leave first.
            self._hang_up()
        self._state = _State.OVER

    # -- reading: hot

    def data_received(self, data: bytes) -> None:
        if self._state is _State.OPEN:
            if not self._closing:
                self._incoming.write(data)
                if not self._paused:
                    self._deliver()
        elif self._state is _State.SHAKING:
            self._incoming.write(data)
            self._shake()
        elif self._state is _State.ASKING:
            self._ask(data)

    def _deliver(self) -> None:
        """Hands on all that has come, in one piece: what the transport below reads at once is the bound."""
        tls, incoming = self._tls, self._incoming
        parts: list[bytes] = []
        failure: ssl.SSLError | None = None
        try:
            while part := tls.read(RECORD):
                parts.append(part)
                if not incoming.pending and not tls.pending():
                    break
            else:
                self._finished = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._finished = True
        except ssl.SSLError as exc:
            failure = exc
        if self._outgoing.pending:
            # A key update wants an answer.
            self._flush()
        if self._owner is None:
            if parts or self._finished or failure is not None:
                self._fail(self._refusal(failure))
            return
        if parts:
            self._owner.received(parts[0] if len(parts) == 1 else b"".join(parts))
        if failure is not None:
            self._fail(self._refusal(failure))
        else:
            self._look_at_end()

    def _refusal(self, failure: ssl.SSLError | None) -> TrunkError:
        """In TLS 1.3 a client's certificate is judged when for the client the handshake is over."""
        if failure is None:
            return GatewayUnreachable(f"{self._peer} ended a connection before anything was asked of it")
        of_certificate = certificate_error(failure, self._terms, self._tls, self._peer)
        return of_certificate or SessionLost(f"TLS with {self._peer} failed: {describe(failure)}")

    def pause_reading(self) -> None:
        self._paused = True
        if not self._wire.is_closing():
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            # Never from within the protocol's own call: that is what it expects of TCP too.
            self._loop.call_soon(self._resume)

    @property
    def _is_reading(self) -> bool:
        return not (self._paused or self.is_closing)

    def _resume(self) -> None:
        if not self._is_reading:
            return
        if self._incoming.pending or self._tls.pending():
            self._deliver()
        else:
            self._look_at_end()
        if self._is_reading:
            self._wire.resume_reading()

    def eof_received(self) -> bool:
        """TCP's own end. Without close_notify before it, somebody has died or been cut off."""
        self._is_cut = True
        if self._state is _State.OPEN:
            self._look_at_end()
        elif self._state is not _State.OVER:
            self._fail(self._unshaken("the other end closed the connection"))
        return True

    def _look_at_end(self) -> None:
        """All that has come is handed on, unless the owner has paused."""
        if self._paused or self._closing:
            return
        if self._finished:
            if self._owner is not None and not self._told:
                self._told = True
                self._owner.finished()
        elif self._is_cut:
            self._fail(SessionLost(f"{self._peer} is gone: its TCP connection has ended without a word"))

    # -- writing: hot

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or self._state is not _State.OPEN or not data:
            return
        try:
            written = self._tls.write(data)
            while written < len(data):
                written += self._tls.write(memoryview(data)[written:])
        except ssl.SSLError as exc:
            self._fail(SessionLost(f"TLS with {self._peer} failed: {describe(exc)}"))
            return
        # A transport of uvloop's that is closed raises.
        if not self._wire.is_closing():
            self._wire.write(self._outgoing.read())
            self.departed += len(data)

    def write_eof(self) -> None:
        """Says that no more is written, by close_notify: answers still come (RFC 8446 section 6.1)."""
        if self._state is _State.OPEN and not self._closing:
            self._say_end()

    def _say_end(self) -> None:
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._wire.is_closing():
            self._wire.write(self._outgoing.read())

    def pause_writing(self) -> None:
        if self._owner is not None:
            self._owner.pause_writing()

    def resume_writing(self) -> None:
        if self._owner is not None:
            self._owner.resume_writing()

    # -- the end

    def close(self) -> None:
        """Sends what was written, and close_notify behind it. Nobody waits for that of the gateway."""
        if self.is_closing:
            return
        self._closing = True
        if self._state is _State.OPEN:
            self._say_end()
        self._hang_up()

    def _hang_up(self) -> None:
        self._linger = self._linger or self._loop.call_later(LINGER, self._wire.abort)
        self._wire.close()

    def abort(self) -> None:
        """Drops everything."""
        self._closing = True
        self._wire.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._error is None and not self._closing:
            self._error = self._lost(exc)
        self._state = _State.OVER
        if not self.opened.done():
            self.opened.set_exception(self._error or GatewayUnreachable(f"the connection with {self._peer} was closed"))
        # Nobody waits for it any more, where it was given up.
        if not self.opened.cancelled():
            self.opened.exception()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.lost(None if self._closing else self._error)

    def _lost(self, exc: Exception | None) -> TrunkError:
        reason = "the other end closed it" if exc is None else getattr(exc, "strerror", None) or str(exc)
        if self._state is _State.OPEN:
            return SessionLost(f"TCP connection with {self._peer} lost: {reason}")
        return self._unshaken(reason)
