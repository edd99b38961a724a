"""Postgres on the database's host, as a program of its own.

    python -m netem.postgres ADDRESS MAX_CONNECTIONS NETWORK ...

It says a line of JSON when all is there (port, user, password, what Postgres keeps of it, database), and ends at the
end of its standard input. Besides the user, who logs in by SCRAM, there are trust_user, md5_user and scram_user, with
the same password.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys

import asyncpg

from netem.workloads import SETUP
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["main"]

_DATABASE, _USER = "wan", "app"
_SETTINGS: dict[str, str | int | bool] = {"shared_buffers": "256MB", "max_wal_size": "1GB"}
_LOGINS = {"trust": "trust", "md5": "md5", "scram": "scram-sha-256"}


async def _fill(server: EmbeddedPostgres, password: str) -> str:
    """Returns what Postgres keeps of the password."""
    admin = await asyncpg.connect(server.dsn())
    try:
        await admin.execute(f"CREATE USER {_USER} PASSWORD '{password}'")
        await admin.execute(f"CREATE DATABASE {_DATABASE} OWNER {_USER}")
        await _let_in(admin, server, password)
        secret: str = await admin.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", _USER)
    finally:
        await admin.close()
    owner = await asyncpg.connect(server.dsn(user=_USER, password=password, database=_DATABASE))
    try:
        function = SETUP.index("CREATE FUNCTION")
        end = SETUP.index("$$;", function) + 3
        for statement in (*SETUP[:function].split(";"), SETUP[function:end], *SETUP[end:].split(";")):
            if statement.strip():
                await owner.execute(statement)
    finally:
        await owner.close()
    return secret


async def _let_in(admin: asyncpg.Connection, server: EmbeddedPostgres, password: str) -> None:
    """Makes a user for each login. The first line of pg_hba.conf that fits decides, so theirs come first."""
    lines = []
    for login, method in _LOGINS.items():
        await admin.execute(f"SET password_encryption = '{'md5' if login == 'md5' else 'scram-sha-256'}'")
        await admin.execute(f"CREATE USER {login}_user PASSWORD '{password}'")
        lines += [f"host all {login}_user {network} {method}\n" for network in server.clients]
    hba = server.socket_dir / "hba"
    await asyncio.to_thread(lambda: hba.write_text("".join(lines) + hba.read_text()))
    await admin.execute("SELECT pg_reload_conf()")


def main() -> int:
    address, connections, *networks = sys.argv[1:]
    password = secrets.token_urlsafe(12)
    with EmbeddedPostgres(
        host=address, clients=networks, max_connections=int(connections), settings=_SETTINGS
    ) as server:
        secret = asyncio.run(_fill(server, password))
        login = {"user": _USER, "password": password, "secret": secret, "database": _DATABASE}
        print(json.dumps({"port": server.port, "pid": server.pid, **login}), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
