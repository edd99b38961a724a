"""The settings that follow a session from backend to backend.

Postgres reports some settings to the client whenever they change (ParameterStatus, GUC_REPORT). Of those that a client
can set, a session has a *profile*: their values, in a fixed order, None for one that the server does not report. Before
a session uses a backend whose profile differs, :func:`apply` gives the SQL that makes them equal, which travels in the
same flight as the session's query. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "TRACKED",
    "Profile",
    "apply",
    "changed",
    "dialect",
    "is_certain",
    "profile",
    "startup_value",
    "tracked_name",
]

TRACKED = (
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
    "application_name",
    "IntervalStyle",
    "search_path",
    "default_transaction_read_only",
    "scram_iterations",
)
"""Reported by some version of Postgres, and settable by any client."""

_LISTS = frozenset({"search_path"})
"""Their value is a list, which SET would take for one name."""
_ENCODING = TRACKED.index("client_encoding")
_DIALECT = tuple(
    TRACKED.index(name)
    for name in ("client_encoding", "standard_conforming_strings", "DateStyle", "IntervalStyle", "TimeZone")
)
_NAMES = {name.lower(): name for name in TRACKED}

Profile = tuple[str | None, ...]


def tracked_name(name: str) -> str | None:
    """``name`` as the server spells it, or None where it is not tracked; case does not matter."""
    return _NAMES.get(name.lower())


def startup_value(name: str, value: str) -> str:
    """The value that Postgres would report for a client's ``value``, where that can be told without asking."""
    if name == "client_encoding" and "".join(filter(str.isalnum, value.lower())) in ("utf8", "unicode"):
        return "UTF8"
    return value


def is_certain(name: str, value: str, reported: Mapping[str, str]) -> bool:
    """Whether the server will take this value: it has it already, or it takes any."""
    return name == "application_name" or reported.get(name) == value


def profile(parameters: Mapping[str, str]) -> Profile:
    """The profile in a set of reported parameters."""
    return tuple(map(parameters.get, TRACKED))


def dialect(profile: Profile) -> Profile:
    """The settings that decide what a text means when it is parsed: its octets, its strings, its dates and times.

    ``search_path`` is not among them: Postgres notes it with a statement, and analyses it anew under another.
    """
    return tuple(profile[at] for at in _DIALECT)


def changed(old: Profile, new: Profile) -> Iterator[tuple[str, str]]:
    """The names and new values where ``new`` has a value and ``old`` another one."""
    for name, before, after in zip(TRACKED, old, new, strict=True):
        if after is not None and before != after:
            yield name, after


def apply(current: Profile, wanted: Profile) -> bytes:
    """SQL that takes a backend from ``current`` to ``wanted``; b"" where there is nothing to do.

    A setting that the backend does not report is left alone: whether it has to be set could not be known.
    """
    pairs = [
        (name, after)
        for name, before, after in zip(TRACKED, current, wanted, strict=True)
        if after is not None and before is not None and before != after
    ]
    encoding = wanted[_ENCODING] or "UTF8"
    return ";".join(_assignment(name, value, encoding) for name, value in pairs).encode("utf-8", "surrogateescape")


def _assignment(name: str, value: str, encoding: str) -> str:
    if not value.isascii():
        # In the encoding of the session, while the backend reads this in that of whoever used it last.
        octets = value.encode("utf-8", "surrogateescape").hex()
        text = f"pg_catalog.convert_from(pg_catalog.decode('{octets}','hex'),{_quote(encoding)})"
        return f"SELECT pg_catalog.set_config('{name}',{text},false)"
    if name in _LISTS:
        return f"SELECT pg_catalog.set_config('{name}',{_quote(value)},false)"
    return f"SET {name}={_quote(value)}"


def _quote(value: str) -> str:
    quoted = value.replace("'", "''")
    # Whether a backslash is special depends on standard_conforming_strings, unless the literal says so itself.
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in value else f"'{quoted}'"
