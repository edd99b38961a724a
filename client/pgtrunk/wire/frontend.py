"""Messages that a client sends: their type octets, encoders, and parsers of what the gateway has to understand.

Type octets are ints, since indexing bytes gives ints. Parsers take a message *body* (what follows the length).
Texts are bytes as they are on the wire: their encoding is the session's business.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.framing import encode, field

__all__ = [
    "BIND",
    "CLOSE",
    "COPY_DATA",
    "COPY_DONE",
    "COPY_FAIL",
    "DESCRIBE",
    "EXECUTE",
    "FLUSH",
    "FUNCTION_CALL",
    "KINDS",
    "PARSE",
    "PASSWORD",
    "QUERY",
    "SYNC",
    "TERMINATE",
    "FLUSH_MESSAGE",
    "SYNC_MESSAGE",
    "TERMINATE_MESSAGE",
    "COPY_DONE_MESSAGE",
    "SaslInitialResponse",
    "bind",
    "close_portal",
    "close_statement",
    "copy_data",
    "copy_fail",
    "describe_portal",
    "describe_statement",
    "execute",
    "parse",
    "parse_password",
    "parse_sasl_initial_response",
    "password",
    "query",
    "sasl_initial_response",
    "sasl_response",
    "text",
]

BIND: Final = ord("B")
CLOSE: Final = ord("C")
COPY_DATA: Final = ord("d")
COPY_DONE: Final = ord("c")
COPY_FAIL: Final = ord("f")
DESCRIBE: Final = ord("D")
EXECUTE: Final = ord("E")
FLUSH: Final = ord("H")
FUNCTION_CALL: Final = ord("F")
PARSE: Final = ord("P")
PASSWORD: Final = ord("p")
QUERY: Final = ord("Q")
SYNC: Final = ord("S")
TERMINATE: Final = ord("X")

KINDS = frozenset(b"BCcdfDEFHPpQSX")
"""Every type octet that a client may send."""

FLUSH_MESSAGE = encode(b"H")
SYNC_MESSAGE = encode(b"S")
TERMINATE_MESSAGE = encode(b"X")
COPY_DONE_MESSAGE = encode(b"c")


def text(body: bytes, start: int = 0) -> tuple[bytes, int]:
    """The zero-terminated text at ``start`` -> the text and the offset behind its zero.

    Raises :class:`ProtocolViolation` where the zero is missing.
    """
    end = body.find(0, start)
    if end < 0:
        raise ProtocolViolation("invalid string in message: its terminating zero is missing")
    return body[start:end], end + 1


def query(sql: bytes) -> bytes:
    return encode(b"Q", sql + b"\0")


def parse(name: bytes, sql: bytes, types: Sequence[int] = ()) -> bytes:
    """``types`` are parameter type OIDs; 0 lets the server infer one."""
    return encode(b"P", name + b"\0" + sql + b"\0" + struct.pack(f"!h{len(types)}I", len(types), *types))


def bind(portal: bytes, statement: bytes, values: Sequence[bytes | None] = (), *, binary: bool = False) -> bytes:
    """All parameters and results in one format, text unless ``binary``."""
    head = portal + b"\0" + statement + b"\0" + struct.pack("!hhH", 1, binary, len(values))
    return encode(b"B", head + b"".join(map(field, values)) + struct.pack("!hh", 1, binary))


def describe_statement(name: bytes) -> bytes:
    return encode(b"D", b"S" + name + b"\0")


def describe_portal(name: bytes) -> bytes:
    return encode(b"D", b"P" + name + b"\0")


def close_statement(name: bytes) -> bytes:
    return encode(b"C", b"S" + name + b"\0")


def close_portal(name: bytes) -> bytes:
    return encode(b"C", b"P" + name + b"\0")


def execute(portal: bytes = b"", limit: int = 0) -> bytes:
    """``limit`` rows at most; 0 is all."""
    return encode(b"E", portal + b"\0" + struct.pack("!i", limit))


def copy_data(data: bytes) -> bytes:
    return encode(b"d", data)


def copy_fail(reason: bytes) -> bytes:
    return encode(b"f", reason + b"\0")


def password(secret: bytes) -> bytes:
    return encode(b"p", secret + b"\0")


def parse_password(body: bytes) -> bytes:
    """The answer to a request for a password in clear, or hashed by MD5."""
    secret, end = text(body)
    if end != len(body):
        raise ProtocolViolation("the password message has octets behind its terminating zero")
    return secret


@dataclass(frozen=True, slots=True)
class SaslInitialResponse:
    """The client's choice of mechanism; ``data`` is None where it sent none."""

    mechanism: str
    data: bytes | None


def sasl_initial_response(mechanism: str, data: bytes) -> bytes:
    return encode(b"p", mechanism.encode() + b"\0" + struct.pack("!i", len(data)) + data)


def sasl_response(data: bytes) -> bytes:
    return encode(b"p", data)


def parse_sasl_initial_response(body: bytes) -> SaslInitialResponse:
    mechanism, at = text(body)
    if len(body) < at + 4:
        raise ProtocolViolation("SASLInitialResponse is too short")
    (length,) = struct.unpack_from("!i", body, at)
    data = body[at + 4 :]
    if length == -1 and not data:
        return SaslInitialResponse(mechanism.decode("ascii", "replace"), None)
    if length != len(data):
        raise ProtocolViolation(f"SASLInitialResponse announces {length} octets and has {len(data)}")
    return SaslInitialResponse(mechanism.decode("ascii", "replace"), data)
