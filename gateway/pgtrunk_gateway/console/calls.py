"""From a statement to what it calls for: a command with its argument, known to be one before it runs. Pure.

PgBouncer's order of complaints: the grammar first, then the name, then whether this user may do it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pgtrunk_gateway.console.columns import texts
from pgtrunk_gateway.console.merging import WORKER
from pgtrunk_gateway.console.shows import SHOWS
from pgtrunk_gateway.console.verbs import VERBS
from pgtrunk_gateway.console.words import Mark, Statement, Word, invalid, statements
from pgtrunk_gateway.errors import InvalidArgument

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Column
    from pgtrunk_gateway.console.registry import Show, Verb

__all__ = ["FAKES", "Act", "Call", "Fake", "Help", "Look", "Set", "read"]

_MAX_ARGUMENT: Final = 63
_MAX_VALUE: Final = 255
"""Bytes; PgBouncer's limits."""

FAKES: Final[Mapping[str, str]] = {
    "client_encoding": "UTF-8",
    "default_transaction_isolation": "read committed",
    "standard_conforming_strings": "on",
    "datestyle": "ISO",
    "timezone": "GMT",
    # PgBouncer has only those above. These are what JDBC sets before anything else.
    "application_name": "",
    "extra_float_digits": "0",
}
"""Settings of a server that clients want to see or make; none of it means anything here."""


@dataclass(frozen=True, slots=True)
class Look:
    """``SHOW name``; ``by_worker``: rows of all workers one by one, each with the number of its worker."""

    show: Show
    by_worker: bool = False

    @property
    def columns(self) -> Sequence[Column]:
        return (*self.show.columns, WORKER) if self.by_worker else self.show.columns


@dataclass(frozen=True, slots=True)
class Help:
    """``SHOW HELP``."""

    columns: Sequence[Column] = ()


@dataclass(frozen=True, slots=True)
class Fake:
    """``SHOW name`` of a server's setting, or a SET of it, which does nothing."""

    name: str
    is_set: bool
    columns: Sequence[Column] = ()


@dataclass(frozen=True, slots=True)
class Set:
    """``SET key = value``."""

    key: str
    value: str = field(repr=False)
    columns: Sequence[Column] = ()


@dataclass(frozen=True, slots=True)
class Act:
    """A verb with its argument, "" where it has none."""

    verb: Verb
    argument: str
    columns: Sequence[Column] = ()


Call: TypeAlias = Look | Help | Fake | Set | Act


def read(sql: str, *, fleet: bool = False) -> list[Call]:
    """What ``sql`` calls for, in order; in a ``fleet`` some answers have a column more. Raises
    :class:`InvalidCommand`, :class:`InvalidArgument`."""
    return [_call(statement, fleet=fleet) for statement in statements(sql)]


def _call(statement: Statement, *, fleet: bool) -> Call:
    name, *rest = statement.words
    if name.mark not in (Mark.PLAIN, Mark.QUOTED):
        raise invalid(statement.source)
    match name.text.upper():
        case "SET":
            return _set(statement)
        case "SHOW" | "SELECT":
            return _show(statement, fleet=fleet)
        case word if word in VERBS:
            return _act(VERBS[word], rest, statement)
        case word:
            raise invalid(statement.source, _nearest(word, {**_shows(), **{verb: verb for verb in VERBS}}))


def _show(statement: Statement, *, fleet: bool) -> Call:
    match statement.words[1:]:
        case [word, Word(by, Mark.PLAIN), Word(worker, Mark.PLAIN)] if (by.upper(), worker.upper()) == ("BY", "WORKER"):
            words, by_worker = (word,), True
        case words:
            by_worker = False
    name = _only(words, statement)
    if name.upper() in SHOWS:
        show = SHOWS[name.upper()]
        return Look(show, (by_worker or (fleet and show.by_worker)) and WORKER not in show.columns)
    if by_worker:
        raise invalid(statement.source, _nearest(name.upper(), _shows()))
    if name.lower() in FAKES:
        return Fake(name.lower(), is_set=False, columns=texts(name.lower()))
    if name.upper() == "HELP":
        return Help()
    raise invalid(statement.source, _nearest(name.upper(), _shows()))


def _shows() -> dict[str, str]:
    return {name: f"SHOW {name}" for name in ("HELP", *SHOWS)}


def _nearest(word: str, commands: Mapping[str, str]) -> str | None:
    """The command that was likely meant, of those by the word that people take for them."""
    near = difflib.get_close_matches(word[:_MAX_ARGUMENT], commands, n=1, cutoff=0.7)
    return commands[near[0]] if near else None


def _act(verb: Verb, rest: Sequence[Word], statement: Statement) -> Call:
    argument = _only(rest, statement) if rest else ""
    if not verb.argument.admits(argument):
        raise invalid(statement.source)
    return Act(verb, argument)


def _only(words: Sequence[Word], statement: Statement) -> str:
    """The argument where there is one, and it is a name."""
    if len(words) != 1 or words[0].mark not in (Mark.PLAIN, Mark.QUOTED):
        raise invalid(statement.source)
    return _bounded(words[0].text, _MAX_ARGUMENT)


def _set(statement: Statement) -> Call:
    match statement.words[1:]:
        case [Word(key, Mark.PLAIN | Mark.QUOTED), Word("=", Mark.SYMBOL), Word(value, mark)]:
            pass
        case [Word(key, Mark.PLAIN | Mark.QUOTED), Word(to, Mark.PLAIN), Word(value, mark)] if to.lower() == "to":
            pass
        case _:
            raise invalid(statement.source)
    if mark is Mark.SYMBOL or not key:
        raise invalid(statement.source)
    if key.lower() in FAKES:
        return Fake(key.lower(), is_set=True)
    return Set(_bounded(key, _MAX_ARGUMENT), _bounded(value, _MAX_VALUE))


def _bounded(text: str, most: int) -> str:
    if len(text.encode("utf-8", "replace")) > most:
        raise InvalidArgument(detail=f"It has more than {most} bytes.")
    return text
