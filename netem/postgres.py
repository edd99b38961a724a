"""Postgres on the database's host, as a program of its own.

    python -m netem.postgres ADDRESS NETWORK ...

It says a line of JSON when all is there (port, user, password, database), and ends at the end of its standard input.
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
_SETTINGS: dict[str, str | int | bool] = {"max_connections": 700, "shared_buffers": "256MB", "max_wal_size": "1GB"}


async def _fill(server: EmbeddedPostgres, password: str) -> None:
    admin = await asyncpg.connect(server.dsn())
    try:
        await admin.execute(f"CREATE USER {_USER} PASSWORD '{password}'")
        await admin.execute(f"CREATE DATABASE {_DATABASE} OWNER {_USER}")
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


def main() -> int:
    address, *networks = sys.argv[1:]
    password = secrets.token_urlsafe(12)
    with EmbeddedPostgres(host=address, clients=networks, settings=_SETTINGS) as server:
        asyncio.run(_fill(server, password))
        login = {"user": _USER, "password": password, "database": _DATABASE}
        print(json.dumps({"port": server.port, "pid": server.pid, **login}), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
