"""Where one side of a connection is in its messages: for who passes octets on and has to know whether he may speak.

Follows octets as they come, in whatever pieces, and keeps at most the beginning of a header. No I/O.
"""

from __future__ import annotations

from typing import Final

from pgtrunk.wire.framing import HEAD, HEADER_SIZE

__all__ = ["Boundary"]

_NEVER: Final = 1 << 62
"""Octets that are missing where nobody can tell any more where a message ends."""


class Boundary:
    """Of the messages behind the startup packet, or of all that a server sends."""

    __slots__ = ("_head", "_missing", "kind")

    def __init__(self) -> None:
        self.kind = 0
        """The type octet of the last message whose header has come; 0: none has."""
        self._head = b""
        """The beginning of a header."""
        self._missing = 0
        """Octets of the last message that are still to come."""

    @property
    def between(self) -> bool:
        """Whether all messages that have begun are complete."""
        return not self._missing and not self._head

    def feed(self, data: bytes) -> None:
        """Takes what came next. A length that no message can have ends all knowledge: nothing is ``between`` again."""
        if self._head:
            data = self._head + data
            self._head = b""
        at, size = self._missing, len(data)
        while at + HEADER_SIZE <= size:
            self.kind, length = HEAD(data, at)
            at += 1 + length if length >= 4 else _NEVER
        if at < size:
            self._head = data[at:]
            self._missing = 0
        else:
            self._missing = at - size
