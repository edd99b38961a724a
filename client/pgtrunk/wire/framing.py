"""Message framing of the Postgres protocol v3: hop over headers, never look inside.

Every message after the startup packet is one type octet, a 4-byte length that counts itself, and a body (PostgreSQL
documentation, "Message Formats"). The relay hops from header to header with :data:`HEAD` and forwards chunks whole;
:class:`MessageReader` is for the places that want messages one by one, such as a login. Bytes in, bytes out; no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pgtrunk.errors import ProtocolViolation

__all__ = ["HEAD", "HEADER_SIZE", "MAX_MESSAGE", "MessageReader", "encode", "field", "messages", "whole"]

HEAD = struct.Struct("!Bi").unpack_from
"""``HEAD(data, offset) -> (type octet, length)``. The fastest exact way in pure Python: 0.07 us a message."""

HEADER_SIZE = 5
MAX_MESSAGE = 0x3FFFFFFF
"""Octets; PostgreSQL's own limit for large messages (PQ_LARGE_MESSAGE_LIMIT, 1 GiB less one)."""

_pack = struct.Struct("!ci").pack


def encode(kind: bytes, body: bytes = b"") -> bytes:
    """One message: ``kind`` is its type octet, ``body`` all that follows the length."""
    return _pack(kind, len(body) + 4) + body


def field(value: bytes | None) -> bytes:
    """A parameter of Bind or a column of DataRow: its length and octets, length -1 for NULL."""
    return b"\xff\xff\xff\xff" if value is None else len(value).to_bytes(4, "big") + value


def whole(data: bytes | bytearray) -> int:
    """Length of the longest prefix of ``data`` that consists of complete messages.

    ``data`` starts at a message boundary. Raises :class:`ProtocolViolation` for a length below 4.
    """
    end = 0
    for _, _, end in messages(data):  # noqa: B007 - the last one counts
        pass
    return end


def messages(data: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """The complete messages in ``data`` as ``(type octet, start of header, end)``; not a partial one.

    ``data`` starts at a message boundary. Raises :class:`ProtocolViolation` for a length below 4.
    """
    start, size = 0, len(data)
    while start + HEADER_SIZE <= size:
        kind, length = HEAD(data, start)
        if length < 4:
            raise ProtocolViolation(f"message {chr(kind)!r} has length {length}; the least is 4")
        end = start + 1 + length
        if end > size:
            return
        yield kind, start, end
        start = end


class MessageReader:
    """Collects bytes and gives back whole messages, none larger than ``limit`` octets.

    For dialogues whose messages are small and few. A message above the limit raises :class:`ProtocolViolation` as soon
    as its header is there, so that nobody can make us collect it.
    """

    __slots__ = ("_buffer", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = b""

    def __len__(self) -> int:
        """Octets that have arrived and not been given back."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Adds what arrived."""
        self._buffer += data

    def next(self) -> tuple[int, bytes] | None:
        """The next ``(type octet, body)``, or None until more arrives."""
        buffer = self._buffer
        if len(buffer) < HEADER_SIZE:
            return None
        kind, length = HEAD(buffer, 0)
        if length < 4 or length > self.limit:
            raise ProtocolViolation(
                f"message {chr(kind)!r} has length {length}; here it must be from 4 to {self.limit}"
            )
        end = length + 1
        if len(buffer) < end:
            return None
        self._buffer = buffer[end:]
        return kind, buffer[HEADER_SIZE:end]

    def rest(self) -> bytes:
        """Takes out the bytes that were not given back as messages."""
        rest, self._buffer = self._buffer, b""
        return rest
