"""Datagrams in and out of a listener's sockets; the way that each came is the way its answer goes.

An endpoint hands each datagram up with a ``Path``: the peer's socket address, which endpoint it came to and, on a
socket that receives on all addresses of the machine, which of them was hit. What is sent to a path leaves from there:
a client's socket takes no answer from another address. What cannot be sent now is dropped and counted, as a congested
network would, and QUIC sends it again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, cast

from pgtrunk_gateway.quic.groups import is_wildcard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

__all__ = ["Endpoint", "Path", "UdpCounters", "open_endpoint"]

BATCH = 32
"""Datagrams read in one go before the loop's other work gets its turn."""

MAX_DATAGRAM = 65535

MAX_PATHS = 4096
"""Paths that an endpoint keeps at hand. Making one takes longer than finding it, and comparing two alike longer than
seeing that they are one; but strangers must not make it keep any number of them."""

# Linux's and macOS's numbers, which Python's socket module does not have on every version.
_IP_PKTINFO: int | None = getattr(socket, "IP_PKTINFO", {"linux": 8, "darwin": 26}.get(sys.platform))
_IP_PACKET_INFO = Struct("=i4s4s")  # interface, the address to answer from, the address in the packet
_IPV6_PACKET_INFO = Struct("=16sI")  # the address in the packet, interface
_CONTROL_SIZE = 128
_LINK_LOCAL = (b"\xfe\x80", b"\xfe\xbf")


@dataclass(slots=True)
class UdpCounters:
    """What a listener's sockets have seen."""

    received: int = 0
    sent: int = 0
    send_dropped: int = 0
    """Datagrams that the kernel would not take: its buffer was full, or it knows no way there."""


class Path(tuple[Any, ...]):
    """A peer's socket address, to be used as one, and where on this side the peer's packets arrive.

    Two are equal only if both ends are: a packet from the same peer to another of our addresses took another path
    (RFC 9000 section 9). To everybody else it is the peer's address.
    """

    endpoint: Endpoint
    local: bytes
    """Control data that makes an answer leave from the address that was hit; empty where there is only one."""

    def __new__(cls, peer: Sequence[Any], endpoint: Endpoint, local: bytes = b"") -> Self:
        self = super().__new__(cls, peer)
        self.endpoint = endpoint
        self.local = local
        return self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Path and (self.local != other.local or self.endpoint is not other.endpoint):
            return False
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    @property
    def sockname(self) -> tuple[Any, ...]:
        """Our own socket address on this path."""
        return self.endpoint.sockname(self)


class Endpoint(Protocol):
    """One socket of a listener."""

    @property
    def number(self) -> int:
        """Which of the listener's sockets it is, from 0."""
        ...

    @property
    def address(self) -> tuple[Any, ...]:
        """What it is bound to."""
        ...

    def sockname(self, path: Path) -> tuple[Any, ...]:
        """Our own socket address on one of its paths."""
        ...

    def path(self, peer: tuple[Any, ...], local: bytes) -> Path:
        """The path that a datagram took which came to a socket of another worker, at the same address."""
        ...

    def send(self, data: bytes, path: Path) -> bool:
        """Sends a datagram, or drops it; never waits and never raises. False: the kernel takes none of that size."""
        ...

    def deafen(self) -> None:
        """Receives nothing more: somebody else reads from the socket. It can be sent on."""
        ...

    async def listen(self) -> None:
        """Receives again, after :meth:`deafen`."""
        ...

    def close(self) -> None:
        """Stops receiving and closes the socket."""
        ...


class AddressEndpoint(asyncio.DatagramProtocol):
    """A socket that is bound to one address."""

    def __init__(
        self, sock: socket.socket, receive: Callable[[bytes, Path], object], counters: UdpCounters, number: int
    ) -> None:
        self.number = number
        self.address: tuple[Any, ...] = sock.getsockname()
        self._sock = sock
        self._receive = receive
        self._counters = counters
        self._transport: asyncio.DatagramTransport | None = None
        self._paths: dict[tuple[Any, ...], Path] = {}

    def sockname(self, path: Path) -> tuple[Any, ...]:
        return self.address

    def path(self, peer: tuple[Any, ...], local: bytes) -> Path:
        path = self._paths.get(peer)
        return path if path is not None else _remember(self._paths, peer, Path(peer, self))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.DatagramTransport in all but name.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._counters.received += 1
        path = self._paths.get(addr)
        if path is None:
            path = self.path(addr, b"")
        self._receive(data, path)

    def send(self, data: bytes, path: Path) -> bool:
        # On the socket itself: the transport would queue, without a bound, what the kernel does not take.
        try:
            self._sock.sendto(data, path)
        except OSError as exc:
            self._counters.send_dropped += 1
            return exc.errno != errno.EMSGSIZE
        self._counters.sent += 1
        return True

    def deafen(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            # The transport closes what it reads from.
            self._sock = self._sock.dup()
            transport.abort()

    async def listen(self) -> None:
        if self._transport is not None:
            return
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, sock=self._sock)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        else:
            self._sock.close()


