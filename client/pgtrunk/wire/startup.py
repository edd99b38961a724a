"""The packets that open a connection: no type octet, a length that counts itself, and a code.

PostgreSQL documentation, "Message Formats": StartupMessage, SSLRequest, GSSENCRequest, CancelRequest. A CancelRequest
has 16 octets in protocol 3.0 and up to 268 in 3.2, whose secrets may be 4 to 256 octets long.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from pgtrunk.errors import ProtocolViolation, UnsupportedProtocol

__all__ = [
    "PROTOCOL_3_0",
    "PROTOCOL_3_2",
    "CancelRequest",
    "GSSENCRequest",
    "SSLRequest",
    "StartupMessage",
    "StartupPacket",
    "parse_startup",
    "version",
]

PROTOCOL_3_0 = 3 << 16
PROTOCOL_3_2 = 3 << 16 | 2
_CANCEL = 1234 << 16 | 5678
_SSL = 1234 << 16 | 5679
_GSSENC = 1234 << 16 | 5680
_MAX_STARTUP = 10_000
"""Octets; PostgreSQL's MAX_STARTUP_PACKET_LENGTH."""
_MAX_SECRET = 256

_HEAD = struct.Struct("!ii")
_CANCEL_HEAD = struct.Struct("!iii")


def version(protocol: int) -> str:
    """As people write it: "3.2"."""
    return f"{protocol >> 16 & 0xFFFF}.{protocol & 0xFFFF}"


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """A request for a session.

    ``protocol`` is major << 16 | minor; ``parameters`` holds user, database, options and settings as sent, in order,
    without the ``_pq_.`` protocol options, which are in ``options``.
    """

    protocol: int = PROTOCOL_3_0
    parameters: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        pairs = (*self.parameters.items(), *self.options.items())
        body = b"".join(_octets(k) + b"\0" + _octets(v) + b"\0" for k, v in pairs) + b"\0"
        return _HEAD.pack(len(body) + 8, self.protocol) + body


def _octets(text: str) -> bytes:
    # A name that a server has given need not be UTF-8: its octets are kept as surrogates.
    return text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class SSLRequest:
    """Asks whether TLS may start; answered by one octet, 'S' or 'N'."""

    def encode(self) -> bytes:
        return _HEAD.pack(8, _SSL)


@dataclass(frozen=True, slots=True)
class GSSENCRequest:
    """Asks whether GSSAPI encryption may start; answered by one octet, 'G' or 'N'."""

    def encode(self) -> bytes:
        return _HEAD.pack(8, _GSSENC)


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Asks to cancel what the session with this ``pid`` runs. ``secret`` is never logged."""

    pid: int
    secret: bytes = field(repr=False)

    def encode(self) -> bytes:
        return _CANCEL_HEAD.pack(12 + len(self.secret), _CANCEL, self.pid) + self.secret


StartupPacket = StartupMessage | SSLRequest | GSSENCRequest | CancelRequest


def parse_startup(data: bytes) -> tuple[StartupPacket, int] | None:
    """Parses the packet at the start of ``data`` -> the packet and its length in octets; None while it is incomplete.

    Raises :class:`ProtocolViolation` for what is no startup packet, from the first octets that show it.
    """
    if len(data) < 4:
        return None
    (length,) = struct.unpack_from("!i", data)
    if not 8 <= length <= _MAX_STARTUP:
        raise ProtocolViolation(f"invalid length of startup packet: {length}; it must be from 8 to {_MAX_STARTUP}")
    if len(data) < 8:
        return None
    (code,) = struct.unpack_from("!i", data, 4)
    _check(code, length)
    if len(data) < length:
        return None
    return _parse(code, data[8:length]), length


def _check(code: int, length: int) -> None:
    if code in (_SSL, _GSSENC):
        if length != 8:
            raise ProtocolViolation(f"an encryption request has 8 octets, not {length}")
    elif code == _CANCEL:
        if not 13 <= length <= 12 + _MAX_SECRET:
            raise ProtocolViolation(f"a cancel request has 13 to {12 + _MAX_SECRET} octets, not {length}")
    elif code >> 16 != 3:
        raise UnsupportedProtocol(f"unsupported frontend protocol {version(code)}: the gateway speaks 3.0 to 3.2")


def _parse(code: int, body: bytes) -> StartupPacket:
    if code == _SSL:
        return SSLRequest()
    if code == _GSSENC:
        return GSSENCRequest()
    if code == _CANCEL:
        return CancelRequest(struct.unpack_from("!i", body)[0], body[4:])
    parameters = _parse_parameters(body)
    options = {k: parameters.pop(k) for k in list(parameters) if k.startswith("_pq_.")}
    return StartupMessage(code, parameters, options)


def _parse_parameters(body: bytes) -> dict[str, str]:
    # Names and values are zero-terminated strings, an empty name ends the list.
    fields = body.split(b"\0")
    parameters: dict[str, str] = {}
    for at in range(0, len(fields) - 1, 2):
        if not fields[at]:
            if at == len(fields) - 2 and not fields[-1]:
                return parameters
            break
        if at + 2 >= len(fields):
            break
        try:
            parameters[fields[at].decode()] = fields[at + 1].decode()
        except UnicodeDecodeError:
            raise ProtocolViolation("a startup parameter is not valid UTF-8") from None
    raise ProtocolViolation("invalid startup packet layout: expected a zero octet after the last parameter")
