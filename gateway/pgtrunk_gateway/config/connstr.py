"""Connection strings as PgBouncer reads them: `host=db.example port=5432 password='it''s'`.

Like libpq's, and not: only the space (no tab) separates, a quote inside quotes is doubled (no backslash), no value is
empty. Where PgBouncer would guess - a tab that ends up in a host name, the character behind a closing quote that it
swallows - this raises. Knows no keys.
"""

from __future__ import annotations

import re

from ..errors import ConfigError
from .faults import quoted

__all__ = ["parse_connstr"]

KEY = re.compile(r"[^= ]+")
EQUALS = re.compile(r" *= *")
QUOTED = re.compile(r"'(?P<value>(?:[^']|'')*)'")
PLAIN = re.compile(r"[^ ]+")


def parse_connstr(text: str) -> list[tuple[str, str]]:
    """The pairs of `text` in their order, duplicates included.

    :raises ConfigError: without place; the message shows keys, never values.
    """
    pairs = []
    rest = text.lstrip(" ")
    while rest:
        key, rest = _key(rest)
        value, rest = _value(key, rest)
        pairs.append((key, value))
        rest = rest.lstrip(" ")
    return pairs


def _key(text: str) -> tuple[str, str]:
    name = KEY.match(text)
    if name is None:
        raise ConfigError("expected key=value, found nothing before the =")
    equals = EQUALS.match(text, name.end())
    if equals is None:
        # No = follows, so this may as well be the tail of a password with a space in it: not shown.
        raise ConfigError("expected key=value, found a word without =; a value with spaces needs single quotes")
    if "\t" in name[0]:
        raise ConfigError(f"{quoted(name[0])} has a tab in it: pairs are separated by spaces only")
    return name[0], text[equals.end() :]


def _value(key: str, text: str) -> tuple[str, str]:
    if not text.startswith("'"):
        return _plain(key, text)
    match = QUOTED.match(text)
    if match is None:
        raise ConfigError(f"the value of {quoted(key)} lacks its closing quote")
    rest = text[match.end() :]
    if rest and not rest.startswith(" "):
        raise ConfigError(f"the value of {quoted(key)} goes on after its closing quote; a quote inside is doubled")
    if not match["value"]:
        raise ConfigError(f"the value of {quoted(key)} is empty")
    return match["value"].replace("''", "'"), rest


def _plain(key: str, text: str) -> tuple[str, str]:
    match = PLAIN.match(text)
    if match is None:
        raise ConfigError(f"the value of {quoted(key)} is empty")
    if "\t" in match[0]:
        raise ConfigError(f"the value of {quoted(key)} has a tab in it: pairs are separated by spaces only")
    return match[0], text[match.end() :]
