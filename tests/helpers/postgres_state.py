"""What a session of :mod:`helpers.postgres_model` has on its backend beyond its transactions, and who asks for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgtrunk_gateway.session.sql.traces import Pin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BELONGS", "Belongings", "is_custom", "left"]

_UNLISTED = ("role", "session_authorization")
"""Settings that the view pg_settings does not show; nor does it those that only sessions have."""


@dataclass(slots=True)
class Belongings:
    """All but the values of its settings."""

    made: set[str] = field(default_factory=set)
    """Settings that the session has set."""
    channels: set[str] = field(default_factory=set)
    temporary: set[str] = field(default_factory=set)
    passing: set[str] = field(default_factory=set)
    """Temporary tables that are dropped when the transaction is over."""
    cursors: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)
    locks: list[str] = field(default_factory=list)

    def copy(self) -> Belongings:
        return Belongings(set(self.made), set(self.channels), set(self.temporary), set(self.passing), set(self.cursors))

    def roll_back(self, before: Belongings) -> None:
        """Locks and libraries stay."""
        before = before.copy()
        for name in ("made", "channels", "temporary", "passing", "cursors"):
            setattr(self, name, getattr(before, name))

    def discard(self, held: dict[str, Belongings]) -> Belongings:
        """DISCARD ALL -> what is left. Libraries are."""
        for name in set(self.locks):
            del held[name]
        self.locks.clear()
        self.roll_back(Belongings())
        return self.copy()

    def commit(self) -> None:
        self.temporary -= self.passing
        self.passing.clear()

    @property
    def pins(self) -> Pin:
        """What of it an inquiry finds."""
        found = Pin.NONE
        for pin, has in (
            (Pin.LISTEN, self.channels),
            (Pin.TEMPORARY, self.temporary),
            (Pin.LOCK, self.locks),
            (Pin.CURSOR, self.cursors),
        ):
            if has:
                found |= pin
        return found


def _unlisten(belongings: Belongings, channel: str) -> None:
    belongings.channels -= belongings.channels if channel == "*" else {channel}


def _create(belongings: Belongings, name: str, passing: str | None) -> None:
    belongings.temporary.add(name)
    if passing:
        belongings.passing.add(name)


BELONGS: dict[str, Callable[..., object]] = {
    "listen": lambda belongings, channel: belongings.channels.add(channel),
    "unlisten": _unlisten,
    "create temp": _create,
    "drop": lambda belongings, name: belongings.temporary.discard(name),
    "declare": lambda belongings, name: belongings.cursors.add(name),
    "close": lambda belongings, name: belongings.cursors.discard(name),
    "load": lambda belongings, name: belongings.libraries.add(name),
}
"""The commands, by their words."""


def is_custom(name: str) -> bool:
    """Whether it is a setting that any session can make."""
    return "." in name


def left(sql: str, settings: Mapping[str, str], belongings: Belongings) -> list[tuple[bytes | None, ...]]:
    """What an inquiry gives: name, value, and whether the session has set it; or a pin and whether it is there."""
    rows: list[tuple[bytes | None, ...]] = []
    array = re.search(r"ARRAY\[(.*?)\]", sql)
    for name in re.findall(r"'([^']*)'", array[1]) if array else ():
        value = settings.get(name)
        is_set: bool | None = name in belongings.made
        if is_custom(name) or name in _UNLISTED or name not in settings:
            is_set = value != "" if value is not None else None
        rows.append((name.encode(), None if value is None else value.encode(), _boolean(is_set)))
    asked = re.findall(r"SELECT '(\d+)',NULL,EXISTS", sql)
    return rows + [(number.encode(), None, _boolean(bool(belongings.pins & Pin(int(number))))) for number in asked]


def _boolean(value: bool | None) -> bytes | None:
    return None if value is None else b"t" if value else b"f"
