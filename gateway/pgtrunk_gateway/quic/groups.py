"""UDP sockets that workers share: bound as groups, and given the program that leads datagrams to their workers."""

from __future__ import annotations

import ctypes
import errno
import socket
import sys
from struct import Struct
from typing import TYPE_CHECKING, Any

from pgtrunk_gateway.quic.steering import encode, program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgtrunk.quic.sockets import AddressInfo

__all__ = ["bind_all", "bind_group", "is_wildcard", "join", "like", "steer"]

PORT_ATTEMPTS = 16
"""Times that a free port is looked for which is free on every address, where any port will do."""

# Numbers that Python's socket module does not have.
_SO_ATTACH_REUSEPORT_CBPF = 51
_SOCK_FPROG = Struct("@HP")
"""How many instructions, and where they are: ``struct sock_fprog``."""

_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def bind_all(infos: Sequence[AddressInfo]) -> list[socket.socket]:
    """Opens and binds a non-blocking socket for each address, all on one port; the first decides where it is 0.

    An address that this machine does not have (IPv6 is switched off, say) is passed over as long as another one is
    left. Raises ``OSError`` otherwise, and then leaves nothing open.
    """
    return bind_group(infos, 1)[0]


def bind_group(infos: Sequence[AddressInfo], count: int) -> list[list[socket.socket]]:
    """As ``bind_all``, but each address has ``count`` sockets that share it; returns for each of ``count`` workers its
    own, one for each address.

    The kernel numbers the sockets of an address in the order of their bind(). Closing one gives its number to the last
    of them: whoever hands them out keeps them open. A port that anybody else has is refused, even where they would
    share it.
    """
    for attempt in range(1, PORT_ATTEMPTS + 1):
        groups: list[list[socket.socket]] = []
        try:
            _bind_each(infos, count, groups)
        except OSError as exc:
            _close(sock for group in groups for sock in group)
            # The port that was free on the first address is taken on another one: the next try finds another port.
            any_port = infos[0][4][1] == 0 and bool(groups)
            if not any_port or exc.errno != errno.EADDRINUSE or attempt == PORT_ATTEMPTS:
                raise
        else:
            return [[group[index] for group in groups] for index in range(count)]
    raise AssertionError("the last attempt returns or raises")


def _bind_each(infos: Sequence[AddressInfo], count: int, groups: list[list[socket.socket]]) -> None:
    absent: OSError | None = None
    for info in infos:
        port = groups[0][0].getsockname()[1] if groups else info[4][1]
        try:
            groups.append(_bind_shared(info, port, count))
        except OSError as exc:
            if exc.errno not in _NOT_HERE:
                raise
            absent = exc
    if absent is not None and not groups:
        raise absent


def _bind_shared(info: AddressInfo, port: int, count: int) -> list[socket.socket]:
    family, kind, proto, _, address = info
    # The first comes alone: with SO_REUSEPORT it would join whoever else shares the port, and where any port will do
    # the kernel may well give it one that is shared. It learns to share before the second comes.
    first = _bind(family, kind, proto, (address[0], port, *address[2:]))
    group = [first]
    try:
        if count > 1:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        while len(group) < count:
            group.append(_bind(family, kind, proto, first.getsockname(), shared=True))
    except BaseException:
        _close(group)
        raise
    return group


def like(member: socket.socket) -> socket.socket:
    """A socket that may become one more member of the group of ``member``: see :func:`join`."""
    sock = socket.socket(member.family, member.type, member.proto)
    sock.setblocking(False)
    return sock


def join(sock: socket.socket, member: socket.socket) -> None:
    """Makes ``sock`` the last of the group that ``member`` is in. Raises OSError."""
    member.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _tie(sock, member.getsockname(), shared=True)


def _bind(family: int, kind: int, proto: int, address: tuple[Any, ...], *, shared: bool = False) -> socket.socket:
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        _tie(sock, address, shared=shared)
    except OSError as exc:
        sock.close()
        raise OSError(exc.errno, f"{exc.strerror}: {address[0]} port {address[1]} (UDP)") from exc
    return sock


def _tie(sock: socket.socket, address: tuple[Any, ...], *, shared: bool) -> None:
    if sock.family == socket.AF_INET6:
        # Each family has its own socket, so that an IPv4 address always looks like one.
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)


def steer(first_socket: socket.socket, count: int) -> str | None:
    """Has the kernel give each datagram to the socket of its worker (see steering.py), of the ``count`` that share the
    address of ``first_socket``; one call for each address, once all are bound.

    Returns why not, where the kernel refuses: then it goes by a hash of the addresses.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no SO_ATTACH_REUSEPORT_CBPF"
    instructions = program(count)
    code = ctypes.create_string_buffer(encode(instructions))
    try:
        first_socket.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_REUSEPORT_CBPF,
            _SOCK_FPROG.pack(len(instructions), ctypes.addressof(code)),
        )
    except OSError as exc:
        return f"SO_ATTACH_REUSEPORT_CBPF: {exc.strerror}"
    return None


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def is_wildcard(sock: socket.socket) -> bool:
    """Says whether a bound socket receives on all addresses of its family."""
    return sock.getsockname()[0] in ("0.0.0.0", "::")
