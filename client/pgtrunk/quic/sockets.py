"""UDP sockets, opened and tuned. Knows nothing of QUIC but that its datagrams must not be fragmented."""

from __future__ import annotations

import errno
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["AddressInfo", "bind_all", "is_wildcard", "tune"]

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""One answer of ``getaddrinfo``."""

PORT_ATTEMPTS = 16
"""Times that a free port is looked for which is free on every address, where any port will do."""

# Linux's numbers, which Python's socket module does not have.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3

_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def tune(sock: socket.socket, size: int) -> str | None:
    """Asks for kernel buffers of ``size`` bytes both ways, and for no fragments.

    Returns a warning of one line where the kernel gave less: bursts beyond it are lost, and loss is what QUIC slows
    down for.
    """
    _forbid_fragments(sock)
    got = [_resize(sock, option, size) for option in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    if min(got) >= size:
        return None
    receive, send = got
    return (
        f"socket buffers are smaller than the {size} bytes wanted: the kernel gave {receive} to receive and {send} to "
        f"send; raise them, on Linux: sysctl -w net.core.rmem_max={size} net.core.wmem_max={size}"
    )


def _resize(sock: socket.socket, option: int, size: int) -> int:
    """Returns the bytes that the buffer now has. Some kernels refuse what is too much, Linux gives what it allows."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, option, size)
    got = sock.getsockopt(socket.SOL_SOCKET, option)
    # Linux doubles what it is asked for, for its own book-keeping (socket(7)).
    return got // 2 if sys.platform == "linux" else got


def _forbid_fragments(sock: socket.socket) -> None:
    """Sets the don't-fragment bit (RFC 9000 section 14).

    By PMTUDISC_PROBE, which does not listen to what ICMP says of the path: a forged message could otherwise make the
    kernel refuse our smallest datagrams.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)


def bind_all(infos: Sequence[AddressInfo]) -> list[socket.socket]:
    """Opens and binds a non-blocking socket for each address, all on one port; the first decides where it is 0.

    An address that this machine does not have (IPv6 is switched off, say) is passed over as long as another one is
    left. Raises ``OSError`` otherwise, and then leaves nothing open.
    """
    for attempt in range(1, PORT_ATTEMPTS + 1):
        sockets: list[socket.socket] = []
        try:
            return _bind_each(infos, sockets)
        except OSError as exc:
            _close(sockets)
            # The port that was free on the first address is taken on another one: the next try finds another port.
            any_port = infos[0][4][1] == 0 and bool(sockets)
            if not any_port or exc.errno != errno.EADDRINUSE or attempt == PORT_ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _bind_each(infos: Sequence[AddressInfo], sockets: list[socket.socket]) -> list[socket.socket]:
    absent: OSError | None = None
    for family, kind, proto, _, address in infos:
        port = sockets[0].getsockname()[1] if sockets else address[1]
        try:
            sockets.append(_bind(family, kind, proto, (address[0], port, *address[2:])))
        except OSError as exc:
            if exc.errno not in _NOT_HERE:
                raise
            absent = exc
    if absent is not None and not sockets:
        raise absent
    return sockets


def _bind(family: int, kind: int, proto: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            # Each family has its own socket, so that an IPv4 address always looks like one.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as exc:
        sock.close()
        raise OSError(exc.errno, f"{exc.strerror}: {address[0]} port {address[1]} (UDP)") from exc
    return sock


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def is_wildcard(sock: socket.socket) -> bool:
    """Says whether a bound socket receives on all addresses of its family."""
    return sock.getsockname()[0] in ("0.0.0.0", "::")
