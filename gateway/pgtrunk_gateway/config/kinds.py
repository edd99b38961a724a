"""The kinds of values that a key can take: how each is read, what it refuses, how it is written back.

Numbers are read as PgBouncer reads them: integers by strtol with base 0 (0x10 and 010 are numbers), times as seconds
with fractions. Stricter than PgBouncer, which takes any garbage in [databases] and [users] for 0. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

from ..errors import ConfigError
from .faults import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Kind", "Unit", "Value"]

Value: TypeAlias = int | float | str | tuple[str | int, ...] | None
"""A value as the settings hold it; `bool` is an `int`, `None` is "not set"."""
Unit: TypeAlias = Literal[
    "", "s", "ms", "bytes", "connections", "streams", "packets", "logins", "statements", "parameters"
]

INT_MAX = 2**31 - 1
INTEGER = re.compile(r"[+-]?(?P<digits>0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,18})")
SECONDS = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
SIZE = re.compile(r"(?P<number>[0-9]{1,18}) *(?P<unit>B|kB|MB|GB)?", re.IGNORECASE)
SIZES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
MODE = re.compile(r"0[0-7]{3}|0")
SEPARATORS = re.compile(r"[,\s]+")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value."""

    allowed: str
    """What is allowed, as it stands behind "expected" in an error."""
    read: Callable[[str], Value]
    """Raises `ConfigError`, without place, for what is not allowed."""
    write: Callable[[Value], str] = str
    """What `read` would take for the value; SHOW CONFIG's spelling."""
    unit: Unit = ""


def _refuse(text: str, allowed: str) -> ConfigError:
    return ConfigError(f"bad value {quoted(text)}: expected {allowed}")


def _parse_integer(text: str) -> int | None:
    match = INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match["digits"]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    return int(digits, base) * (-1 if text[0] == "-" else 1)


def integer(minimum: int = 0, maximum: int = INT_MAX, *, unit: Unit = "") -> Kind:
    """A whole number in a range."""
    allowed = f"a whole number from {minimum} to {maximum}"

    def read(text: str) -> int:
        value = _parse_integer(text)
        if value is None or not minimum <= value <= maximum:
            raise _refuse(text, allowed)
        return value

    return Kind(allowed, read, unit=unit)


def boolean() -> Kind:
    """0 or 1; as in PgBouncer any other number is taken for 1."""
    allowed = "0 or 1"

    def read(text: str) -> bool:
        value = _parse_integer(text)
        if value is None:
            raise _refuse(text, allowed)
        return value != 0

    return Kind(allowed, read, lambda value: str(int(bool(value))))


def seconds(*, minimum: float = 0.0) -> Kind:
    """A time in seconds, with fractions."""
    allowed = "a number of seconds, such as 15 or 0.5" + (f", at least {minimum:g}" if minimum else "")

    def read(text: str) -> float:
        value = float(text) if SECONDS.fullmatch(text) else -1.0
        if not minimum <= value <= INT_MAX:
            raise _refuse(text, allowed)
        return value

    return Kind(allowed, read, lambda value: f"{value:g}", unit="s")


def size(minimum: int = 0, maximum: int = 1 << 40) -> Kind:
    """A number of bytes; kB, MB and GB (of 1024, as in Postgres) may follow."""
    allowed = f"bytes from {minimum} to {maximum}, such as 65536, 64kB, 32MB or 1GB"

    def read(text: str) -> int:
        match = SIZE.fullmatch(text)
        value = int(match["number"]) * SIZES[(match["unit"] or "B").lower()] if match else -1
        if not minimum <= value <= maximum:
            raise _refuse(text, allowed)
        return value

    return Kind(allowed, read, unit="bytes")


def choice(first: str, *others: str, later: tuple[str, ...] = ()) -> Kind:
    """One of some words, in upper or lower case. `later`: words of PgBouncer that the gateway does not act on yet."""
    values = (first, *others)
    allowed = f"one of {', '.join(values)}" if others else first

    def read(text: str) -> str:
        word = text.lower()
        if word in later:
            raise ConfigError(f"{quoted(text)} is not available yet: expected {allowed}")
        if word not in values:
            raise _refuse(text, allowed)
        return word

    return Kind(allowed, read)


def words(separators: re.Pattern[str] = SEPARATORS, *, unit: Unit = "") -> Kind:
    """A list, with commas or blanks between its words. Nothing: an empty list."""

    def write(value: Value) -> str:
        return ", ".join(map(str, value)) if isinstance(value, tuple) else ""

    def read(text: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in separators.split(text) if word.strip())

    return Kind("a list of words with commas between them", read, write, unit)


def hosts() -> Kind:
    """A list of hosts, with commas between them; the directory of a unix socket may have blanks in its name."""
    return words(re.compile(","))


def ports() -> Kind:
    """A port, or a list of them with commas between them."""
    port = integer(1, 65535)

    def write(value: Value) -> str:
        return ",".join(map(str, value)) if isinstance(value, tuple) else ""

    def read(text: str) -> tuple[str | int, ...]:
        return tuple(_number(port.read(word.strip())) for word in text.split(","))

    return Kind(f"{port.allowed}, or several with commas between them", read, write)


def urls() -> Kind:
    """A list of URLs, with commas between them. Nothing: an empty list."""
    allowed = "URLs such as http://db1.example:8008, with commas between them"

    def write(value: Value) -> str:
        return ",".join(map(str, value)) if isinstance(value, tuple) else ""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(word.strip() for word in text.split(",") if word.strip())
        if not all(_is_url(word) for word in found):
            raise _refuse(text, allowed)
        return found

    return Kind(allowed, read, write)


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        # Asking for the port is what finds a bad one. A password in it would end up in logs.
        is_one = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and "@" not in url.netloc
    except ValueError:
        return False
    return is_one and not (url.path.strip("/") or url.query or url.fragment)


def text() -> Kind:
    """Any text. Nothing: not set."""
    return Kind("a text", lambda text: text or None, lambda value: "" if value is None else str(value))


def path() -> Kind:
    """The name of a file or directory, relative to the working directory. Nothing: not set."""
    return Kind("the name of a file", lambda text: text or None, lambda value: "" if value is None else str(value))


def mode() -> Kind:
    """Permission bits in octal. PgBouncer takes a number without its leading 0 for decimal; here that is an error."""
    allowed = "permissions in octal with a leading 0, such as 0770"

    def read(text: str) -> int:
        if not MODE.fullmatch(text):
            raise _refuse(text, allowed)
        return int(text, 8)

    return Kind(allowed, read, lambda value: f"{value:04o}")


def automatic(kind: Kind) -> Kind:
    """`kind`, or "auto": whoever uses the value finds out what is best. Held as 0, which `kind` must not allow."""
    allowed = f"{kind.allowed}, or auto"

    def read(text: str) -> Value:
        if text.lower() == "auto":
            return 0
        try:
            return kind.read(text)
        except ConfigError:
            raise _refuse(text, allowed) from None

    return Kind(allowed, read, lambda value: kind.write(value) if value else "auto", kind.unit)


def optional(kind: Kind, *, zero: bool = False) -> Kind:
    """`kind`, where a number below 0 means "not set", as in [databases] and [users]; with `zero`, 0 does too."""

    def read(text: str) -> Value:
        number = _parse_integer(text)
        if number is not None and number < 0:
            return None
        value = kind.read(text)
        return None if zero and value == 0 else value

    return Kind(
        f"{kind.allowed}, or -1 for not set",
        read,
        lambda value: "-1" if value is None else kind.write(value),
        kind.unit,
    )
