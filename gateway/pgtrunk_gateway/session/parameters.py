"""The settings that follow a session from backend to backend.

Two kinds. Some settings Postgres reports whenever they change (ParameterStatus, GUC_REPORT): of those that a client can
set, a *profile* has the values in a fixed order, None for one that the server does not report. All others can be asked
for when a session starts; what a backend has of them is known since the gateway has set it. They are the last element
of a profile, its *others*, as one string (:func:`pack`), so that two profiles are compared as quickly as two tuples.

Before a session uses a backend whose profile differs, :func:`apply` gives the SQL that makes them equal, which travels
in the same flight as the session's query. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "DIALECT",
    "TRACKED",
    "Profile",
    "apply",
    "changed",
    "dialect",
    "doubted",
    "escapes",
    "is_certain",
    "is_lasting",
    "is_name",
    "pack",
    "profile",
    "quote",
    "setting_name",
    "startup_value",
    "unpack",
    "with_value",
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

_LISTS: Final = frozenset({"search_path", "temp_tablespaces", "local_preload_libraries", "session_preload_libraries"})
"""Their value is a list of names, which SET would take for one name. (No extension may have such a setting.)"""
_ROLE: Final = "role"
_AUTHORIZATION: Final = "session_authorization"
_IDENTITIES: Final = (_AUTHORIZATION, _ROLE)
"""Set last, for others may need the rights of the login; and they may be refused any day. Setting or resetting the
first, even to what it is, undoes the second."""
_ENCODING = TRACKED.index("client_encoding")
DIALECT: Final = ("client_encoding", "standard_conforming_strings", "DateStyle", "IntervalStyle", "TimeZone")
"""They decide what a text means when it is parsed."""
_DIALECT = tuple(TRACKED.index(name) for name in DIALECT)
_NAMES = {name.lower(): name for name in TRACKED}
_NAME = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")
_NAME_SIZE: Final = 63
"""Octets of an identifier (NAMEDATALEN); what is longer would be cut off, and might name something else."""

Profile = tuple[str | None, ...]


# -- names and values ------------------------------------------------------------------------------------------------


def setting_name(name: str) -> str:
    """One spelling of the name of any setting: the server's where it is tracked, else in small letters."""
    lower = name.lower()
    return _NAMES.get(lower, lower)


def is_name(name: str) -> bool:
    """Whether a setting can have this name, in the spelling of :func:`setting_name`."""
    return name in TRACKED or (len(name) <= _NAME_SIZE and _NAME.fullmatch(name) is not None)


def startup_value(name: str, value: str) -> str:
    """The value that Postgres would report for a client's ``value``, where that can be told without asking."""
    if name == "client_encoding" and "".join(filter(str.isalnum, value.lower())) in ("utf8", "unicode"):
        return "UTF8"
    return value


def is_certain(name: str, value: str, reported: Mapping[str, str]) -> bool:
    """Whether the server will take this value: it has it already, or it takes any."""
    return name == "application_name" or reported.get(name) == value


# -- profiles --------------------------------------------------------------------------------------------------------


def pack(others: Mapping[str, str | None]) -> str:
    """Settings that are not reported, as one string; a value of None: it has been set, and it is not known to what."""
    return "".join(f"{name}\0{'?' if value is None else '=' + value}\0" for name, value in sorted(others.items()))


def unpack(others: str) -> dict[str, str | None]:
    """What :func:`pack` has packed."""
    parts = others.split("\0")
    return {name: value[1:] if value[0] == "=" else None for name, value in zip(parts[::2], parts[1::2], strict=False)}


def doubted(others: str) -> str:
    """The same, after something that may have changed any of them."""
    return pack(dict.fromkeys(unpack(others)))


def profile(parameters: Mapping[str, str], others: str = "") -> Profile:
    """The profile of who has been told these ``parameters``, and has these ``others``."""
    return (*map(parameters.get, TRACKED), others)


def with_value(profile: Profile, name: str, value: str) -> Profile:
    """The same but for one tracked setting."""
    at = TRACKED.index(name)
    return (*profile[:at], value, *profile[at + 1 :])


