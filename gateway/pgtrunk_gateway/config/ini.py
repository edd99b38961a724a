"""PgBouncer's ini grammar: text in, items out, each with its file and line.

What counts is what PgBouncer's parser does (libusual's cfparser), which is more than its manual says: a comment begins
a line and never ends one; what follows a `]` is read as if it began a line; a section that an included file begins
goes on behind the `%include`; included names are relative to the working directory. Two liberties: names may stand in
the double quotes that the manual promises as well as in the single quotes that the parser takes, and reading goes on
after an error, to find the rest of them. Knows no keys and opens no files: a `Reader` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os.path import normpath
from typing import TypeAlias

from ..errors import ConfigError
from .faults import Source, quoted

__all__ = ["Document", "Header", "Item", "Reader", "parse"]

Reader: TypeAlias = Callable[[str], str]
"""Gives the text of a file, or raises `ConfigError` with the reason as its message."""

MAX_DEPTH = 10  # levels of %include, as in PgBouncer
MAX_FILES = 1000  # bounds what ten levels of %include can multiply to
MAX_FAULTS = 100  # a file of another kind altogether is told from this many

SPACE = " \t\n\v\f\r"  # isspace() in C; str.isspace() knows more
FIRST = re.compile(rf"[{SPACE}]+")
INCLUDE = re.compile(r"%include[ \t]+(?P<path>.+)", re.DOTALL)
SECTION = re.compile(r"\[([^]]*)\]")
SECTIONS = re.compile(rf"(?:{SECTION.pattern}[{SPACE}]*)+")
ENTRY = re.compile(
    r"""(?: '(?P<single>[^']+)' | "(?P<double>(?:[^"]+|"")++)" | (?P<plain>[A-Za-z0-9_.*-]+) )
        [ \t]* = [ \t]* (?P<value>.*)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Header:
    """A `[section]` line."""

    name: str
    source: Source


@dataclass(frozen=True, slots=True)
class Item:
    """A `key = value` line."""

    section: str
    key: str
    """Unquoted."""
    value: str = field(repr=False)
    """To the end of the line, without the blanks around it. May hold a password."""
    source: Source


@dataclass(frozen=True, slots=True)
class Document:
    """A file and all that it includes, in the order of reading."""

    headers: tuple[Header, ...]
    items: tuple[Item, ...]
    """Duplicates too: the last wins, but each must be right."""
    faults: tuple[ConfigError, ...]
    paths: tuple[str, ...]
    """Files that were read or tried."""


def parse(path: str, read: Reader) -> Document:
    """The items of the file `path` and of those that it includes. What is wrong is in `Document.faults`."""
    parser = _Parser(read)
    try:
        parser.file(path)
    except ConfigError as error:
        parser.fault(Source(path), error.message)
    return Document(tuple(parser.headers), tuple(parser.items), tuple(parser.faults), tuple(parser.paths))


class _Parser:
    def __init__(self, read: Reader) -> None:
        self.read = read
        self.headers: list[Header] = []
        self.items: list[Item] = []
        self.faults: list[ConfigError] = []
        self.paths: list[str] = []
        self.section: str | None = None
        self.including: list[str] = []

    def file(self, path: str) -> None:
        self.paths.append(path)
        text = self.read(path)
        self.including.append(normpath(path))
        for source, line in _lines(path, text):
            if len(self.faults) >= MAX_FAULTS:
                break
            self.line(line, source)
        self.including.pop()

    def include(self, path: str, source: Source) -> None:
        try:
            if refusal := self.refuses(path):
                raise ConfigError(refusal)
            self.file(path)
        except ConfigError as error:
            self.fault(source, f"%include of {quoted(path)}: {error.message}")

    def refuses(self, path: str) -> str | None:
        if normpath(path) in self.including:
            return "would never end, that file is being read already"
        if len(self.including) > MAX_DEPTH:
            return f"nested too deep, at most {MAX_DEPTH} levels are allowed"
        if len(self.paths) >= MAX_FILES:
            return f"one too many, at most {MAX_FILES} files are read"
        return None

    def line(self, line: str, source: Source) -> None:
        text = line.strip(SPACE)
        while text and text[0] not in "#;":
            if include := INCLUDE.fullmatch(text):
                self.include(include["path"], source)
                return
            sections = SECTIONS.match(text)
            if sections is None:
                self.entry(text, source)
                return
            for name in SECTION.findall(sections[0]):
                self.section = name
                self.headers.append(Header(name, source))
            text = text[sections.end() :]

    def entry(self, text: str, source: Source) -> None:
        match = ENTRY.fullmatch(text)
        if match is None:
            self.fault(source, _explain(text))
            return
        key = match["single"] or match["plain"] or match["double"].replace('""', '"')
        if self.section is None:
            self.fault(source, f"{quoted(key)} stands before the first [section]")
        else:
            self.items.append(Item(self.section, key, match["value"], source))

    def fault(self, source: Source, message: str) -> None:
        self.faults.append(source.error(message))


def _lines(path: str, text: str) -> Iterator[tuple[Source, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        yield Source(path, number), line


def _explain(text: str) -> str:
    """Why `text` is no entry. Shows nothing behind the "=", where a password could be."""
    if text[0] == "[":
        return "a section's name ends with ] on the same line"
    if text.startswith("%include"):
        return "%include needs a blank and the name of a file"
    if text[0] in "'\"":
        return f"a name that begins with {text[0]} needs the same quote at its end, something between them, then ="
    before, equals, _ = text.partition("=")
    if not equals:
        return f"expected key = value, found no = after {quoted(FIRST.split(before)[0])}"
    if not before:
        return "expected key = value, found nothing before the ="
    return f"expected key = value; the key {quoted(before.rstrip(SPACE))} has characters that need single quotes"
