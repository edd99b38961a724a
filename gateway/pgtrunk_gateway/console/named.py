"""What a console session has by name: prepared statements and portals, and the answers that portals may hold.

The unnamed of each is taken by the next; of the others there is one, and only so many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pgtrunk_gateway.console.columns import data_row
from pgtrunk_gateway.errors import DuplicateStatement, GatewayError, NoSuchStatement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgtrunk_gateway.console.calls import Call
    from pgtrunk_gateway.console.columns import Column, Row

__all__ = ["Portal", "Portals", "Rows", "Statements", "shown"]

_NAME: Final = 1024
"""Octets of a name."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Portal:
    """A statement that is bound, and how far it has been run."""

    call: Call | None
    """None for a statement that is empty."""
    formats: Sequence[int]
    rows: Rows | None = None
    """What is left of an answer that was not fetched whole."""
    spent: bool = False


@dataclass(slots=True)
class Rows:
    """An answer that is being sent."""

    columns: Sequence[Column]
    rows: Iterator[Row]
    formats: Sequence[int]
    tag: str
    next: Row | None = None
    """The first that is not sent, so that it is known whether there is one."""

    def __post_init__(self) -> None:
        self.next = next(self.rows, None)

    def take(self, most: int) -> list[bytes]:
        """The next ``most``, or as many as there are, as DataRow messages."""
        taken: list[bytes] = []
        while self.next is not None and len(taken) < most:
            taken.append(data_row(self.columns, self.next, self.formats))
            self.next = next(self.rows, None)
        return taken


class _Named(Generic[_T]):
    """Things of one kind, of which a session may have ``most``. All that is refused is a :class:`GatewayError`."""

    most: int
    kind: str
    kinds: str

    def __init__(self) -> None:
        self._of: dict[bytes, _T] = {}

    def __len__(self) -> int:
        return len(self._of)

    def check_free(self, name: bytes) -> None:
        """Raises where there is one of this name."""
        if name and name in self._of:
            raise self._duplicate(f'{self.kind} "{shown(name)}" already exists')

    def add(self, name: bytes, thing: _T) -> None:
        """``name`` is ``thing`` from now on. Raises where there is no room, or the name is too long."""
        if len(name) > _NAME:
            raise GatewayError(f"names of {self.kinds} can have {_NAME} octets at most", sqlstate="54000")
        if len(self._of) >= self.most and name not in self._of:
            raise GatewayError(
                f"a console session can have {self.most} {self.kinds} at most",
                sqlstate="54000",
                hint="Close those that are not needed.",
            )
        self._of[name] = thing

    def find(self, name: bytes) -> _T:
        """Raises where there is none."""
        if name not in self._of:
            raise self._unknown(f'{self.kind} "{shown(name)}" does not exist')
        return self._of[name]

    def close(self, name: bytes) -> None:
        """It is gone, if there is one."""
        self._of.pop(name, None)

    def clear(self) -> None:
        """All are gone."""
        self._of.clear()

    def _duplicate(self, message: str) -> GatewayError:
        raise NotImplementedError

    def _unknown(self, message: str) -> GatewayError:
        raise NotImplementedError


class Statements(_Named["Call | None"]):
    """Prepared statements; None: one that is empty."""

    most = 1000
    """More than any driver wants."""
    kind, kinds = "prepared statement", "prepared statements"

    def _duplicate(self, message: str) -> GatewayError:
        return DuplicateStatement(message)

    def _unknown(self, message: str) -> GatewayError:
        return NoSuchStatement(message)


class Portals(_Named[Portal]):
    """Portals, each of which may hold an answer that was not fetched whole."""

    most = 100
    kind, kinds = "portal", "portals"

    def _duplicate(self, message: str) -> GatewayError:
        return GatewayError(message, sqlstate="42P03")

    def _unknown(self, message: str) -> GatewayError:
        return GatewayError(message, sqlstate="34000")


def shown(name: bytes) -> str:
    """``name`` as an error has it."""
    return name.decode("utf-8", "replace")
