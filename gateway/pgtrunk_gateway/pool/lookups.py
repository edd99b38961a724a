"""auth_query: asks Postgres for users that auth_file does not know.

Each login asks anew, as in PgBouncer, so that a password that is changed counts at once; logins of one user that come
at the same time share one question. It goes over a connection of auth_user that is there for nothing else: no client
has ever had it, so nothing that a client leaves behind or wishes for (a search_path, a temporary table; CVE-2025-12819)
can change what the query means. Nor does it wait for a place in a pool that clients have filled. It is one connection
for each database that is asked, beyond what limits pools, closed like a backend when it has been idle or has lived too
long.

The default query runs with a search_path of pg_catalog alone, so that the owner of a database cannot put another
pg_authid in its way. A query of one's own runs with the one that auth_user has; it should name schemas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.config.entries import CONSOLE_NAMES
from pgtrunk_gateway.config.main_section import DEFAULT_AUTH_QUERY
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, GatewayError, LookupFailed
from pgtrunk_gateway.pool.asking import Line, Times

if TYPE_CHECKING:
    from pgtrunk_gateway.auth import Found
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig
    from pgtrunk_gateway.pool.connect import Deriver, SocketTuner
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Lookups"]

log = logging.getLogger(__name__)

_NO_DATABASE: Final = "3D000"
_PINNED: Final = "; SET search_path = pg_catalog, pg_temp"
_MOMENT: Final = 1.0
"""Seconds for which a connection that failed is not tried again: each login would."""


_Place = tuple[str, str, bool]
"""Database, user, and whether the query is the default one."""


class Lookups:
    """All of them. ``config``, ``target`` and ``host`` give what is in force now; ``disabled`` tells of DISABLE."""

    def __init__(
        self,
        *,
        config: Callable[[], Config],
        target: Callable[[DatabaseConfig, str], Target],
        disabled: Callable[[str], bool],
        host: Callable[[DatabaseConfig], Host | None] = lambda _: None,
        derive: Deriver,
        tune: SocketTuner,
    ) -> None:
        self._config = config
        self._target = target
        self._disabled = disabled
        self._host = host
        self._derive = derive
        self._tune = tune
        self._lines: dict[_Place, Line] = {}
        self._retired: set[Line] = set()
        self._asking: dict[tuple[_Place, str, str], asyncio.Task[Found | None]] = {}
        self._failed: dict[_Place, tuple[float, GatewayError]] = {}

    def __len__(self) -> int:
        """Connections."""
        return len(self._lines) + len(self._retired)

    async def find(self, entry: DatabaseConfig, user: str) -> Found | None:
        """What is known of ``user`` for a login to ``entry``; None: no such user. The caller sets the deadline.

        Raises :class:`LookupFailed` where the query or the settings are at fault, :class:`BackendUnavailable`.
        """
        config = self._config()
        auth_user, query = config.resolve_auth_user(entry), config.resolve_auth_query(entry)
        if auth_user is None or not query:
            return None
        database = self._database(config, entry)
        place = database.name, auth_user, query == DEFAULT_AUTH_QUERY
        key = place, query, user
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._find(place, database, query, user), name="auth_query")
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends all connections and questions."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        lines = [*self._lines.values(), *self._retired]
        for line in lines:
            line.abort()
        await asyncio.gather(*tasks, *(line.ended() for line in lines), return_exceptions=True)

    def _database(self, config: Config, entry: DatabaseConfig) -> DatabaseConfig:
        name = config.resolve_auth_dbname(entry)
        if name in CONSOLE_NAMES:
            raise LookupFailed(log=f'cannot use the reserved "{name}" database as an auth_dbname')
        database = config.database(name)
        if database is None:
            raise LookupFailed(log=f'authentication database "{name}" is not configured')
        if self._disabled(name):
            raise LookupFailed(f'authentication database "{name}" is disabled')
        return database

    async def _find(self, place: _Place, database: DatabaseConfig, query: str, user: str) -> Found | None:
        timeout = self._config().server_connect_timeout
        where = f"auth_query in {place[0]!r} as {place[1]!r}"
        self._check_failure(place)
        try:
            async with asyncio.timeout(timeout or None):
                return await self._ask(place, database, query, user)
        except TimeoutError:
            # It hangs, or the network does: whoever asks next shall not wait behind it.
            if (line := self._lines.get(place)) is not None:
                line.abort()
            failure: GatewayError = _unavailable(f"{where} took longer than server_connect_timeout = {timeout:g} s")
        except (ConnectionError, BackendUnavailable) as error:
            failure = _unavailable(f"{where}: {error}")
        except BackendRefused as error:
            if error.sqlstate == _NO_DATABASE and database.name not in self._config().databases:
                # The client has named it, and "*" serves any name. Which of them exist is for users to know.
                log.info("%s: %s", where, error.message)
                return None
            failure = LookupFailed(log=f"{where}: {error.message}")
        self._remember(place, failure)
        raise failure

    async def _ask(self, place: _Place, database: DatabaseConfig, query: str, user: str) -> Found | None:
        while True:
            line = self._line(place, database)
            was_open = line.opened
            try:
                return await line.ask(query, user)
            except ConnectionError:
                # One that was idle may have been dead for long, since Postgres was restarted: then another is made.
                if not was_open:
                    raise

    def _line(self, place: _Place, database: DatabaseConfig) -> Line:
        config, target = self._config(), self._target(database, place[1])
        line = self._lines.get(place)
        if line is not None and line.target == target:
            return line
        if line is not None:
            self._retired.add(line)
            line.retire()
        times = Times(
            config.server_connect_timeout, config.server_idle_timeout, config.resolve_server_lifetime(database)
        )
        line = self._lines[place] = Line(
            target,
            times,
            # Postgres ends by itself what nobody waits for any more.
            first=f"SET statement_timeout = {round(times.connect * 1000)}" + (_PINNED if place[2] else ""),
            derive=self._derive,
            tune=self._tune,
            closed=lambda line: self._ended(place, line),
            host=self._host(database),
        )
        return line

    def _ended(self, place: _Place, line: Line) -> None:
        self._retired.discard(line)
        if self._lines.get(place) is line:
            del self._lines[place]

    def _remember(self, place: _Place, failure: GatewayError) -> None:
        now = asyncio.get_running_loop().time()
        self._failed = {each: failed for each, failed in self._failed.items() if failed[0] > now}
        self._failed[place] = now + _MOMENT, failure

    def _check_failure(self, place: _Place) -> None:
        until, error = self._failed.pop(place, (0.0, None))
        if error is not None and asyncio.get_running_loop().time() < until:
            self._failed[place] = until, error
            raise error


def _unavailable(reason: str) -> BackendUnavailable:
    # Who is not logged in yet learns no addresses.
    return BackendUnavailable("users cannot be looked up just now", log=reason)
