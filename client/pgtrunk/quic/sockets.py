"""UDP sockets, tuned: large buffers, and datagrams that must not be fragmented, which is all that is known of QUIC."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any

__all__ = ["AddressInfo", "forbids_fragments", "tune"]

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""One answer of ``getaddrinfo``."""

# Numbers that Python's socket module does not have.
_DONT_FRAGMENT = {
    "linux": ((10, 3), (23, 3)),
    "darwin": ((28, 1), (62, 1)),
    "freebsd": ((67, 1), (62, 1)),
    "win": ((14, 1), (14, 1)),
}
"""IPv4's option and its value, then IPv6's: IP_MTU_DISCOVER with IP_PMTUDISC_PROBE, elsewhere IP_DONTFRAG by its names.
PROBE sets the bit, and does not listen to what ICMP says of the path: a forged message could otherwise make the
kernel refuse our smallest datagrams."""


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
    """Sets the don't-fragment bit (RFC 9000 section 14)."""
    level, option, value = _dont_fragment(sock)
    if option:
        with suppress(OSError):
            sock.setsockopt(level, option, value)


def forbids_fragments(sock: socket.socket) -> bool:
    """Says whether a datagram that is too large for the path is lost, or refused, instead of sent in fragments: only
    then does one that arrives prove anything of the path."""
    level, option, value = _dont_fragment(sock)
    if not option:
        return False
    try:
        return sock.getsockopt(level, option) == value
    except OSError:
        return False


def _dont_fragment(sock: socket.socket) -> tuple[int, int, int]:
    """Level, option and value; option 0 where this platform has none that we know."""
    ipv4, ipv6 = _DONT_FRAGMENT.get(sys.platform.rstrip("0123456789"), ((0, 0), (0, 0)))
    return (socket.IPPROTO_IPV6, *ipv6) if sock.family == socket.AF_INET6 else (socket.IPPROTO_IP, *ipv4)