def dialect(profile: Profile) -> Profile:
    """The settings that decide what a text means when it is parsed: its octets, its strings, its dates and times.

    ``search_path`` is not among them: Postgres notes it with a statement, and analyses it anew under another.
    """
    return tuple(profile[at] for at in _DIALECT)


def escapes(dialect: Profile) -> bool:
    """Whether a backslash is special in every string."""
    return bool(dialect) and dialect[DIALECT.index("standard_conforming_strings")] == "off"


def changed(old: Profile, new: Profile) -> Iterator[tuple[str, str]]:
    """The names and new values of what is reported, where ``new`` has a value and ``old`` another one."""
    for name, before, after in zip(TRACKED, old, new, strict=False):
        if after is not None and before != after:
            yield name, after


def is_lasting(profile: Profile) -> bool:
    """Whether the server, once it has taken these settings, will take them again: a role may be revoked."""
    others = profile[-1]
    return not others or not any(name in unpack(others) for name in _IDENTITIES)


# -- SQL -------------------------------------------------------------------------------------------------------------


def apply(current: Profile, wanted: Profile) -> bytes:
    """SQL that takes a backend from ``current`` to ``wanted``; b"" where there is nothing to do.

    A reported setting that the backend does not report is left alone: whether it has to be set could not be known.

    Where others change, one may fail at any time (a right is revoked, or an extension has been loaded that reserves a
    prefix). What is sent behind must not run with what the last session had: it finds a transaction that has failed.
    """
    encoding = wanted[_ENCODING] or "UTF8"
    if not encoding.isascii():
        # There is none; and the backend reads this in that of whoever used it last, where it could mean anything.
        encoding = "UTF8"
    commands = [
        _assignment(name, after, encoding)
        for name, before, after in zip(TRACKED, current, wanted, strict=False)
        if after is not None and before is not None and before != after
    ]
    if current[-1] != wanted[-1]:
        others = list(_others(unpack(current[-1] or ""), unpack(wanted[-1] or ""), encoding))
        if others:
            commands = ["BEGIN", *commands, *others, "COMMIT"]
    return ";".join(commands).encode("utf-8", "surrogateescape")


def _others(current: dict[str, str | None], wanted: dict[str, str | None], encoding: str) -> Iterator[str]:
    # An identity goes first and comes last: what is between is done with the rights of the login.
    ordered = sorted(current.keys() - wanted.keys(), key=lambda name: (name not in _IDENTITIES, name))
    yield from (f"RESET {_identifier(name)}" for name in ordered)
    lost = {_ROLE} if current.get(_AUTHORIZATION) != wanted.get(_AUTHORIZATION) else set()
    for name in sorted(wanted, key=_identities_last):
        value = wanted[name]
        if value is not None and (name in lost or name not in current or current[name] != value):
            yield _assignment(name, value, encoding)


def _identities_last(name: str) -> tuple[int, str]:
    return (_IDENTITIES.index(name) + 1 if name in _IDENTITIES else 0), name


def _assignment(name: str, value: str, encoding: str) -> str:
    if not value.isascii():
        # In the encoding of the session, while the backend reads this in that of whoever used it last.
        octets = value.encode("utf-8", "surrogateescape").hex()
        text = f"pg_catalog.convert_from(pg_catalog.decode('{octets}','hex'),{quote(encoding)})"
        return f"SELECT pg_catalog.set_config('{name}',{text},false)"
    if name in _LISTS:
        return f"SELECT pg_catalog.set_config('{name}',{quote(value)},false)"
    return f"SET {_identifier(name)}={quote(value)}"


def _identifier(name: str) -> str:
    # "role" and some others are keywords; a quoted name never is one.
    return name if name in TRACKED else ".".join(f'"{part}"' for part in name.split("."))


def quote(value: str) -> str:
    """``value`` as a literal, whatever standard_conforming_strings is."""
    quoted = value.replace("'", "''")
    # Whether a backslash is special depends on standard_conforming_strings, unless the literal says so itself.
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in value else f"'{quoted}'"
