"""The shapes that nearly all requests have, which show without going through the messages. Hot; pure."""

from __future__ import annotations

from typing import Final

from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk.wire.frontend import SYNC_MESSAGE

__all__ = ["EXECUTION", "OTHER", "QUERY", "shape_of"]

OTHER: Final = 0
QUERY: Final = 1
EXECUTION: Final = 2

_SYNC: Final = SYNC_MESSAGE
_EXECUTE_UNNAMED: Final = b"E\0\0\0\x09\0"
_DESCRIBE_UNNAMED: Final = b"D\0\0\0\x06P\0"
_TAIL: Final = 15
"""Octets of Execute of the unnamed portal, with Sync."""
_LONG_TAIL: Final = 22
"""The same with Describe of that portal ahead."""
_BIND: Final = ord("B")
_QUERY: Final = ord("Q")


def shape_of(data: bytes) -> int:
    """QUERY: exactly one Query. EXECUTION: exactly Bind of the unnamed portal to a named statement, its Execute, Sync;
    libpq has a Describe of the portal before its Execute.
    """
    size = len(data)
    if size < HEADER_SIZE:
        return OTHER
    kind, length = HEAD(data, 0)
    if kind == _QUERY:
        return QUERY if length + 1 == size else OTHER
    if (
        kind == _BIND
        and (
            length == size - _TAIL - 1
            or (length == size - _LONG_TAIL - 1 and data[-_LONG_TAIL:-_TAIL] == _DESCRIBE_UNNAMED)
        )
        and data[5] == 0
        and data[6]
        and data[-_TAIL : 6 - _TAIL] == _EXECUTE_UNNAMED
        and data[-5:] == _SYNC
    ):
        return EXECUTION
    return OTHER
