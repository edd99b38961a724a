"""What is in force in a fleet and is not in the files, or not any more: what each new worker must know. Pure.

The configuration as it was read last, which the files may have left behind by now, what SET has changed since, and what
the console has paused, suspended and disabled. A value: each command makes another one of it, or raises where it means
nothing, as :class:`~pgtrunk_gateway.operations.GatewayOperations` does, and in its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.config.amend import keep_until_restart, set_key
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.errors import ConfigError, GatewayError, NoSuchDatabase

if TYPE_CHECKING:
    from pgtrunk_gateway.config.ini import Reader
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.console.operations import PoolerState
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["INVERSE", "Standing", "reader"]

INVERSE: Final[Mapping[str, str]] = {"pause": "resume", "suspend": "resume", "disable": "enable", "enable": "disable"}
"""What takes a command back."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one fleet. ``number`` counts the changes, so that a worker can tell whether it knows the last."""

    number: int = 0
    first: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The configuration's files, by their names, as they were when the fleet started: what only a restart changes is
    taken from here."""
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """As they were at the last reload."""
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What SET has changed since then, in this order."""
    paused: bool = False
    suspended: bool = False
    paused_databases: frozenset[str] = frozenset()
    disabled_databases: frozenset[str] = frozenset()

    @property
    def state(self) -> PoolerState:
        return "suspended" if self.suspended else "paused" if self.paused else "active"

    # -- the configuration ---------------------------------------------------------------------------------------------

    def loaded(self, path: str) -> Loaded:
        """The configuration in force, for a worker that starts. Raises :class:`ConfigError` where the disk has not any
        more what it names."""
        running = load(path, reader(self.first), on_disk=False)
        loaded = keep_until_restart(running, load(path, reader(self.files)))
        for key, value in self.settings:
            loaded = set_key(loaded, key, value)
        return loaded

    def reloaded(self, files: Mapping[str, str], config: Config) -> Standing:
        """After RELOAD: ``config`` is in force now, and databases that it does not have are forgotten."""

        def left(names: frozenset[str]) -> frozenset[str]:
            return frozenset(name for name in names if config.database(name) is not None)

        return self._next(
            files=dict(files),
            settings=(),
            paused_databases=left(self.paused_databases),
            disabled_databases=left(self.disabled_databases),
        )

    def set(self, key: str, value: str) -> Standing:
        """After SET."""
        return self._next(settings=(*(each for each in self.settings if each[0] != key), (key, value)))

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def act(self, verb: str, database: str | None, config: Config) -> Standing:
        """After a verb; those that leave nothing behind change nothing. Raises a :class:`GatewayError` of severity
        ERROR where it cannot be done now."""
        if database is not None and config.database(database) is None:
            raise NoSuchDatabase(f"no such database: {database}", severity="ERROR")
        match verb:
            case "pause" | "kill":
                return self._pause(database)
            case "suspend":
                return self._suspend()
            case "resume":
                return self._resume(database)
            case "disable" if database is not None:
                return self._next(disabled_databases=self.disabled_databases | {database})
            case "enable" if database is not None:
                return self._next(disabled_databases=self.disabled_databases - {database})
        return self

    def _pause(self, database: str | None) -> Standing:
        self._check_active()
        if database is None:
            return self._next(paused=True)
        return self._next(paused_databases=self.paused_databases | {database})

    def _suspend(self) -> Standing:
        self._check_active()
        if self.paused_databases:
            raise _not_now("cannot suspend with paused databases")
        return self._next(suspended=True)

    def _resume(self, database: str | None) -> Standing:
        if database is not None:
            if database not in self.paused_databases:
                raise _not_now(f"database {database} is not paused")
            return self._next(paused_databases=self.paused_databases - {database})
        if self.state == "active":
            raise _not_now("pooler is not paused/suspended")
        return self._next(paused=False, suspended=False)

    def _check_active(self) -> None:
        if self.state != "active":
            raise _not_now("already suspended/paused")

    def changes(self, before: Standing) -> bool:
        """Whether anything but the number is other than ``before``."""
        return replace(self, number=before.number) != before

    def _next(self, **changes: object) -> Standing:
        return replace(self, number=self.number + 1, **changes)  # type: ignore[arg-type]  # fields, by their names

    # -- as it travels -------------------------------------------------------------------------------------------------

    def as_body(self) -> Body:
        return {
            "number": self.number,
            "first": dict(self.first),
            "files": dict(self.files),
            "settings": [list(each) for each in self.settings],
            "paused": self.paused,
            "suspended": self.suspended,
            "paused_databases": sorted(self.paused_databases),
            "disabled_databases": sorted(self.disabled_databases),
        }

    @classmethod
    def from_body(cls, body: Body) -> Standing:
        """The other way; nothing stands where nothing was said."""
        if not body:
            return cls()
        return cls(
            number=body["number"],
            first=body["first"],
            files=body["files"],
            settings=tuple((key, value) for key, value in body["settings"]),
            paused=body["paused"],
            suspended=body["suspended"],
            paused_databases=frozenset(body["paused_databases"]),
            disabled_databases=frozenset(body["disabled_databases"]),
        )


def reader(files: Mapping[str, str]) -> Reader:
    """Reads the configuration's files out of ``files``, and none from the disk."""

    def read(path: str) -> str:
        try:
            return files[path]
        except KeyError:
            raise ConfigError("is not among the files that the supervisor has read") from None

    return read


def _not_now(message: str) -> GatewayError:
    return GatewayError(message, sqlstate="55000", severity="ERROR")
