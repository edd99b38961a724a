"""What the gateway reads in a text: the commands that name statements, and the traces that commands may leave.

Nearly every text has neither, which :func:`glance` sees by its first three letters, unless a semicolon in it is
followed by another beginning; then by words that it has to contain. What is left is read by the lexer, once: the last
texts are remembered. A text that is very long is only searched. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session.sql.bodies import traces_within
from pgtrunk_gateway.session.sql.commands import naming_commands
from pgtrunk_gateway.session.sql.leaving import traces_of
from pgtrunk_gateway.session.sql.lexer import commands_of
from pgtrunk_gateway.session.sql.traces import NOTHING, Traces

if TYPE_CHECKING:
    from pgtrunk_gateway.session.sql.commands import Naming

__all__ = ["Reading", "glance", "is_ordinary", "read"]

_ORDINARY: Final = frozenset(
    (
        "abo", "alt", "ana", "beg", "com", "cop", "del", "end", "fet", "gra", "ins", "loc", "mer", "mov", "not", "ref",
        "rei", "rel", "rol", "sav", "sel", "sho", "sta", "tab", "tru", "upd", "vac", "val", "wit",
    )
)  # fmt: skip
"""How commands begin that neither name a statement nor leave traces, but by what they call."""
_BLANK: Final = re.compile(r"[\s(;]*")
"""What may stand before the first command, beside comments."""
_LINE_END: Final = re.compile(r"[\n\r]|\Z")
_BEHIND: Final = re.compile(
    r";[\s(]*(?:--|/\*|prep|exec|deal|expl|crea|set|rese|disc|unli|clos|drop|list|load|decl|do)"
)
"""The beginning of another command that is not ordinary, or of a comment."""
_INTO_TEMPORARY: Final = re.compile(r"into(?:\s+(?:pg_)?temp(?:orary)?\b|\s*--|\s*/\*)")
_WORDS: Final = (
    "set", "temp", "prepare", "execute", "deallocate", "listen", "advisory_", "discard", "drop", "close", "hold",
    "load",
)  # fmt: skip
"""One of these is in every text that has to be read."""
_NAMES: Final = re.compile(rb"(?:\A|;)[\s(]*(?:--|/\*|prep|exec|deal|expl|crea)", re.IGNORECASE)
"""A beginning of those that name statements."""
_REMEMBERED: Final = 4 << 10
"""Octets of a text that is remembered."""
_READ: Final = 64 << 10
"""Octets of a text that is read. What is longer would keep all sessions waiting."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text was found to have."""

    naming: tuple[Naming, ...] = ()
    traces: Traces = NOTHING


def is_ordinary(query: bytes) -> bool:
    """Whether a Query message has clearly nothing in it; otherwise :func:`glance`. Hotter still."""
    # A search in a string costs a sixth of one in octets.
    text = query.decode("latin-1").lower()
    return text[5:8] in _ORDINARY and "(" not in text and ";" not in text[:-2] and "temp" not in text


def glance(data: bytes, start: int, end: int) -> bool:
    """Whether the text at ``start`` up to ``end`` may have one. Hot."""
    text = data[start:end].decode("latin-1").lower()
    if text[:3] not in _ORDINARY and _beginning(text) not in _ORDINARY:
        return any(word in text for word in _WORDS)
    return (
        ("(" in text and ("set_config" in text or "advisory_" in text))
        or (";" in text and text.find(";", 0, -1) >= 0 and _BEHIND.search(text) is not None)
        or ("temp" in text and _INTO_TEMPORARY.search(text) is not None)
    )


def _beginning(text: str) -> str:
    """The first three letters of the first command; "" where that is not so easy to see."""
    at = 0
    while True:
        blank = _BLANK.match(text, at)
        at = blank.end() if blank is not None else at
        if text.startswith("--", at):
            line_end = _LINE_END.search(text, at)
            at = line_end.end() if line_end is not None else len(text)
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            if end < 0 or text.find("/*", at + 2, end) >= 0:
                return ""
            at = end + 2
        else:
            return text[at : at + 3]


def read(text: bytes, *, escapes: bool) -> Reading:
    """What there is in ``text``, see :func:`glance`. ``escapes``: as for the lexer."""
    return (_remembered if len(text) <= _REMEMBERED else _read)(text, escapes)


def _read(text: bytes, escapes: bool) -> Reading:
    is_long = len(text) > _READ
    commands = commands_of(text, escapes=escapes) if not is_long or _NAMES.search(text) else []
    # What cannot be read is searched, too.
    traces = traces_of(text, commands) if commands and not is_long else traces_within(text)
    return Reading(naming_commands(commands), traces)


_remembered = lru_cache(maxsize=1000)(_read)
