"""Cuts out of a stream of chunks what its reader does not get, and copies nothing of the rest.

A chunk may end anywhere in a message. What is left of it then is either held back, to be seen whole with the next
chunk, or passes in parts, of which only the number of octets that are missing is kept. Pure.
"""

from __future__ import annotations

__all__ = ["Cutting"]


class Cutting:
    """The state between two chunks, and the cuts made in the one that is being read."""

    __slots__ = ("_carry", "_cut", "_dropping", "_need", "_out", "partial")

    def __init__(self) -> None:
        self.partial = False
        """A message has come in part: one of the next two."""
        self._carry = b""
        """Held back."""
        self._need = 0
        """Octets still to come of a message that passes in parts."""
        self._dropping = False
        """They are left out."""
        self._out: list[bytes] = []
        """The pieces of this chunk up to the last cut, and how far that was."""
        self._cut = 0

    def _rest(self, data: bytes, pos: int, size: int) -> bytes:
        # Hold back a partial header or a partial message that matters; count what is missing of one that passes.
        self.partial = pos != size
        if pos > size:
            self._need = pos - size
            pos = size
        elif pos < size:
            self._carry = data[pos:]
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