class WildcardEndpoint:
    """A socket that is bound to all addresses of its family, and answers from the one that was hit."""

    def __init__(
        self,
        sock: socket.socket,
        receive: Callable[[bytes, Path], object],
        counters: UdpCounters,
        number: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.number = number
        self.address: tuple[Any, ...] = sock.getsockname()
        self._sock = sock
        self._receive = receive
        self._counters = counters
        self._loop = loop
        self._paths: dict[tuple[Any, ...], Path] = {}
        self._buffer = bytearray(MAX_DATAGRAM)
        self._view = memoryview(self._buffer)
        self._is_ipv6 = sock.family == socket.AF_INET6
        self._control = (
            (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO) if self._is_ipv6 else (socket.IPPROTO_IP, _IP_PKTINFO)
        )
        ask = (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO) if self._is_ipv6 else self._control
        assert ask[1] is not None
        sock.setsockopt(ask[0], ask[1], 1)
        loop.add_reader(sock, self._readable)

    def sockname(self, path: Path) -> tuple[Any, ...]:
        if not path.local:
            return self.address
        packed = path.local[:16] if self._is_ipv6 else path.local[4:8]
        return (socket.inet_ntop(self._sock.family, packed), *self.address[1:])

    def path(self, peer: tuple[Any, ...], local: bytes) -> Path:
        key = (peer, local)
        path = self._paths.get(key)
        return path if path is not None else _remember(self._paths, key, Path(peer, self, local))

    def _readable(self) -> None:
        for _ in range(BATCH):
            try:
                size, control, flags, peer = self._sock.recvmsg_into([self._buffer], _CONTROL_SIZE)
            except OSError:
                # Nothing left; or an error that belongs to something sent before, and is gone once it is read.
                return
            if flags & socket.MSG_TRUNC:
                continue
            self._counters.received += 1
            key = (peer, *control)
            path = self._paths.get(key)
            if path is None:
                path = _remember(self._paths, key, Path(peer, self, self._answer_from(control)))
            self._receive(bytes(self._view[:size]), path)

    def _answer_from(self, control: list[tuple[int, int, bytes]]) -> bytes:
        for level, kind, data in control:
            if (level, kind) == self._control:
                return _ipv6_source(data) if self._is_ipv6 else _ipv4_source(data)
        return b""

    def send(self, data: bytes, path: Path) -> bool:
        control = [(*self._control, path.local)] if path.local else []
        try:
            self._sock.sendmsg([data], control, 0, path)  # type: ignore[arg-type]  # a Path is an address, as a tuple
        except OSError as exc:
            self._counters.send_dropped += 1
            return exc.errno != errno.EMSGSIZE
        self._counters.sent += 1
        return True

    def deafen(self) -> None:
        self._loop.remove_reader(self._sock)

    async def listen(self) -> None:
        self._loop.add_reader(self._sock, self._readable)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()


def _remember(paths: dict[tuple[Any, ...], Path], key: tuple[Any, ...], path: Path) -> Path:
    if len(paths) >= MAX_PATHS:
        paths.clear()
    paths[key] = path
    return path


def _ipv4_source(data: bytes) -> bytes:
    # Not through the interface that it came from: which one leads to the peer is for the routes to say.
    _, answer_from, _ = _IP_PACKET_INFO.unpack_from(data)
    return _IP_PACKET_INFO.pack(0, answer_from, bytes(4))


def _ipv6_source(data: bytes) -> bytes:
    address, interface = _IPV6_PACKET_INFO.unpack_from(data)
    # A link-local address means nothing without its interface.
    is_link_local = _LINK_LOCAL[0] <= address[:2] <= _LINK_LOCAL[1]
    return _IPV6_PACKET_INFO.pack(address, interface if is_link_local else 0)


async def open_endpoint(
    sock: socket.socket, receive: Callable[[bytes, Path], object], counters: UdpCounters, number: int = 0
) -> Endpoint:
    """Starts to receive on a bound socket, which it takes over; it is the listener's ``number``th, from 0."""
    loop = asyncio.get_running_loop()
    if is_wildcard(sock) and (sock.family == socket.AF_INET6 or _IP_PKTINFO is not None):
        return WildcardEndpoint(sock, receive, counters, number, loop)
    endpoint = AddressEndpoint(sock, receive, counters, number)
    try:
        await loop.create_datagram_endpoint(lambda: endpoint, sock=sock)
    except BaseException:
        # uvloop does not close the transport of one that is cancelled.
        endpoint.close()
        raise
    return endpoint
