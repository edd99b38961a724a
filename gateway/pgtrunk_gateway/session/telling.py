"""How a backend describes statements: what clients are told of it, and what is remembered.

Between :class:`~pgtrunk_gateway.session.copying.Copying` and :class:`~pgtrunk_gateway.session.failing.Failing`. The two
messages that answer Describe go to the client together, since between them Postgres may find out that the columns are
others now, and then all is asked again. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session import owed as entries
from pgtrunk_gateway.session.copying import Copying
from pgtrunk_gateway.session.descriptions import key_of
from pgtrunk_gateway.session.owed import Describing, Naming

if TYPE_CHECKING:
    from pgtrunk_gateway.session.descriptions import Description
    from pgtrunk_gateway.session.owed import Owed
    from pgtrunk_gateway.session.statements import Prepared, Statement

__all__ = ["Telling"]

_PARAMETERS: Final = ord("t")
_RELYING: Final = frozenset({entries.BATCH, entries.BIND, entries.EXECUTE})
"""What fails where a statement is not any more what it was when it was parsed."""
_MOVED: Final = (b"\0C42804\0", b"\0C42883\0")
"""A type is another one than was thought; there is no function, or operator, for such types."""
_INTERNAL: Final = b"\0CXX000\0"
_GONE: Final = b"cache lookup failed"
"""In the message of an error that no server translates: something that was dropped is looked up by its number."""


class Telling(Copying):
    """The descriptions that this backend has given."""

    __slots__ = ("unnamed", "unnamed_batch", "unnamed_seen")

    def __init__(self, prepared: Prepared, parameters: dict[str, str]) -> None:
        super().__init__(prepared, parameters)
        self.unnamed: Statement | None = None
        """The unnamed statement that the backend has, or will have after batch ``unnamed_batch``; None: not known."""
        self.unnamed_batch = 0
        self.unnamed_seen: Description | None = None
        """How it is described here, where that is known."""

    def seen(self, statement: Statement) -> Description | None:
        """How ``statement`` is described here, if the backend has it and that is known."""
        if statement.name:
            return self.prepared.seen(statement)
        sure = self.unnamed is statement and (self.unnamed_batch == self.batch or not self.queue)
        return self.unnamed_seen if sure else None

    def _describes(self, entry: Describing, kind: int, data: bytes, start: int, end: int) -> None:
        """A part of the answer that ``entry`` owes."""
        if kind == _PARAMETERS:
            entry.parameters = data[start:end]
            self._emit(data, start, end)
            return
        if entry.hidden:
            self._emit(data, start, end)
        elif kind in entry.ends:
            self._insert(data, start, entry.parameters)
        if kind in entry.ends and self.asker is not None:
            try:
                description = self.asker.description(key_of(entry.parameters, data[start:end]))
            except ValueError:
                self._out_of_step()
                return
            self._note_description(entry, description)

    def _note_description(self, entry: Describing, description: Description) -> None:
        statement = entry.statement
        if statement.name:
            self.prepared.described(statement, entry.batch, description)
        elif self.unnamed is statement and self.unnamed_batch <= entry.batch:
            self.unnamed_seen = description
        if not entry.hidden and self.asker is not None:
            later = [owed for owed in self.queue if isinstance(owed, Naming)]
            self.asker.told(entry.name, statement, description, later)

    def _suspect(self, head: Owed, error: bytes) -> None:
        """If ``error`` may come of what a statement was parsed to, it is parsed anew when it is used again."""
        if self.asker is None or not (any(code in error for code in _MOVED) or (_INTERNAL in error and _GONE in error)):
            return
        if isinstance(head, Describing):
            self.prepared.suspect(head.statement)
        elif head in _RELYING:
            request = self.last if head is entries.BATCH and len(self.queue) == 1 else b""
            for statement in self.asker.relied_on(request):
                self.prepared.suspect(statement)
