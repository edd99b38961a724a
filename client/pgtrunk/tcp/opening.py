"""A line is opened: to one address, with direct TLS where the gateway takes it, and else by asking for TLS.

Direct TLS saves a round trip (sslnegotiation=direct of PostgreSQL 17, PgBouncer 1.25 and this gateway). Who does not
know it ends the connection, so that the next one asks; what has worked is remembered with the address.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgtrunk.errors import GatewayUnreachable, TrunkError
from pgtrunk.quic.ending import show
from pgtrunk.tcp.failures import NotDirect
from pgtrunk.tcp.line import Line
from pgtrunk.wire.startup import SSLRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk.tcp.tls import TlsTerms

__all__ = ["Knock", "LineAttempt", "Place", "open_line"]

ANSWERS: Final = (b"S", b"N", b"E")
"""What servers of Postgres's protocol say to SSLRequest."""

KEEPALIVE_IDLE: Final = 5
KEEPALIVE_INTERVAL: Final = 2
KEEPALIVE_COUNT: Final = 3
"""Seconds of silence before the kernel asks whether the other end is there; seconds between questions; and how many."""

USER_TIMEOUT: Final = 10_000
"""Milliseconds for which something may be unacknowledged. Both come to about QUIC's idle timeout."""


@dataclass(slots=True, eq=False)
class Place:
    """One address of a gateway over TCP, and how TLS begins there."""

    family: int
    sockaddr: tuple[Any, ...]
    terms: TlsTerms
    direct: bool = True
    """Whether direct TLS is worth trying."""

    def __str__(self) -> str:
        return show(self.sockaddr)


class LineAttempt:
    """The first line to a place, as one of those that race (`pgtrunk.quic.racing`)."""

    is_early = False

    def __init__(self, place: Place) -> None:
        self.place = place
        self.line: Line | None = None
        self.round_trip_time = 0.0
        """What TCP's handshake took, in seconds."""

    @property
    def is_heard(self) -> bool:
        """Whether TCP is answered."""
        return self.round_trip_time > 0

    async def open(self, deadline: float) -> None:
        """Raises what `open_line` does."""
        self.line = await open_line(self.place, deadline, self._connected)

    def _connected(self, took: float) -> None:
        self.round_trip_time = took

    def discard(self) -> None:
        if self.line is not None:
            self.line.close()


class Knock:
    """Finds out whether a gateway answers at an address over TCP; it races too.

    It is asked whether it has TLS, and whatever it says is an answer. That TCP is accepted would be none: the kernel
    does so for a gateway that is starting, or whose event loop stands still, and then UDP is not what is wrong.
    """

    is_alive = is_early = is_suspect = False

    def __init__(self, family: int, sockaddr: tuple[Any, ...]) -> None:
        self.leave = None
        self.is_heard = False
        self.round_trip_time = 0.0
        self._family, self._sockaddr = family, sockaddr

    async def open(self, deadline: float) -> None:
        """Raises `GatewayUnreachable`."""
        sock = _socket(self._family)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await _ask(sock, self._sockaddr)
        except OSError as exc:
            raise GatewayUnreachable(f"{show(self._sockaddr)} is not to be had over TCP: {_reason(exc)}") from exc
        finally:
            sock.close()
        if answer not in ANSWERS:
            raise GatewayUnreachable(
                f"{show(self._sockaddr)} answered SSLRequest with {answer!r}: no Postgres protocol"
            )

    def discard(self) -> None:
        """There is nothing."""


async def open_line(place: Place, deadline: float, connected: Callable[[float], None] | None = None) -> Line:
    """Opens a line with TLS; ``connected`` is told the seconds that TCP took. Cancelled, it leaves nothing behind.

    Raises `GatewayUnreachable`, `TlsNotOffered`, `CertificateError`.
    """
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(deadline):
            if place.direct:
                with suppress(NotDirect):
                    return await _open(place, connected, direct=True)
            line = await _open(place, connected, direct=False)
            place.direct = False
            return line
    except TimeoutError as exc:
        raise GatewayUnreachable(
            f"gateway {place} did not answer over TCP within {max(deadline - began, 0.0):.1f} s (connect_timeout)"
        ) from exc
    except OSError as exc:
        if isinstance(exc, TrunkError):
            raise
        raise GatewayUnreachable(f"gateway {place} cannot be reached over TCP: {_reason(exc)}") from exc


async def _ask(sock: socket.socket, sockaddr: tuple[Any, ...]) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, sockaddr)
    await loop.sock_sendall(sock, SSLRequest().encode())
    return await loop.sock_recv(sock, 1)


async def _open(place: Place, connected: Callable[[float], None] | None, *, direct: bool) -> Line:
    loop = asyncio.get_running_loop()
    line = Line(place.terms, str(place), direct=direct)
    sock = _socket(place.family)
    began = loop.time()
    try:
        await loop.sock_connect(sock, place.sockaddr)
        if connected is not None:
            connected(loop.time() - began)
        await loop.create_connection(lambda: line, sock=sock)
    except BaseException:
        # A cancelled create_connection closes its transport, if it had got that far; the socket is ours.
        sock.close()
        raise
    try:
        await line.opened
    except BaseException:
        line.abort()
        raise
    return line


def _socket(family: int) -> socket.socket:
    # Named, or asyncio would not take it for TCP, and leave Nagle's algorithm on.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setblocking(False)
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    # Those of the names that this system has.
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT),
    ):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for option in options:
        with suppress(OSError):
            sock.setsockopt(*option)
    return sock


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens on that TCP port"
    return error.strerror or str(error)
