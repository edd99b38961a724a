"""Which commands there are: a command is one function, put here by the decorator above it. HELP is made from this.

Two kinds. A *show* looks: it has columns, so that its shape is known before it runs, and makes rows from a
:class:`~pgtrunk_gateway.console.view.View`. A *verb* acts: it calls one method of
:class:`~pgtrunk_gateway.console.operations.Operations`, and returns when that is done.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Column, Row
    from pgtrunk_gateway.console.merging import Merge
    from pgtrunk_gateway.console.operations import Operations
    from pgtrunk_gateway.console.view import View

__all__ = ["SHOWS", "VERBS", "Argument", "Show", "Verb", "show", "usage", "verb"]

Rows = Callable[["View"], "Iterable[Row]"]
Act = Callable[["Operations", str], Awaitable[None]]

_WIDTH: Final = 60
"""Characters of a line of HELP, about."""


class Argument(enum.Enum):
    """What a verb takes, as HELP shows it."""

    NONE = ""
    DATABASE = " <db>"
    OPTIONAL_DATABASE = " [<db>]"
    CLIENT = " <client_id>"
    WAIT = " [WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS]"

    def admits(self, argument: str) -> bool:
        """Whether the grammar has room for it; "" is none. What is missing is said more clearly when it is run."""
        if self is Argument.WAIT:
            return not argument or argument.upper() in ("WAIT_FOR_SERVERS", "WAIT_FOR_CLIENTS")
        return self is not Argument.NONE or not argument

    @property
    def is_database(self) -> bool:
        return self in (Argument.DATABASE, Argument.OPTIONAL_DATABASE)


@dataclass(frozen=True, slots=True)
class Show:
    """``SHOW name``."""

    name: str
    columns: Sequence[Column]
    rows: Rows
    for_admins: bool
    """Not for stats_users."""
    merge: Merge | None = None
    """What a fleet answers; None: the rows of all workers, or of the one that is asked if ``alike``."""
    also: tuple[str, ...] = ()
    """Shows that ``merge`` wants beside this one, or what else is known: DEPARTED, ROSTER."""
    alike: bool = False
    """Whether all workers of a fleet would answer the same."""

    @property
    def by_worker(self) -> bool:
        """Whether a fleet answers with what each of its workers has."""
        return self.merge is None and not self.alike


@dataclass(frozen=True, slots=True)
class Verb:
    """``NAME argument``."""

    name: str
    argument: Argument
    act: Act
    undo: Act | None
    """What a cancel request does, when it comes while ``act`` waits."""


SHOWS: Final[dict[str, Show]] = {}
"""By name, in capitals."""
VERBS: Final[dict[str, Verb]] = {}


def show(
    name: str,
    columns: Sequence[Column],
    *,
    for_admins: bool = False,
    merge: Merge | None = None,
    also: Sequence[str] = (),
    alike: bool = False,
) -> Callable[[Rows], Rows]:
    """Makes a function the answer to ``SHOW name``; see :class:`Show`."""

    def register(rows: Rows) -> Rows:
        SHOWS[name] = Show(name, columns, rows, for_admins, merge, tuple(also), alike)
        return rows

    return register


def verb(name: str, argument: Argument, *, undo: Act | None = None) -> Callable[[Act], Act]:
    """Makes a function what the command ``name`` does."""

    def register(act: Act) -> Act:
        VERBS[name] = Verb(name, argument, act, undo)
        return act

    return register


def usage() -> str:
    """What SHOW HELP says."""
    verbs = [each.name + each.argument.value for each in VERBS.values()]
    lines = [*_show_lines(), "SHOW <any of these> BY WORKER", "SET key = arg", *verbs]
    return "".join(f"\n\t{line}" for line in lines)


def _show_lines() -> list[str]:
    lines = ["SHOW HELP"]
    for name in SHOWS:
        if len(lines[-1]) + len(name) > _WIDTH:
            lines.append(f"SHOW {name}")
        else:
            lines[-1] += f"|{name}"
    return lines
