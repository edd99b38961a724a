"""How many sessions there are: in all, in each database, and of each user; and whether there may be one more.

A session counts against max_client_conn from its startup packet on, and against max_db_client_connections and
max_user_client_connections from the moment at which its login is proved: who cannot log in takes nobody's place, and
learns nothing of limits. (PgBouncer counts both from the startup packet.) Each has a :class:`Place`, which it leaves
once, however it ends. Sessions of the console count too, but not against max_client_conn, and no limit holds for
administrators there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import TooManyConnections

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig

__all__ = ["Place", "Tally"]


class Tally:
    """Of one gateway. A name that has no sessions is not in ``databases``, or ``users``."""

    def __init__(self) -> None:
        self.total = 0
        """Sessions that count against max_client_conn."""
        self.databases: dict[str, int] = {}
        self.users: dict[str, int] = {}

    def enter(self, limit: int) -> Place:
        """A session begins to log in; ``limit``: max_client_conn. Raises :class:`TooManyConnections`."""
        if self.total >= limit:
            raise TooManyConnections(
                "no more connections allowed (max_client_conn)",
                detail=f"max_client_conn = {limit}.",
                hint="Raise max_client_conn, or close sessions that are not needed.",
            )
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

    def settle(self, config: Config, database: DatabaseConfig, user: str, *, exempt: bool = False) -> None:
        """The session has proved to be ``user``. Raises :class:`TooManyConnections`; it then counts as before.

        ``exempt``: no limit holds, but it counts.
        """
        tally = self._tally
        if not exempt:
            in_database, of_user = tally.databases.get(database.name, 0), tally.users.get(user, 0)
            _check("max_db_client_connections", config.resolve_max_db_client_connections(database), in_database)
            _check("max_user_client_connections", config.resolve_max_user_client_connections(user), of_user)
        self._database, self._user = database.name, user
        tally.databases[database.name] = tally.databases.get(database.name, 0) + 1
        tally.users[user] = tally.users.get(user, 0) + 1

    def leave(self) -> None:
        """The session, or its login, has ended. Once is enough; more does no harm."""
        tally = self._tally
        tally.total -= self._weight
        self._weight = 0
        for counts, name in ((tally.databases, self._database), (tally.users, self._user)):
            if name is not None:
                counts[name] -= 1
                if not counts[name]:
                    del counts[name]
        self._database = self._user = None


def _check(setting: str, limit: int, count: int) -> None:
    if limit and count >= limit:
        raise TooManyConnections(
            f"client connections exceeded ({setting})",
            detail=f"{setting} = {limit}.",
            hint=f"Raise {setting}, or close sessions that are not needed.",
        )
