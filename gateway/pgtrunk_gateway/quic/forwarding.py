"""How one worker hands a datagram to another: as it came, and behind it all that an answer needs.

The kernel leads nearly all datagrams to the right socket. What it does not (it has refused the program, or it has
hashed) is handed on in one of these frames, and is never handed on a second time. Pure. Both ends are processes of one
machine, but maybe of two versions, while one replaces the other: hence the version.

    octet 0        version, 1
    octet 1        family of the peer's address: 4 or 6
    octet 2        which of the workers' sockets it came to: its number among the addresses, from 0
    octet 3        size of the control data
    octets 4, 5    the peer's port, big endian
    octets 6-9     flow label of an IPv6 address, big endian; otherwise 0
    octets 10-13   its scope (interface), big endian; otherwise 0
    then           the peer's address, 4 or 16 octets; the control data that makes an answer leave from the address that
                   was hit (``Path.local``), as this machine's kernel has it; the datagram
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgtrunk_gateway.quic.udp import Path

__all__ = ["MAX_FRAME", "Forwarded"]

VERSION = 1
_HEAD = Struct("!BBBBHII")
_FAMILIES = {4: (socket.AF_INET, 4), 6: (socket.AF_INET6, 16)}

MAX_FRAME = 65535 + _HEAD.size + 16 + 255
"""Octets of the longest."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A datagram on its way to the worker that it belongs to."""

    socket: int
    peer: tuple[Any, ...]
    """As the receiving socket gave it: host and port, with IPv6 flow label and scope too."""
    local: bytes
    data: bytes

    @classmethod
    def of(cls, data: bytes, path: Path, number: int) -> Forwarded:
        """What came along ``path`` to socket ``number``."""
        return cls(number, tuple(path), path.local, data)

    def encode(self) -> bytes:
        """One frame."""
        host, port, *rest = self.peer
        version = 6 if rest else 4
        flow, scope = rest or (0, 0)
        head = _HEAD.pack(VERSION, version, self.socket, len(self.local), port, flow, scope)
        return head + socket.inet_pton(_FAMILIES[version][0], host.partition("%")[0]) + self.local + self.data

    @classmethod
    def decode(cls, frame: bytes) -> Forwarded | None:
        """Reads a frame; None for what is none, or of another version."""
        if len(frame) < _HEAD.size:
            return None
        version, family, number, local_size, port, flow, scope = _HEAD.unpack_from(frame)
        if version != VERSION or family not in _FAMILIES:
            return None
        kind, size = _FAMILIES[family]
        local_at = _HEAD.size + size
        data_at = local_at + local_size
        if len(frame) < data_at:
            return None
        host = socket.inet_ntop(kind, frame[_HEAD.size : local_at])
        peer = (host, port, flow, scope) if family == 6 else (host, port)
        return cls(number, peer, frame[local_at:data_at], frame[data_at:])
