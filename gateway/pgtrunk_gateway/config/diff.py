"""What a reload would change, as a value: nothing is applied here.

The order of things is PgBouncer's: settings that need a restart keep their old value until then; backends of a database
whose address, name or user changed are closed as their leases end; sessions of a database that is gone are closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .keys import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .settings import Config, DatabaseConfig

__all__ = ["Change", "Changes", "diff"]

ENDPOINT = ("server_dbname", "places", "load_balance_hosts", "session_attrs", "patroni", "user")


@dataclass(frozen=True, slots=True)
class Change:
    """One key of the main section with another value than before."""

    key: str
    old: Any
    new: Any
    needs_restart: bool
    """Whether the new value only counts after a restart."""

    def __str__(self) -> str:
        return f"{self.key}: {_write(self.key, self.old)} -> {_write(self.key, self.new)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All that is other in one configuration than in an earlier one. Names are those of entries, sorted."""

    settings: tuple[Change, ...] = ()
    databases_added: tuple[str, ...] = ()
    databases_removed: tuple[str, ...] = ()
    """Also those that only "*" serves now."""
    databases_changed: tuple[str, ...] = ()
    """With other values, `databases_moved` among them; "*" may be one."""
    databases_moved: tuple[str, ...] = ()
    """Whose backends lead to the wrong place now, or are logged in as the wrong user."""
    users_changed: tuple[str, ...] = ()
    """Added, removed, or with other values."""
    peers_changed: tuple[int, ...] = ()
    """Added, removed, or with other values."""

    def __bool__(self) -> bool:
        return self != Changes()

    @property
    def needs_restart(self) -> tuple[Change, ...]:
        """Those of `settings` that only a restart brings about."""
        return tuple(change for change in self.settings if change.needs_restart)

    def lines(self) -> Iterator[str]:
        """What the log says about them."""
        yield from map(str, self.settings)
        databases = {
            "added": self.databases_added,
            "removed": self.databases_removed,
            "changed": self.databases_changed,
        }
        for what, names in databases.items():
            yield from (f'database "{name}": {what}' for name in names)
        yield from (f'user "{name}": changed' for name in self.users_changed)


def diff(old: Config, new: Config) -> Changes:
    """What `new` changes."""
    before, after = _databases(old), _databases(new)
    changed = _changed(before, after)
    kept = [name for name in changed if name in before and name in after]
    return Changes(
        settings=tuple(_settings(old, new)),
        databases_added=tuple(name for name in changed if name not in before),
        databases_removed=tuple(name for name in changed if name not in after),
        databases_changed=tuple(kept),
        databases_moved=tuple(name for name in kept if _endpoint(before[name]) != _endpoint(after[name])),
        users_changed=_changed(old.users, new.users),
        peers_changed=_changed(old.peers, new.peers),
    )


def _settings(old: Config, new: Config) -> Iterator[Change]:
    for name, key in MAIN.items():
        if key.acted_on and getattr(old, name) != getattr(new, name):
            yield Change(name, getattr(old, name), getattr(new, name), not key.changeable)


def _databases(config: Config) -> dict[str, DatabaseConfig]:
    any_database = {} if config.any_database is None else {config.any_database.name: config.any_database}
    return {**config.databases, **any_database}


def _changed(old: Mapping[Any, object], new: Mapping[Any, object]) -> tuple[Any, ...]:
    return tuple(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def _endpoint(database: DatabaseConfig) -> tuple[object, ...]:
    return tuple(getattr(database, name) for name in ENDPOINT)


def _write(key: str, value: Any) -> str:
    return MAIN[key].kind.write(value) or "(not set)"
