"""What the end-to-end tests of a run share: a PostgreSQL with a user and a database, and certificates."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg
import pytest

from helpers.postgres import create_database, create_user
from pgtrunk.certs import CertificateFiles, create_certificates

if TYPE_CHECKING:
    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["DATABASE", "PASSWORD", "USER", "Admin", "Site", "site"]

USER: Final = "app"
PASSWORD: Final = 'app\'s "password"'
DATABASE: Final = "e2e"


class Admin:
    """The superuser's direct connection to the tests' database, or another. It blocks: for what takes a millisecond."""

    def __init__(self, postgres: EmbeddedPostgres, database: str = DATABASE) -> None:
        self.database = database
        self._dsn = postgres.dsn(database=database)
        self._connection = psycopg.connect(self._dsn, autocommit=True)

    def reconnect(self) -> None:
        """After Postgres was down."""
        self._connection.close()
        self._connection = psycopg.connect(self._dsn, autocommit=True)

    def execute(self, statement: LiteralString, *values: object) -> None:
        self._connection.execute(statement, values or None)

    def rows(self, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values or None).fetchall()

    def value(self, query: LiteralString, *values: object) -> Any:
        return self.rows(query, *values)[0][0]

    def backends(self) -> dict[int, str]:
        """The pids of all backends in that database but the superuser's, and what they do."""
        query: LiteralString = "SELECT pid, state FROM pg_stat_activity WHERE datname = %s AND usename <> current_user"
        return {pid: state or "starting" for pid, state in self.rows(query, self.database)}

    def running(self, text: str) -> list[int]:
        """The pids of those of them that run a query with ``text`` in it."""
        query: LiteralString = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = %s AND usename = %s AND state = 'active' AND position(%s in query) > 0"
        )
        return [pid for (pid,) in self.rows(query, self.database, USER, text)]

    def is_locked(self, table: str) -> bool:
        """Whether some transaction holds a lock on a row of ``table``, or has written to it."""
        query: LiteralString = (
            "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = %s::regclass AND mode LIKE 'Row%%Lock' AND granted)"
        )
        return bool(self.value(query, table))

    def close(self) -> None:
        self._connection.close()


@dataclass
class Site:
    """One PostgreSQL, its user and database, the certificates of its gateways, and a folder for short paths."""

    postgres: EmbeddedPostgres
    certificates: CertificateFiles
    folder: Path
    admin: Admin
    _number: int = field(default=0)

    def place(self) -> Path:
        """A new folder, with a path that is short enough for a unix socket."""
        self._number += 1
        place = self.folder / str(self._number)
        place.mkdir()
        return place

    def target(self, options: str = "") -> str:
        """How an entry of [databases] leads here."""
        return f"host={self.postgres.host} port={self.postgres.port} {options}"

    def write_ini(
        self, place: Path, *, databases: Mapping[str, str] | None = None, sections: str = "", **settings: object
    ) -> Path:
        """Writes a gateway.ini with all fronts on free ports; None leaves a setting out."""
        userlist = place / "userlist.txt"
        userlist.touch(mode=0o600)
        userlist.write_text('"{}" "{}"\n'.format(USER, PASSWORD.replace('"', '""')))
        defaults: dict[str, object] = {
            "listen_addr": "127.0.0.1",
            "listen_port": 0,
            "unix_socket_dir": place,
            "quic_cert_file": self.certificates.server_cert,
            "quic_key_file": self.certificates.server_key,
            "auth_type": "scram-sha-256",
            "auth_file": userlist,
        }
        lines = [f"{key} = {value}" for key, value in (defaults | settings).items() if value is not None]
        entries = {DATABASE: self.target()} if databases is None else databases
        ini = place / "gateway.ini"
        ini.touch(mode=0o600)
        ini.write_text(
            "\n".join(
                [
                    "[databases]",
                    *(f"{name} = {entry}" for name, entry in entries.items()),
                    "[pgtrunk]",
                    *lines,
                    sections,
                ]
            )
            + "\n"
        )
        return ini


@pytest.fixture(scope="session")
def site(postgres: EmbeddedPostgres) -> Iterator[Site]:
    asyncio.run(create_user(postgres, USER, PASSWORD))
    asyncio.run(create_database(postgres, DATABASE, owner=USER))
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    admin = Admin(postgres)
    try:
        yield Site(postgres, create_certificates(folder / "certs"), folder, admin)
    finally:
        admin.close()
        shutil.rmtree(folder)
