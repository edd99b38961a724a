"""PREPARE, EXECUTE and DEALLOCATE: the commands in a text that name prepared statements.

    PREPARE name [(types)] AS ...        EXECUTE name [(values)]        DEALLOCATE [PREPARE] name
    EXPLAIN [options] EXECUTE name ...   CREATE TABLE ... AS EXECUTE name ...

They are found among the words of a text; a grammar is not needed for them, and what a text means that the server does
not take does not matter. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgtrunk_gateway.session.sql.lexer import Word

__all__ = ["DEALLOCATE", "EXECUTE", "PREPARE", "Naming", "naming_commands"]

PREPARE: Final = b"prepare"
EXECUTE: Final = b"execute"
DEALLOCATE: Final = b"deallocate"
_LONGEST_NAME: Final = 63


@dataclass(frozen=True, slots=True)
class Naming:
    """One of the commands. ``at``, ``upto``: where in the text the name stands; ``ends``: where the command does."""

    kind: bytes
    name: bytes
    at: int
    upto: int
    ends: int
    number: int
    """Which command of the text it is, from 0."""


def naming_commands(commands: list[list[Word]]) -> tuple[Naming, ...]:
    """Those among the commands of a text, in their order."""
    found = []
    for number, words in enumerate(commands):
        kind, name = _named(words)
        if name is not None and name.text:
            short = name.text[:_LONGEST_NAME]
            found.append(Naming(kind, short, name.start, name.end, words[-1].end, number))
    return tuple(found)


def _named(words: list[Word]) -> tuple[bytes, Word | None]:
    first = words[0].text if words[0].kind == "word" else b""
    match first:
        case b"prepare":
            # Behind the name of a transaction there is none of these.
            return PREPARE, _name_at(words, 1) if _is(words, 2, b"as", b"(") else None
        case b"execute":
            return EXECUTE, _name_at(words, 1)
        case b"deallocate":
            return DEALLOCATE, _deallocated(words)
        case b"explain":
            return EXECUTE, _explained(words)
        case b"create":
            return EXECUTE, _created(words)
        case _:
            return b"", None


def _name_at(words: list[Word], at: int) -> Word | None:
    return words[at] if at < len(words) and words[at].is_name else None


def _is(words: list[Word], at: int, *texts: bytes) -> bool:
    return at < len(words) and words[at].kind in ("word", "sign") and words[at].text in texts


def _deallocated(words: list[Word]) -> Word | None:
    at = 2 if len(words) > 2 and _is(words, 1, PREPARE) else 1
    return None if _is(words, at, b"all") else _name_at(words, at)


def _explained(words: list[Word]) -> Word | None:
    at = _behind_parentheses(words, 1) if _is(words, 1, b"(") else 1
    while _is(words, at, b"analyze", b"analyse", b"verbose"):
        at += 1
    return _name_at(words, at + 1) if _is(words, at, EXECUTE) else _created(words[at:])


def _behind_parentheses(words: list[Word], at: int) -> int:
    depth = 0
    while at < len(words):
        depth += (words[at].text == b"(") - (words[at].text == b")") if words[at].kind == "sign" else 0
        at += 1
        if not depth:
            break
    return at


def _created(words: list[Word]) -> Word | None:
    if not _is(words, 0, b"create"):
        return None
    for at, word in enumerate(words[:-2]):
        if word.kind == "word" and word.text == b"as" and _is(words, at + 1, EXECUTE):
            return _name_at(words, at + 2)
    return None
