"""A client's UDP socket: connected to one address of a gateway, and read for as long as it lives.

What cannot be sent is told to its owner with the reason, since a client's network may go away under it (roaming.py).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

from .sockets import forbids_fragments, tune

if TYPE_CHECKING:
    from typing import Self

    from .sockets import AddressInfo

__all__ = ["ClientSocket", "SocketOwner", "SocketPath"]

logger = logging.getLogger("pgtrunk.quic")


@functools.cache
def _warn_once(warning: str) -> None:
    """It is about this machine, and the same for every connection."""
    logger.warning("%s", warning)


class SocketPath(tuple[Any, ...]):
    """A gateway's socket address, to be used as one, and the socket by which it is reached.

    By another socket it is another path (RFC 9000 section 9). To everybody else it is the gateway's address.
    """

    socket: ClientSocket

    def __new__(cls, peer: tuple[Any, ...], by: ClientSocket) -> Self:
        self = super().__new__(cls, peer)
        self.socket = by
        return self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is not SocketPath and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    @property
    def local(self) -> Any:
        """Our host: a path from another one is another path, and one from another port is not."""
        return self.socket.sockname[:1]


class SocketOwner(Protocol):
    """Who is told."""

    def datagram_came(self, by: ClientSocket, data: bytes) -> None:
        """From the gateway's address."""
        ...

    def socket_failed(self, by: ClientSocket, error: OSError, size: int) -> None:
        """A datagram of ``size`` octets could not be sent; 0: the error came by itself, and is about an earlier one."""
        ...

    def socket_closed(self, by: ClientSocket, error: Exception | None) -> None:
        """Nothing more comes from it; ``error`` where it was not closed by us."""
        ...


class ClientSocket(asyncio.DatagramProtocol):
    """Made and connected by ``open``; closed by ``close``, after which ``socket_closed`` is called once."""

    def __init__(self, address: AddressInfo, owner: SocketOwner) -> None:
        self._family, self._kind, self._proto, _, peer = address
        self.path = SocketPath(peer, self)
        self.sockname: tuple[Any, ...] = ()
        """Our address, as the kernel has chosen it."""
        self.fails = False
        """Whether the last datagram could not be sent."""
        self.proves_sizes = False
        """Whether what is too large for the path is not sent in fragments."""
        self._owner = owner
        self._sock: socket.socket | None = None
        self._wire: asyncio.DatagramTransport | None = None

    def __repr__(self) -> str:
        return f"<ClientSocket {self.sockname} to {tuple(self.path)}>"

    async def open(self, buffer: int) -> None:
        """Connect, with kernel buffers of ``buffer`` bytes, and read from now on. Raises OSError."""
        sock = socket.socket(self._family, self._kind, self._proto)
        try:
            sock.setblocking(False)
            warning = tune(sock, buffer)
            if warning is not None:
                _warn_once(warning)
            sock.connect(tuple(self.path))
            self.sockname = sock.getsockname()
            self.proves_sizes = forbids_fragments(sock)
            self._sock = sock
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=sock)
        except BaseException:
            # A cancelled create_datagram_endpoint closes its transport, if it had got that far, but not uvloop's; one
            # that is made only now is closed by connection_made. The socket is ours.
            self._sock = None
            if self._wire is not None:
                self._wire.close()
            sock.close()
            raise

    @property
    def is_wired(self) -> bool:
        """Whether there is a transport, whose end ``socket_closed`` will tell."""
        return self._wire is not None

    def send(self, data: bytes) -> None:
        """Send a datagram; never waits and never raises."""
        sock, wire = self._sock, self._wire
        if sock is None or wire is None:
            return
        try:
            sock.send(data)
        except (BlockingIOError, InterruptedError):
            # It goes when there is room. A connected socket needs no address, and BSDs refuse one; but Windows' event
            # loop does not see that it is connected.
            wire.sendto(data, self.path if sys.platform == "win32" else None)
        except OSError as exc:
            self.fails = exc.errno != errno.EMSGSIZE
            self._owner.socket_failed(self, exc, len(data))
        else:
            if self.fails:
                self.fails = False

    def close(self) -> None:
        """Stop at once."""
        self._sock = None
        if self._wire is not None:
            self._wire.close()

    # -- from the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast("asyncio.DatagramTransport", transport)
        if self._sock is None:
            transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._owner.datagram_came(self, data)

    def error_received(self, exc: Exception) -> None:
        self._owner.socket_failed(self, exc if isinstance(exc, OSError) else OSError(str(exc)), 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sock = self._wire = None
        self._owner.socket_closed(self, exc)
