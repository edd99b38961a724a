"""Cuts what is typed at the console into statements, and these into words. Pure; knows no command.

PgBouncer's grammar: words, "quoted identifiers", 'strings', a semicolon at the end. Comments and several statements
beside it, as in SQL; and words may have dots and dashes inside, as names of databases and numbers do.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pgtrunk_gateway.errors import InvalidCommand

__all__ = ["Mark", "Statement", "Word", "invalid", "statements"]

_SHOWN: Final = 100
"""Characters of a statement that an error repeats."""
_NO_SQL: Final = "This is the gateway's console, which has commands of its own, and no tables."
_TOKEN: Final = re.compile(
    r"""
    (?P<skip> \s+ | --[^\n]* | /\*.*?\*/ )
  | (?P<word> (?: [\w$.] | -(?!-) )+ )
  | (?P<quoted> " (?: [^"] | "" )* " )
  | (?P<string> ' (?: [^'] | '' )* ' )
  | (?P<symbol> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)


class Mark(enum.Enum):
    """How a word was written."""

    PLAIN = "word"
    QUOTED = "quoted"
    STRING = "string"
    SYMBOL = "symbol"


class Word(NamedTuple):
    text: str
    """Without its quotes; in the case in which it was written."""
    mark: Mark


class Statement(NamedTuple):
    words: tuple[Word, ...]
    """At least one."""
    source: str


def statements(sql: str) -> Iterator[Statement]:
    """The statements in ``sql``, without empty ones. Raises :class:`InvalidCommand`."""
    words: list[Word] = []
    at = begin = 0
    while at < len(sql):
        token = _TOKEN.match(sql, at)
        if token is None:
            raise invalid(sql[begin:])
        at = token.end()
        if token.group() == ";":
            if words:
                yield Statement(tuple(words), sql[begin:at])
            words, begin = [], at
        elif token.lastgroup != "skip":
            words.append(_word(token))
    if words:
        yield Statement(tuple(words), sql[begin:])


def invalid(source: str, meant: str | None = None) -> InvalidCommand:
    """The error for a statement that is none; ``meant`` is the command that is nearest to it."""
    source = source.strip()
    if len(source) > _SHOWN:
        source = source[: _SHOWN - 3] + "..."
    hint = _NO_SQL if meant is None else f"Did you mean {meant}?"
    return InvalidCommand(f"invalid command '{source}', use SHOW HELP;", hint=hint)


def _word(token: re.Match[str]) -> Word:
    mark, text = Mark(token.lastgroup), token.group()
    if mark in (Mark.QUOTED, Mark.STRING):
        text = text[1:-1].replace(text[0] * 2, text[0])
    return Word(text, mark)
