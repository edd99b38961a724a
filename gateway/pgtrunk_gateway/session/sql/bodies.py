"""The traces of a text that is searched and not read: the body of a DO block, a text that is too long, a part of one.

A command is known by its first word, and that it is one by what stands before it. More is found here than there is,
which does no harm, since it is only asked after. Linear in the length of the text, and quick: words are looked for, and
nothing else is looked at. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session.parameters import is_name, setting_name
from pgtrunk_gateway.session.sql.traces import NOTHING, SPECIAL, Pin, Traces, setting_traces

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OVERLAP", "traces_within"]

OVERLAP: Final = 256
"""Octets."""

# Each begins with letters, for which there is a quick search.
_SET: Final = re.compile(rb'set\s+(?:session\s+)?([\w."]+)')
_SET_CONFIG: Final = re.compile(rb"set_config\s*\(\s*(?:'([\w.]+)'\s*(?:::\s*\w+\s*)?,)?")
_LISTEN: Final = re.compile(rb"listen\s")
_DISCARD: Final = re.compile(rb"discard\s+all\b")
_REVERTS: Final = re.compile(rb"reset\s+(?:role|session)\b|authorization\s+default\b|discard\s+all\b")
_BUILT: Final = re.compile(rb"execute\s+(?:format\s*\(\s*)?e?'(?:re)?set\s+(?:session\s+)?[%']")
"""A SET whose name is put together while it runs."""
_PINS: Final = (
    (re.compile(rb"temp(?:orary)?\b"), Pin.TEMPORARY),
    (re.compile(rb"advisory_lock"), Pin.LOCK),
    (re.compile(rb"with\s+hold\b"), Pin.CURSOR),
)
_FREES: Final = (b"unlisten", b"drop", b"close", b"discard", b"advisory_unlock")
_BEFORE: Final = re.compile(rb"(?:^|[;$'>\n\r]|\*/|\b(?:begin|then|else|loop))\s*\Z")
"""What stands before a command, of which there may be as much as :data:`_LOOKED_BACK`."""
_LOOKED_BACK: Final = 32


def traces_within(text: bytes, *, body: bool = False, more: bool = False) -> Traces:
    """Those of ``text``. ``body``: it is a program, and not data for the most part. ``more``: the text goes on.

    What is cut off at the end is not found: the parts of a text have to overlap by :data:`OVERLAP`.
    """
    text = text.lower()
    pins, found = Pin.NONE, NOTHING
    for pattern, pin in _PINS:
        if pattern.search(text):
            pins |= pin
    if any(True for _ in _commands(_LISTEN, text)):
        pins |= Pin.LISTEN
    if body and _BUILT.search(text):
        pins |= Pin.SETTINGS
    end = len(text) - OVERLAP // 2 if more else len(text)
    for name in {match[1] for match in _SET_CONFIG.finditer(text) if match[1] or match.start() < end}:
        found |= Traces(pins=Pin.SETTINGS) if name is None else setting_traces(name)
    for word in {match[1].replace(b'"', b"") for match in _commands(_SET, text)}:
        if word in SPECIAL:
            found |= Traces(SPECIAL[word])
        elif word == b"all":
            found |= Traces(resets=True)
        elif word != b"local" and is_name(setting_name(word.decode())):
            found |= setting_traces(word)
    return found | Traces(
        resets=_DISCARD.search(text) is not None,
        pins=pins,
        frees=any(word in text for word in _FREES),
        reverts=_REVERTS.search(text) is not None,
    )


def _commands(pattern: re.Pattern[bytes], text: bytes) -> Iterator[re.Match[bytes]]:
    """The matches that may be commands; SET in RESET is one too."""
    for match in pattern.finditer(text):
        start = match.start()
        if text.endswith(b"re", 0, start):
            start -= 2
        if _BEFORE.search(text[max(0, start - _LOOKED_BACK) : start]):
            yield match
