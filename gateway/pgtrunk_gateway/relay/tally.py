"""How many sessions there are: in all, in each database, and of each user; and whether there may be one more.

A session counts against max_client_conn from its startup packet on, and against max_db_client_connections and
max_user_client_connections from the moment at which its login is proved: who cannot log in takes nobody's place, and
learns nothing of limits. (PgBouncer counts both from the startup packet.) Each has a :class:`Place`, which it leaves
once, however it ends. Sessions of the console count too, but not against max_client_conn, and no limit holds for
administrators there.

In a fleet the limits are for all workers together: there a :class:`Turnstile` says whether there may be one more, which
can take a moment. What is counted here is what is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pgtrunk_gateway.errors import TooManyConnections

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgtrunk_gateway.config.settings import Config, DatabaseConfig

__all__ = ["Place", "Tally", "Turnstile"]


class Turnstile(Protocol):
    """The limits of a fleet. Names are such as ``("database", "shop")`` and ``("user", "app")``."""

    async def enter(self, limit: int) -> bool:
        """One more, of ``limit`` (max_client_conn) -> whether there is a place for it."""
        ...

    def left(self) -> None:
        """One that had a place has gone."""

    def empty(self) -> None:
        """max_client_conn may be another one from now on."""

    async def settle(self, limits: Sequence[tuple[tuple[str, ...], int]]) -> int | None:
        """One more under all these names, with these limits (0: none) -> the place of the first that is reached; then
        there is not one more."""
        ...

    def unsettle(self, names: Iterable[tuple[str, ...]]) -> None:
        """It has gone."""

    async def close(self) -> None:
        """Nothing runs for it any more."""


class Tally:
    """Of one gateway. A name that has no sessions is not in ``databases``, or ``users``."""

    def __init__(self) -> None:
        self.total = 0
        """Sessions that count against max_client_conn."""
        self.databases: dict[str, int] = {}
        self.users: dict[str, int] = {}
        self.turnstile: Turnstile | None = None
        """What says for all workers of a fleet whether there may be one more."""

    async def admit(self, limit: int) -> Place:
        """As :meth:`enter`, for the fleet as a whole."""
        if self.turnstile is None:
            return self.enter(limit)
        if not await self.turnstile.enter(limit):
            raise _too_many(limit)
        try:
            return self.enter(limit)
        except TooManyConnections:
            self.turnstile.left()
            raise

    def enter(self, limit: int) -> Place:
        """A session begins to log in; ``limit``: max_client_conn. Raises :class:`TooManyConnections`."""
        if self.total >= limit:
            raise _too_many(limit)
        self.total += 1
        return Place(self, weight=1)

    def visit(self) -> Place:
        """As :meth:`enter`, for the console."""
        return Place(self, weight=0)


class Place:
    """One session's. ``weight`` 0: it does not count against max_client_conn."""

    __slots__ = ("_database", "_tally", "_user", "_weight")

    def __init__(self, tally: Tally, *, weight: int) -> None:
        self._tally = tally
        self._weight = weight
        self._database: str | None = None
        self._user: str | None = None

    async def prove(self, config: Config, database: DatabaseConfig, user: str, *, exempt: bool = False) -> None:
        """As :meth:`settle`, for the fleet as a whole."""
        turnstile = self._tally.turnstile
        if turnstile is None:
            self.settle(config, database, user, exempt=exempt)
            return
        limits = {name: 0 if exempt else limit for name, limit in _limits(config, database, user).items()}
        reached = await turnstile.settle(list(zip(_names(database.name, user), limits.values(), strict=True)))
        if reached is not None:
            setting = list(limits)[reached]
            raise _exceeded(setting, limits[setting])
        # Not a second time against the limits: the fleet has said yes, and its sessions are not all here.
        self._count(database.name, user)

    def settle(self, config: Config, database: DatabaseConfig, user: str, *, exempt: bool = False) -> None:
        """The session has proved to be ``user``. Raises :class:`TooManyConnections`; it then counts as before.

        ``exempt``: no limit holds, but it counts.
        """
        tally = self._tally
        if not exempt:
            counts = tally.databases.get(database.name, 0), tally.users.get(user, 0)
            for (setting, limit), count in zip(_limits(config, database, user).items(), counts, strict=True):
                if limit and count >= limit:
                    raise _exceeded(setting, limit)
        self._count(database.name, user)

    def _count(self, database: str, user: str) -> None:
        tally = self._tally
        self._database, self._user = database, user
        tally.databases[database] = tally.databases.get(database, 0) + 1
        tally.users[user] = tally.users.get(user, 0) + 1

    def leave(self) -> None:
        """The session, or its login, has ended. Once is enough; more does no harm."""
        tally = self._tally
        tally.total -= self._weight
        if tally.turnstile is not None:
            if self._weight:
                tally.turnstile.left()
            if self._database is not None and self._user is not None:
                tally.turnstile.unsettle(_names(self._database, self._user))
        self._weight = 0
        for counts, name in ((tally.databases, self._database), (tally.users, self._user)):
            if name is not None:
                counts[name] -= 1
                if not counts[name]:
                    del counts[name]
        self._database = self._user = None


def _names(database: str, user: str) -> list[tuple[str, ...]]:
    return [("database", database), ("user", user)]


def _limits(config: Config, database: DatabaseConfig, user: str) -> dict[str, int]:
    """By the names of their settings; 0: there is none. In the order of :func:`_names`."""
    return {
        "max_db_client_connections": config.resolve_max_db_client_connections(database),
        "max_user_client_connections": config.resolve_max_user_client_connections(user),
    }


def _too_many(limit: int) -> TooManyConnections:
    return TooManyConnections(
        "no more connections allowed (max_client_conn)",
        detail=f"max_client_conn = {limit}.",
        hint="Raise max_client_conn, or close sessions that are not needed.",
    )


def _exceeded(setting: str, limit: int) -> TooManyConnections:
    return TooManyConnections(
        f"client connections exceeded ({setting})",
        detail=f"{setting} = {limit}.",
        hint=f"Raise {setting}, or close sessions that are not needed.",
    )
