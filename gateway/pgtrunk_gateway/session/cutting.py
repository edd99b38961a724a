"""Cuts out of a stream of chunks what its reader does not get, and copies nothing of the rest.

A chunk may end anywhere in a message. What is left of it then is either held back, to be seen whole when all of it has
come, or passes in parts, of which only the number of octets that are missing is kept. Of a message that may be of any
length, what is held back is its beginning at most. Pure.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from pgtrunk.wire.framing import HEADER_SIZE

__all__ = ["BEGINNING", "LARGE", "UNSIGNED_HEAD", "Cutting"]

UNSIGNED_HEAD: Final = Struct("!BI").unpack_from
"""As in :mod:`pgtrunk.wire.framing`, but no length, however wrong, leads backwards."""
BEGINNING: Final = 8 << 10
"""Octets of a message by which it is known what it is, and what it says first."""
LARGE: Final = frozenset(b"NEV")
"""The messages that may be of any length, besides rows: a notice, an error, the result of a function call."""


class Cutting:
    """The state between two chunks, and the cuts made in the one that is being read."""

    __slots__ = ("_carry", "_cut", "_dropping", "_missing", "_need", "_out", "partial")

    def __init__(self) -> None:
        self.partial = False
        """A message has come in part: one of the next two."""
        self._carry: list[bytes] = []
        """Held back, as it came."""
        self._need = 0
        """Octets still to come of a message that passes in parts."""
        self._missing = 0
        """Octets still to come before what is held back is looked at again."""
        self._dropping = 0
        """The type of that message, where they are left out; 0: they are not."""
        self._out: list[bytes] = []
        """The pieces of this chunk up to the last cut, and how far that was."""
        self._cut = 0

    def _carried(self, data: bytes) -> bytes:
        """What was held back and ``data``; nothing, as long as that is not enough."""
        self._carry.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return b""
        carry, self._carry = self._carry, []
        return b"".join(carry)

    def _rest(self, data: bytes, pos: int, size: int) -> bytes:
        # Hold back a partial header or a partial message that matters; count what is missing of one that passes.
        self.partial = pos != size
        if pos > size:
            self._need = pos - size
            pos = size
        elif pos < size:
            self._carry = [data[pos:]]
            self._missing = _enough(data, pos, size) - (size - pos)
        cut, self._cut = self._cut, 0
        if not self._out:
            return data[cut:pos]
        out, self._out = self._out, []
        if cut < pos:
            out.append(data[cut:pos])
        return b"".join(out)

    def _emit(self, data: bytes, start: int, end: int) -> None:
        # Leaves data[start:end] out of what the session gets.
        if start > self._cut:
            self._out.append(data[self._cut : start])
        self._cut = end

    def _insert(self, data: bytes, at: int, message: bytes) -> None:
        self._emit(data, at, at)
        self._out.append(message)


def _enough(data: bytes, pos: int, size: int) -> int:
    """Octets of the message at ``pos`` with which it can be looked at."""
    if size - pos < HEADER_SIZE:
        return HEADER_SIZE
    kind: int
    length: int
    kind, length = UNSIGNED_HEAD(data, pos)
    whole: int = length + 1
    return min(whole, BEGINNING) if kind in LARGE else whole
