"""Prepared statements: one object per distinct statement, and what each backend has of them.

A client's name for a statement is its own; on the backends the gateway uses names of its choice, of the same length as
the client's where that is possible, so that renaming a Bind is one concatenation. A name begins with ``~``, which no
driver does, so names of clients that reach a backend unchanged (unknown to the gateway, or made by SQL PREPARE) do not
collide with ours. Pure data; who sends what is decided in :mod:`~pgtrunk_gateway.session.requests`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pgtrunk.wire.framing import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Catalogue", "Prepared", "Statement"]

_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNKNOWN = -1
_LONG = 16
"""Length of the names that are used where short ones have run out."""


class Statement:
    """A text with its parameter types, and the name it has on every backend; b"" is the unnamed statement.

    ``body`` is what follows the name in a Parse message. Statements are compared by identity: :class:`Catalogue` makes
    equal ones the same.
    """

    __slots__ = ("__weakref__", "body", "name")

    def __init__(self, name: bytes, body: bytes) -> None:
        self.name = name
        self.body = body

    @property
    def parse(self) -> bytes:
        """The Parse message that prepares it on a backend."""
        return encode(b"P", self.name + b"\0" + self.body)

    def __repr__(self) -> str:
        return f"<Statement {self.name.decode()!r} {self.body[:40]!r}>"


class Catalogue:
    """All statements that some session or some backend has, each once.

    A statement lives as long as somebody holds it; names are never used twice.
    """

    def __init__(self) -> None:
        self._statements: WeakValueDictionary[tuple[int, bytes], Statement] = WeakValueDictionary()
        self._used: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._statements)

    def intern(self, length: int, body: bytes) -> Statement:
        """The statement with this ``body`` for clients whose name for it has ``length`` octets."""
        key = (length, body)
        statement = self._statements.get(key)
        if statement is None:
            statement = self._statements[key] = Statement(self._new_name(length), body)
        return statement

    def retire(self, length: int, statement: Statement) -> None:
        """Who has ``statement`` keeps it; who asks for its text from now on gets another, parsed anew everywhere."""
        key = (length, statement.body)
        if self._statements.get(key) is statement:
            del self._statements[key]

    def _new_name(self, length: int) -> bytes:
        number = self._used.get(length, 0)
        if length != _LONG and number >= 62 ** (length - 1):
            return self._new_name(_LONG)
        self._used[length] = number + 1
        digits = bytearray()
        while number:
            number, digit = divmod(number, 62)
            digits.append(_DIGITS[digit])
        digits.reverse()
        return b"~" + bytes(digits).rjust(length - 1, b"0")


class Prepared:
    """The statements that a backend has, least recently used first, at most ``limit`` of them (0: no limit).

    A statement whose ParseComplete has not come yet is kept with the number of the batch that will bring it: within
    that batch it can be relied on (if its Parse fails, all that follows is skipped), in a later batch it cannot.
    """

    __slots__ = ("_batches", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._batches: OrderedDict[Statement, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._batches)

    def usable(self, statement: Statement, batch: int) -> bool:
        """Whether a message of ``batch`` can rely on it. Marks it as used."""
        owner = self._batches.get(statement)
        if owner is None:
            return False
        self._batches.move_to_end(statement)
        return owner in (0, batch)

    def unsure(self, statement: Statement) -> bool:
        """Whether the backend may have it or not: its Parse was sent in another batch, whose end is not known."""
        return self._batches.get(statement, 0) != 0

    def doubt(self, statement: Statement) -> None:
        """Whether the backend has it cannot be known: it has to be closed before it is prepared again."""
        self._batches[statement] = _UNKNOWN

    def expect(self, statement: Statement, batch: int) -> Statement | None:
        """Its Parse goes out in ``batch`` -> the statement that has to be closed to make room, or None."""
        self._batches[statement] = batch
        self._batches.move_to_end(statement)
        if self.limit and len(self._batches) > self.limit:
            for oldest, owner in self._batches.items():
                if owner <= 0:
                    del self._batches[oldest]
                    return oldest
        return None

    def confirm(self, statement: Statement) -> None:
        """Its ParseComplete came, or a Close of it was skipped after an error."""
        self._batches[statement] = 0

    def forget(self, statement: Statement) -> None:
        """Its Parse failed or was skipped."""
        self._batches.pop(statement, None)

    def clear(self) -> None:
        """DISCARD ALL or DEALLOCATE ALL ran."""
        self._batches.clear()
