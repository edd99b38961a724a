"""The words of a text, by the lexical rules of PostgreSQL (scan.l), and where its commands end.

Strings, quoted names, dollar quotes and nested comments hide what is in them. A text with something in it that does not
end has no words: the server will refuse it. Nothing is decoded: octets above 127 belong to words, as in every encoding
that a server has. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Word", "commands_of"]

_PARTS: Final = r"""
      (?P<space> [\s]+ | --[^\n\r]* )
    | (?P<comment> /\* )
    | (?P<escaped> [eE]'(?:[^'\\]|\\.|'')*' )
    | (?P<string> (?:[bBxXnN]|[uU]&)?'%s*' )
    | (?P<quoted> "(?:[^"]|"")*" )
    | (?P<unicode> [uU]&"(?:[^"]|"")*" )
    | (?P<dollar> \$(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$ )
    | (?P<word> [A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]* )
    | (?P<number> \$?\d[\w.]* )
    | (?P<open> ['"] )
    | (?P<sign> . )
"""
_FLAGS: Final = re.VERBOSE | re.DOTALL
_STANDARD: Final = re.compile((_PARTS % "(?:[^']|'')").encode("latin-1"), _FLAGS)
_ESCAPING: Final = re.compile((_PARTS % r"(?:[^'\\]|\\.|'')").encode("latin-1"), _FLAGS)
_COMMENT: Final = re.compile(rb"/\*|\*/")
_ROUTINES: Final = frozenset({b"function", b"procedure"})


@dataclass(frozen=True, slots=True)
class Word:
    """A word, a quoted name, a sign or a literal, at ``start`` up to ``end``.

    ``text``: what the server reads: a word in small letters, a name without its quotes. ``kind``: "word", "quoted",
    "sign", or another, which is no name.
    """

    kind: str
    text: bytes
    start: int
    end: int

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


def commands_of(text: bytes, *, escapes: bool) -> list[list[Word]]:
    """The commands of a simple query, each as its words; [] where something in it does not end.

    ``escapes``: a backslash is special in every string (standard_conforming_strings is off).
    """
    words = _words(text, escapes=escapes)
    return _split(words) if words is not None else []


def _words(text: bytes, *, escapes: bool) -> list[Word] | None:
    match = (_ESCAPING if escapes else _STANDARD).match
    words, at, size = [], 0, len(text)
    while at < size:
        found = match(text, at)
        assert found is not None
        kind, end = str(found.lastgroup), found.end()
        if kind == "comment":
            end = _comment_end(text, end)
        elif kind == "dollar":
            closing = text.find(found[0], end)
            end = closing + end - at if closing >= 0 else 0
        elif kind == "open":
            end = 0
        if not end:
            return None
        if kind not in ("space", "comment"):
            words.append(Word(kind, _read(kind, found[0]), at, end))
        at = end
    return words


def _comment_end(text: bytes, at: int) -> int:
    depth = 1
    for found in _COMMENT.finditer(text, at):
        depth += 1 if found[0] == b"/*" else -1
        if not depth:
            return found.end()
    return 0


def _read(kind: str, written: bytes) -> bytes:
    if kind == "word":
        return written.lower()
    return written[1:-1].replace(b'""', b'"') if kind == "quoted" else written


def _split(words: list[Word]) -> list[list[Word]]:
    commands: list[list[Word]] = [[]]
    parentheses = blocks = 0
    for word in words:
        command = commands[-1]
        if word.kind == "sign":
            parentheses += (word.text == b"(") - (word.text == b")")
            if word.text == b";" and parentheses <= 0 and not blocks:
                commands.append([])
                parentheses = 0
                continue
        elif word.kind == "word" and _has_a_body(command):
            # The body of a routine in SQL (BEGIN ATOMIC ... END) has commands of its own.
            if word.text == b"begin" or (blocks and word.text == b"case"):
                blocks += 1
            elif word.text == b"end" and blocks:
                blocks -= 1
        command.append(word)
    return [command for command in commands if command]


def _has_a_body(command: list[Word]) -> bool:
    start = [word.text for word in command[:4]]
    return start[:1] == [b"create"] and not _ROUTINES.isdisjoint(start)
