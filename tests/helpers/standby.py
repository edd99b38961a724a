"""A PostgreSQL and one that follows it by streaming replication, and what an operator does with the two of them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from helpers.postgres import create_database, create_user, execute
from helpers.site import DATABASE, PASSWORD, USER, Admin, Site
from helpers.waiting import until_blocking
from pgtrunk.certs import create_certificates
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Pair", "Replica", "pair_of_servers", "site_of"]

_SETTINGS: Final[dict[str, str | int | bool]] = {
    "wal_level": "replica",
    "max_wal_senders": 10,
    "max_replication_slots": 10,
    "wal_keep_size": 256,
    "hot_standby": True,
}
"""What a server that is followed, or may be some day, has in its postgresql.conf."""


class Replica(EmbeddedPostgres):
    """One server of a cluster: a copy of ``leader``, made by pg_basebackup and started as its standby, or the first."""

    def __init__(self, leader: EmbeddedPostgres | None = None) -> None:
        super().__init__(max_connections=100, settings=_SETTINGS)
        self._leader = leader

    def __enter__(self) -> Self:
        self.start()
        return self

    def _prepare(self) -> None:
        super()._prepare()
        if self._leader is not None:
            self._copy(self._leader)

    def follow(self, leader: EmbeddedPostgres) -> None:
        """Comes back as a standby of ``leader``, whatever it was before. It must be stopped."""
        self._copy(leader)
        self.start()

    def _copy(self, leader: EmbeddedPostgres) -> None:
        self._leader = leader
        folder = self._existing_folder
        folder.run(["rm", "-rf", str(folder.path / "data")])
        command = [str(self._binaries / "pg_basebackup"), "-d", leader.dsn(), "-D", str(folder.path / "data")]
        folder.run([*command, "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream"])

    def until_followed(self) -> None:
        """Returns when it has all that its leader has written."""
        assert self._leader is not None
        with psycopg.connect(self._leader.dsn(), autocommit=True) as there:
            row = there.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        with psycopg.connect(self.dsn(), autocommit=True) as here:
            until_blocking(lambda: _has(here, row[0]))

    def promote(self) -> None:
        """It takes writes when this returns."""
        with psycopg.connect(self.dsn(), autocommit=True) as here:
            here.execute("SELECT pg_promote()")


def _has(connection: psycopg.Connection, lsn: str) -> bool:
    row = connection.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [lsn]).fetchone()
    return row is not None and bool(row[0])


@dataclass
class Pair:
    """Two servers, of which the first is the primary in the beginning."""

    first: Replica
    second: Replica

    def entry(self, *options: str, reverse: bool = False) -> dict[str, str]:
        """How [databases] leads to both."""
        servers = [self.first, self.second][:: -1 if reverse else 1]
        hosts, ports = ",".join(each.host for each in servers), ",".join(str(each.port) for each in servers)
        return {DATABASE: f"host={hosts} port={ports} {' '.join(options)}"}


@contextmanager
def pair_of_servers() -> Iterator[Pair]:
    """With the user and the database of the tests, and a table ``notes (n int)`` in it."""
    with Replica() as first:
        asyncio.run(create_user(first, USER, PASSWORD, "REPLICATION"))
        asyncio.run(create_database(first, DATABASE, owner=USER))
        table = "CREATE TABLE notes (n int)", f"ALTER TABLE notes OWNER TO {USER}"
        asyncio.run(execute(first, *table, database=DATABASE))
        with Replica(first) as second:
            second.until_followed()
            yield Pair(first, second)


@contextmanager
def site_of(pair: Pair) -> Iterator[Site]:
    """As that of the other tests, with both servers in it."""
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    try:
        yield Site(pair.first, create_certificates(folder / "certs"), folder, _Both(pair))
    finally:
        shutil.rmtree(folder)


class _Both(Admin):
    """Looks at both servers, as far as they are up, by a new connection each time."""

    def __init__(self, pair: Pair) -> None:
        self.database = DATABASE
        self._pair = pair

    def backends(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for server in (self._pair.first, self._pair.second):
            with contextlib.suppress(psycopg.OperationalError):
                one = Admin(server)
                try:
                    found |= one.backends()
                finally:
                    one.close()
        return found

    def close(self) -> None:
        """Nothing is kept open."""
