"""Cuts what a client sends at message boundaries.

:class:`Inbound` gives whole messages, as few pieces as they arrived in. A message that is small is collected; a large
one is given in parts, the first of them long enough for whoever has to read its head. Parse is collected, since its
text is kept; up to a limit, behind which it has to be of the unnamed statement, and is given in parts too. Pure; knows
no message but by its header, and of Parse whether it gives a name.
"""

from __future__ import annotations

from typing import Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk.wire.frontend import KINDS, PARSE
from pgtrunk_gateway.errors import MessageTooLarge

__all__ = ["LONGEST_KEPT", "Inbound"]

_COLLECT: Final = 64 << 10
"""Octets up to which a message is collected."""
_BEGINNING: Final = 8 << 10
"""Octets of a larger message that are there before its first part is given: more than the names in its head."""
LONGEST_KEPT: Final = 16 << 20
"""Octets of a Parse message whose text is kept."""
_HINT: Final = "Send less at once, or raise max_packet_size."
_STATEMENT_HINT: Final = "Send what is long as a parameter, or let the statement be the unnamed one."


class Inbound:
    """The bytes of one session on their way in.

    ``limit`` is max_packet_size: the longest message in octets. Raises :class:`MessageTooLarge` above it, and
    :class:`ProtocolViolation` for a type octet or a length that no message has.
    """

    __slots__ = ("_wanted", "held", "limit", "rest")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rest = 0
        """Octets still to come of a message that was given in part."""
        self.held: list[bytes] = []
        """The beginning of a message that is collected. With neither, the next octet begins a message."""
        self._wanted = 0

    def feed(self, data: bytes) -> bytes:
        """Takes what arrived, which begins where the last message ended -> what can go on, maybe nothing."""
        if self.held:
            self.held.append(data)
            self._wanted -= len(data)
            if self._wanted > 0:
                return b""
            data = b"".join(self.held)
            self.held = []
        size = len(data)
        pos = 0
        while size - pos >= HEADER_SIZE:
            kind, length = HEAD(data, pos)
            if kind not in KINDS or length < 4:
                raise ProtocolViolation(f"invalid frontend message: type {kind}, length {length}")
            end = pos + length + 1
            if length > self.limit:
                raise _too_large(kind, length, end - size, f"max_packet_size = {self.limit}", _HINT)
            if end > size:
                return self._partial(kind, length, data, pos)
            pos = end
        if pos < size:
            self._hold(data[pos:], HEADER_SIZE)
            return data[:pos]
        return data

    def _partial(self, kind: int, length: int, data: bytes, pos: int) -> bytes:
        there = len(data) - pos
        if length < _COLLECT or (kind == PARSE and length <= LONGEST_KEPT):
            self._hold(data[pos:], length + 1)
        elif there < _BEGINNING:
            self._hold(data[pos:], _BEGINNING)
        elif kind == PARSE and data[pos + HEADER_SIZE]:
            detail = f"the longest statement with a name = {LONGEST_KEPT}"
            raise _too_large(kind, length, length + 1 - there, detail, _STATEMENT_HINT)
        else:
            self.rest = length + 1 - there
            return data
        return data[:pos]

    def _hold(self, data: bytes, until: int) -> None:
        self.held = [data]
        self._wanted = until - len(data)

    def put_back(self, data: bytes) -> None:
        """Whole messages that were given and cannot go on yet: they are given again with what comes next."""
        if self.held:
            self.held.insert(0, data)
        else:
            self._hold(data, len(data) + 1)

    def pass_rest(self, data: bytes) -> tuple[bytes, bytes]:
        """While :attr:`rest` > 0: splits ``data`` into what belongs to the message given in part, and what follows."""
        rest = self.rest
        if len(data) <= rest:
            self.rest = rest - len(data)
            return data, b""
        self.rest = 0
        return data[:rest], data[rest:]


def _too_large(kind: int, length: int, missing: int, detail: str, hint: str) -> MessageTooLarge:
    words = f"a message of type {chr(kind)!r} with {length} octets is too large"
    error = MessageTooLarge(words, detail=detail, hint=hint)
    error.missing = max(missing, 0)
    return error
