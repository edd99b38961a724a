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

SPACES = re.compile(r" *")
KEY = re.compile(r"[^= ]*")
EQUALS = re.compile(r" *= *")
QUOTED = re.compile(r"'(?P<value>(?:[^']+|'')*+)'")
PLAIN = re.compile(r"[^ ]*")


def parse_connstr(text: str) -> list[tuple[str, str]]:
    """The pairs of `text` in their order, duplicates included.

    :raises ConfigError: without place; the message shows keys, never values.
    """
    pairs = []
    at = _end(SPACES, text, 0)
    while at < len(text):
        key, at = _key(text, at)
        value, at = _value(key, text, at)
        pairs.append((key, value))
        at = _end(SPACES, text, at)
    return pairs


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the match at `at` ends; `at` where there is none."""
    match = pattern.match(text, at)
    return match.end() if match else at


def _key(text: str, at: int) -> tuple[str, int]:
    end = _end(KEY, text, at)
    value_at = _end(EQUALS, text, end)
    key = text[at:end]
    if value_at == end:
        # No = follows, so this may as well be the tail of a password with a space in it: not shown.
        raise ConfigError("expected key=value, found a word without =; a value with spaces needs single quotes")
    if not key:
        raise ConfigError("expected key=value, found nothing before the =")
    if "\t" in key:
        raise ConfigError(f"{quoted(key)} has a tab in it: pairs are separated by spaces only")
    return key, value_at


def _value(key: str, text: str, at: int) -> tuple[str, int]:
    value, end = _quoted_value(key, text, at) if text.startswith("'", at) else _plain_value(key, text, at)
    if not value:
        raise ConfigError(f"the value of {quoted(key)} is empty")
    return value, end


def _quoted_value(key: str, text: str, at: int) -> tuple[str, int]:
    match = QUOTED.match(text, at)
    if match is None:
        raise ConfigError(f"the value of {quoted(key)} lacks its closing quote; a quote inside is doubled")
    end = match.end()
    if end < len(text) and text[end] != " ":
        raise ConfigError(f"the value of {quoted(key)} goes on after its closing quote; a quote inside is doubled")
    return match["value"].replace("''", "'"), end


def _plain_value(key: str, text: str, at: int) -> tuple[str, int]:
    end = _end(PLAIN, text, at)
    if "\t" in text[at:end]:
        raise ConfigError(f"the value of {quoted(key)} has a tab in it: pairs are separated by spaces only")
    return text[at:end], end
