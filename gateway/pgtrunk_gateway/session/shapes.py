"""The shapes that nearly all requests have, which show without going through the messages. Hot; pure."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk.wire.frontend import SYNC_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXECUTION", "OTHER", "QUERY", "describes", "shape_of", "shape_within"]

OTHER: Final = 0
QUERY: Final = 1
EXECUTION: Final = 2

_DESCRIBE: Final = b"D\0\0\0\x06P\0"
"""Of the unnamed portal."""
_tail = Struct("!6s4x5s").unpack_from
_TAIL: Final = (b"E\0\0\0\x09\0", SYNC_MESSAGE)
"""Execute of the unnamed portal, whatever its limit of rows, and Sync: 15 octets."""
_BIND: Final = ord("B")
_QUERY: Final = ord("Q")
_UNLIMITED: Final = 1 << 30
"""Octets; nothing that arrives at once is as long."""


def shape_of(data: bytes) -> int:
    """QUERY: exactly one Query. EXECUTION: exactly Bind of the unnamed portal to a named statement, its Execute, Sync;
    libpq has a Describe of the portal before its Execute.
    """
    size = len(data)
    if size < HEADER_SIZE:
        return OTHER
    kind, length = HEAD(data, 0)
    if kind == _QUERY:
        return QUERY if length + 1 == size > HEADER_SIZE else OTHER
    if kind == _BIND and length > 6:
        # What follows Bind, and Bind's type octet.
        rest = size - length
        if (
            (rest == 16 or (rest == 23 and data[-22:-15] == _DESCRIBE))
            and data[5] == 0
            and data[6]
            and _tail(data, size - 15) == _TAIL
        ):
            return EXECUTION
    return OTHER


def describes(execution: bytes) -> bool:
    """Whether an EXECUTION has a Describe."""
    return execution[-22:-15] == _DESCRIBE


def shape_within(limit: int) -> Callable[[bytes], int]:
    """:func:`shape_of`, which shows no shape of what is longer than ``limit`` octets: somebody has to look closer."""
    if limit >= _UNLIMITED:
        return shape_of
    return lambda data: shape_of(data) if len(data) <= limit else OTHER
