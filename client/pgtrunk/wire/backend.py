"""Messages that a server sends: their type octets, encoders, and parsers of what gateway and client must understand.

Type octets are ints, since indexing bytes gives ints. Parsers take a message *body* (what follows the length).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import framing
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import text

__all__ = [
    "AUTHENTICATION",
    "BACKEND_KEY_DATA",
    "BIND_COMPLETE",
    "CLOSE_COMPLETE",
    "COMMAND_COMPLETE",
    "COPY_BOTH",
    "COPY_IN",
    "COPY_OUT",
    "DATA_ROW",
    "EMPTY_QUERY",
    "ERROR",
    "FUNCTION_RESULT",
    "NEGOTIATE_PROTOCOL",
    "NOTICE",
    "NOTIFICATION",
    "NO_DATA",
    "PARAMETER_DESCRIPTION",
    "PARAMETER_STATUS",
    "PARSE_COMPLETE",
    "PORTAL_SUSPENDED",
    "READY",
    "ROW_DESCRIPTION",
    "CLOSE_COMPLETE_MESSAGE",
    "PARSE_COMPLETE_MESSAGE",
    "Authentication",
    "BackendKeyData",
    "ErrorFields",
    "authentication_cleartext_password",
    "authentication_md5_password",
    "authentication_ok",
    "authentication_sasl",
    "authentication_sasl_continue",
    "authentication_sasl_final",
    "backend_key_data",
    "command_complete",
    "data_row",
    "error",
    "negotiate_protocol",
    "notice",
    "parameter_status",
    "parse_authentication",
    "parse_backend_key_data",
    "parse_data_row",
    "parse_error",
    "parse_negotiate_protocol",
    "parse_parameter_status",
    "parse_sasl_mechanisms",
    "ready",
    "row_description",
]

AUTHENTICATION: Final = ord("R")
BACKEND_KEY_DATA: Final = ord("K")
BIND_COMPLETE: Final = ord("2")
CLOSE_COMPLETE: Final = ord("3")
COMMAND_COMPLETE: Final = ord("C")
COPY_BOTH: Final = ord("W")
COPY_IN: Final = ord("G")
COPY_OUT: Final = ord("H")
DATA_ROW: Final = ord("D")
EMPTY_QUERY: Final = ord("I")
ERROR: Final = ord("E")
FUNCTION_RESULT: Final = ord("V")
NEGOTIATE_PROTOCOL: Final = ord("v")
NOTICE: Final = ord("N")
NOTIFICATION: Final = ord("A")
NO_DATA: Final = ord("n")
PARAMETER_DESCRIPTION: Final = ord("t")
PARAMETER_STATUS: Final = ord("S")
PARSE_COMPLETE: Final = ord("1")
PORTAL_SUSPENDED: Final = ord("s")
READY: Final = ord("Z")
ROW_DESCRIPTION: Final = ord("T")

PARSE_COMPLETE_MESSAGE = encode(b"1")
CLOSE_COMPLETE_MESSAGE = encode(b"3")

_TEXT_OID = 25
_MAJOR = 3 << 16


# -- login -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Authentication:
    """An authentication request: its ``code`` (0 ok, 3 cleartext, 5 MD5, 10 SASL, 11 continue, 12 final) and data."""

    code: int
    data: bytes


def parse_authentication(body: bytes) -> Authentication:
    if len(body) < 4:
        raise ProtocolViolation("authentication message is too short")
    return Authentication(struct.unpack_from("!i", body)[0], body[4:])


def authentication_ok() -> bytes:
    return encode(b"R", struct.pack("!i", 0))


def authentication_cleartext_password() -> bytes:
    return encode(b"R", struct.pack("!i", 3))


def authentication_md5_password(salt: bytes) -> bytes:
    """``salt``: 4 octets."""
    return encode(b"R", struct.pack("!i", 5) + salt)


def authentication_sasl(mechanisms: Iterable[str]) -> bytes:
    return encode(b"R", struct.pack("!i", 10) + b"".join(m.encode() + b"\0" for m in mechanisms) + b"\0")


def authentication_sasl_continue(data: bytes) -> bytes:
    return encode(b"R", struct.pack("!i", 11) + data)


def authentication_sasl_final(data: bytes) -> bytes:
    return encode(b"R", struct.pack("!i", 12) + data)


def parse_sasl_mechanisms(data: bytes) -> list[str]:
    """The mechanisms that an AuthenticationSASL offers (``data`` as in :class:`Authentication`)."""
    return [name.decode("ascii", "replace") for name in data.split(b"\0") if name]


@dataclass(frozen=True, slots=True)
class BackendKeyData:
    """What a CancelRequest has to show. ``secret`` has 4 octets in protocol 3.0, 4 to 256 in 3.2; never logged."""

    pid: int
    secret: bytes = field(repr=False)


def backend_key_data(pid: int, secret: bytes) -> bytes:
    return encode(b"K", struct.pack("!i", pid) + secret)


def parse_backend_key_data(body: bytes) -> BackendKeyData:
    """A secret may be as long as 3.2 allows whatever is spoken: whoever gave it will know it again."""
    if not 8 <= len(body) <= 260:
        raise ProtocolViolation(f"BackendKeyData has {len(body)} octets; it must have 8 to 260")
    return BackendKeyData(struct.unpack_from("!i", body)[0], body[4:])


def negotiate_protocol(newest: int, unsupported: Sequence[str]) -> bytes:
    """``newest`` is the highest protocol spoken, major << 16 | minor; ``unsupported`` the ``_pq_.`` options refused."""
    names = b"".join(name.encode() + b"\0" for name in unsupported)
    return encode(b"v", struct.pack("!ii", newest, len(unsupported)) + names)


def parse_negotiate_protocol(body: bytes) -> tuple[int, list[str]]:
    """The two arguments of :func:`negotiate_protocol`.

    PostgreSQL's documentation up to 17 has "newest minor protocol version" there, its code the whole version: a server
    that was written by the documentation sends the minor alone.
    """
    if len(body) < 8:
        raise ProtocolViolation("NegotiateProtocolVersion is too short")
    newest, count = struct.unpack_from("!ii", body)
    if count < 0:
        raise ProtocolViolation(f"NegotiateProtocolVersion announces {count} options")
    names = []
    at = 8
    for _ in range(count):
        name, at = text(body, at)
        names.append(name.decode("utf-8", "replace"))
    return (newest if newest >> 16 else _MAJOR | newest), names


def parameter_status(name: str, value: str) -> bytes:
    """``value`` may hold what :func:`parse_parameter_status` made of octets that are not UTF-8."""
    return encode(b"S", name.encode() + b"\0" + value.encode("utf-8", "surrogateescape") + b"\0")


def parse_parameter_status(body: bytes) -> tuple[str, str]:
    """Name and value; octets of a value in another encoding than UTF-8 become lone surrogates."""
    name, at = text(body)
    value, _ = text(body, at)
    return name.decode("utf-8", "replace"), value.decode("utf-8", "surrogateescape")


def ready(status: bytes = b"I") -> bytes:
    """``status``: I idle, T in a transaction, E in a failed one."""
    return encode(b"Z", status)


# -- errors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorFields:
    """What an ErrorResponse or NoticeResponse says; fields of other types are left out."""

    severity: str = "ERROR"
    sqlstate: str = "XX000"
    message: str = ""
    detail: str = ""
    hint: str = ""


def error(sqlstate: str, message: str, *, severity: str = "ERROR", detail: str = "", hint: str = "") -> bytes:
    """An ErrorResponse; ``severity`` ERROR where the session goes on, FATAL where it ends."""
    return encode(b"E", _fields(ErrorFields(severity, sqlstate, message, detail, hint)))


def notice(sqlstate: str, message: str, *, severity: str = "NOTICE", detail: str = "", hint: str = "") -> bytes:
    return encode(b"N", _fields(ErrorFields(severity, sqlstate, message, detail, hint)))


def _fields(fields: ErrorFields) -> bytes:
    pairs = [
        ("S", fields.severity),
        ("V", fields.severity),
        ("C", fields.sqlstate),
        ("M", fields.message),
        ("D", fields.detail),
        ("H", fields.hint),
    ]
    # A zero in a text would end the field early and shift all that follows.
    return b"".join(k.encode() + v.replace("\0", "").encode() + b"\0" for k, v in pairs if v) + b"\0"


def parse_error(body: bytes) -> ErrorFields:
    values: dict[str, str] = {}
    at = 0
    while at < len(body) and body[at]:
        value, end = text(body, at + 1)
        values[chr(body[at])] = value.decode("utf-8", "replace")
        at = end
    return ErrorFields(
        values.get("V", values.get("S", "ERROR")),
        values.get("C", "XX000"),
        values.get("M", ""),
        values.get("D", ""),
        values.get("H", ""),
    )


# -- results ---------------------------------------------------------------------------------------------------------


def row_description(columns: Sequence[str], oids: Sequence[int] | None = None) -> bytes:
    """Columns in text format; ``oids`` are their type OIDs, text where not given."""
    parts = [struct.pack("!h", len(columns))]
    for at, name in enumerate(columns):
        oid = _TEXT_OID if oids is None else oids[at]
        parts.append(name.encode() + b"\0" + struct.pack("!ihihih", 0, 0, oid, -1, -1, 0))
    return encode(b"T", b"".join(parts))


def data_row(values: Sequence[bytes | None]) -> bytes:
    return encode(b"D", struct.pack("!h", len(values)) + b"".join(map(framing.field, values)))


def parse_data_row(body: bytes) -> list[bytes | None]:
    """The columns of a DataRow; None is NULL. Raises :class:`ProtocolViolation` for one that is cut off."""
    if len(body) < 2:
        raise ProtocolViolation("a row has no number of columns")
    values: list[bytes | None] = []
    at = 2
    for _ in range(struct.unpack_from("!h", body)[0]):
        if len(body) < at + 4:
            raise ProtocolViolation("a row is cut off")
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        if length > len(body) - at:
            raise ProtocolViolation("a row is cut off")
        values.append(None if length < 0 else body[at : at + length])
        at += max(0, length)
    return values


def command_complete(tag: str) -> bytes:
    return encode(b"C", tag.encode() + b"\0")
