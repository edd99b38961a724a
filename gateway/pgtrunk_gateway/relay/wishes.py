"""What a startup packet asks for: who, where, and with which settings. Pure.

A session can have any setting that its user can SET. What the server reports of them is told to the client at once; the
others are made when the session first uses a backend, and refused there by Postgres itself where they are wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import LoginRefused, NotSupported
from pgtrunk_gateway.pool.walsender import Replication
from pgtrunk_gateway.session import parameters
from pgtrunk_gateway.session.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["forwarded", "names", "part", "replication", "settings", "with_host"]

_OPTIONS = "options"
_MAX_NAME = 63
"""Bytes of an application_name; Postgres cuts what is longer."""
_NAMES = frozenset({"user", "database"})
_NO_SETTINGS = _NAMES | {"replication", _OPTIONS}
_OF_A_TRANSACTION = frozenset({"transaction_isolation", "transaction_read_only", "transaction_deferrable"})
"""In a startup packet they hold for the transaction in which Postgres logs the client in: for nothing, that is."""
_NEVER_RESET = frozenset({"seed"})
"""Postgres has no way back from them (GUC_NO_RESET), so the next session would have them too."""


def names(packet: Mapping[str, str]) -> tuple[str, str]:
    """User and database, which is the user's name where none is given."""
    user = packet.get("user", "")
    if not user:
        raise LoginRefused("no user name specified in startup packet")
    return user, packet.get("database") or user


def replication(packet: Mapping[str, str]) -> Replication | None:
    """Which kind of replication is asked for, as Postgres reads it; None: none is. Raises :class:`LoginRefused`."""
    value = packet.get("replication", "off")
    if value == "database":
        return Replication.LOGICAL
    word = value.lower()
    if word in ("1", "on") or (word and ("true".startswith(word) or "yes".startswith(word))):
        return Replication.PHYSICAL
    if word in ("0", "of", "off") or (word and ("false".startswith(word) or "no".startswith(word))):
        return None
    raise LoginRefused(
        f'invalid value for parameter "replication": "{value}"',
        sqlstate="22023",
        hint='Valid values are "false", 0, "true", 1 and "database".',
    )


def forwarded(packet: Mapping[str, str], ignored: Collection[str]) -> dict[str, str]:
    """What a replication connection says in its own startup packet, beside the names: all that the client has said.

    Only what is in ``ignored`` is left out, as it is with :func:`settings`, but never ``options``: they are for nobody
    else, so that nothing is asked of them but what Postgres asks.
    """
    dropped = {name.lower() for name in ignored} - _NO_SETTINGS
    return {
        name: value
        for name, value in packet.items()
        if name not in _NAMES and (name.lower() not in dropped or parameters.setting_name(name) in parameters.TRACKED)
    }


def settings(packet: Mapping[str, str], ignored: Collection[str]) -> dict[str, str]:
    """The settings in a startup packet that the session will have: those in its ``options``, and its own parameters,
    which override them.

    What is in ``ignored`` (ignore_startup_parameters) is dropped, unless it is tracked; "options" there means all that
    comes in ``options``. Raises :class:`NotSupported` and :class:`LoginRefused`.
    """
    dropped = {name.lower() for name in ignored}
    asked = [(name, value, _OPTIONS in dropped) for name, value in parse_options(packet.get(_OPTIONS, ""))]
    asked += [(name, value, False) for name, value in packet.items() if name not in _NO_SETTINGS]
    wanted = {}
    for spelt, value, droppable in asked:
        name = parameters.setting_name(spelt)
        if name not in parameters.TRACKED and (droppable or name in dropped):
            continue
        if name in _OF_A_TRANSACTION:
            continue
        if name in _NEVER_RESET:
            raise NotSupported(f'parameter "{name}" cannot follow a session from backend to backend', severity="FATAL")
        if not parameters.is_name(name):
            raise LoginRefused(f'unrecognized configuration parameter "{spelt}"', sqlstate="42704")
        wanted[name] = parameters.startup_value(name, value)
    return wanted


def with_host(wanted: Mapping[str, str], address: str) -> dict[str, str]:
    """``wanted`` with the client's address in its application_name, as PgBouncer has it: "name - host:port"."""
    host = f" - {address}"
    room = max(0, _MAX_NAME - len(host.encode()))
    name = wanted.get("application_name", "app").encode()[:room].decode(errors="ignore")
    return {**wanted, "application_name": name + host}


def part(
    wanted: Mapping[str, str], reported: Mapping[str, str], ignored: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """What of ``wanted`` this server reports and a profile has a place for, and the others; ``ignored`` as above."""
    known = {name: value for name, value in wanted.items() if name in parameters.TRACKED and name in reported}
    return known, {name: value for name, value in wanted.items() if name not in known and name not in ignored}
