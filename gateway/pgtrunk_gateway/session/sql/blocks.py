"""The commands that begin and end a transaction block, where a text is nothing but one of them.

    BEGIN [WORK | TRANSACTION] [modes]      COMMIT | END [WORK | TRANSACTION]
    START TRANSACTION [modes]               ROLLBACK | ABORT [WORK | TRANSACTION]

What is written in another way, or wrongly, is none: Postgres will see to it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session.sql.lexer import commands_of

if TYPE_CHECKING:
    from pgtrunk_gateway.session.sql.lexer import Word

__all__ = ["MAY_BEGIN", "BlockCommand", "block_command"]

MAY_BEGIN: Final = bytes({"b": 1, "s": 2}.get(chr(octet).lower(), 0) for octet in range(256))
"""By its first octet, whether a text may begin a block: 1; 2: if a t follows; 0: not, or it is not told so quickly."""
_BEGINNINGS: Final = frozenset({b"beg", b"sta", b"com", b"end", b"rol", b"abo"})
_LONGEST: Final = 200
"""Octets of a text that is looked at."""
_PLAIN: Final = re.compile(rb"[\t\n\r -~]*\0").fullmatch
"""Of all else it is not certain that every server reads it in the same way, or takes it at all."""


@dataclass(frozen=True, slots=True)
class BlockCommand:
    """One of them. ``tag``: of its CommandComplete, where it succeeds."""

    tag: str
    begins: bool = False
    may_fail: bool = False
    """A server that recovers refuses the modes that it has."""


def block_command(text: bytes) -> BlockCommand | None:
    """What ``text`` is, which ends with the zero that a Query has; None: no such command, or not alone."""
    if len(text) > _LONGEST or text[:3].lower() not in _BEGINNINGS:
        return None
    return _remembered(text)


@lru_cache(maxsize=256)
def _remembered(text: bytes) -> BlockCommand | None:
    commands = commands_of(text[:-1], escapes=False) if _PLAIN(text) else []
    if len(commands) != 1 or any(word.kind != "word" and word.text != b"," for word in commands[0]):
        return None
    return _read(commands[0])


def _read(words: list[Word]) -> BlockCommand | None:
    first, *rest = [word.text for word in words]
    noise = rest[:1] in ([b"work"], [b"transaction"])
    if first in _ENDS:
        return None if rest[noise:] else _ENDS[first]
    if first == b"start" and rest[:1] == [b"transaction"]:
        return _begin("START TRANSACTION", rest[1:])
    return _begin("BEGIN", rest[noise:]) if first == b"begin" else None


_COMMIT: Final = BlockCommand("COMMIT")
_ROLLBACK: Final = BlockCommand("ROLLBACK")
_ENDS: Final = {b"commit": _COMMIT, b"end": _COMMIT, b"rollback": _ROLLBACK, b"abort": _ROLLBACK}
_MODES: Final = {
    (b"isolation", b"level", b"serializable"): True,
    (b"isolation", b"level", b"repeatable", b"read"): False,
    (b"isolation", b"level", b"read", b"committed"): False,
    (b"isolation", b"level", b"read", b"uncommitted"): False,
    (b"read", b"write"): True,
    (b"read", b"only"): False,
    (b"deferrable",): False,
    (b"not", b"deferrable"): False,
}
"""And whether a server that recovers refuses it."""


def _begin(tag: str, words: list[bytes]) -> BlockCommand | None:
    may_fail = False
    at = 0
    while at < len(words):
        # Commas between them are left to whoever writes it.
        if at and words[at] == b",":
            at += 1
        mode = next((mode for mode in _MODES if tuple(words[at : at + len(mode)]) == mode), None)
        if mode is None:
            return None
        may_fail = may_fail or _MODES[mode]
        at += len(mode)
    return BlockCommand(tag, begins=True, may_fail=may_fail)
