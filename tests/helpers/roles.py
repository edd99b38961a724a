"""Roles in Postgres for tests of logins, and the files that name them; an `asker` that may look into pg_authid."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg
import pytest
from psycopg import sql

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

__all__ = ["ASKER", "ASKERS_PASSWORD", "Roles", "begin", "log_in", "refused"]

ASKER: Final = "asker"
ASKERS_PASSWORD: Final = "may I?"


class Roles:
    """Makes roles, and drops them at the end. Names are made unique by nobody: a test's own are its business."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._names: list[str] = []
        self._number = 0
        self.make(ASKER, ASKERS_PASSWORD)
        self.execute("GRANT SELECT ON pg_catalog.pg_authid TO {}", ASKER)

    def make(
        self, name: str, password: str | None, options: str = "LOGIN", *, encryption: str = "scram-sha-256"
    ) -> None:
        """``options`` as in CREATE ROLE; ``encryption`` as password_encryption."""
        self._names.append(name)
        self.execute("DROP ROLE IF EXISTS {}", name)
        self.execute(f"CREATE ROLE {{}} {options}", name)
        self.change(name, password, encryption=encryption)

    def change(self, name: str, password: str | None, *, encryption: str = "scram-sha-256") -> None:
        """Another password."""
        self.site.admin.execute(cast("Any", f"SET password_encryption = '{encryption}'"))
        value = sql.SQL("NULL") if password is None else sql.Literal(password)
        self.site.admin.execute(cast("Any", sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(name), value)))

    def secret(self, name: str) -> str:
        """rolpassword."""
        return str(self.site.admin.value("SELECT rolpassword FROM pg_authid WHERE rolname = %s", name))

    def execute(self, statement: str, *names: str) -> None:
        """A statement with identifiers in its places."""
        self.site.admin.execute(cast("Any", sql.SQL(cast("Any", statement)).format(*map(sql.Identifier, names))))

    def userlist(self, **secrets: str) -> Path:
        """An auth_file with these users."""
        self._number += 1
        path = self.site.place() / "users.txt"
        path.touch(mode=0o600)
        path.write_text(
            "".join('"{}" "{}"\n'.format(*(f.replace('"', '""') for f in pair)) for pair in secrets.items())
        )
        return path

    @contextlib.contextmanager
    def asked_for(self, **methods: str) -> Iterator[None]:
        """Postgres asks these users for a password by these methods of pg_hba.conf."""
        path = Path(str(self.site.admin.value("SHOW hba_file")))
        before = path.read_text()
        lines = [f"host all {user} 127.0.0.1/32 {method}\n" for user, method in methods.items()]
        path.write_text("".join(lines) + before)
        self.site.admin.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            path.write_text(before)
            self.site.admin.execute("SELECT pg_reload_conf()")

    def close(self) -> None:
        for name in dict.fromkeys(self._names):
            self.execute("DROP OWNED BY {}", name)
            self.execute("DROP ROLE {}", name)


async def begin(start: Start, roles: Roles, **settings: Any) -> LocalGateway:
    """A gateway with auth_query, whose auth_file has the asker only."""
    defaults = {"auth_user": ASKER, "auth_file": roles.userlist(**{ASKER: ASKERS_PASSWORD})}
    return await start(**{**defaults, **settings})


async def log_in(gateway: LocalGateway, user: str, password: str, way: Way = "tcp", **more: Any) -> str:
    """Logs in -> who that is in Postgres."""
    connection = await gateway.connect(way, user=user, password=password, **more)
    return str(await connection.fetchval("SELECT current_user"))


async def refused(gateway: LocalGateway, user: str, password: str, **more: Any) -> tuple[str, str]:
    """A login that fails -> SQLSTATE and message."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await log_in(gateway, user, password, **more)
    error: Any = caught.value
    return error.sqlstate, error.args[0]
