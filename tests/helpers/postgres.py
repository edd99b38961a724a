"""A real PostgreSQL for tests: one server per session, and what a test needs done in it past the gateway."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A server for all tests: SCRAM logins, 300 connections, prepared transactions.

    A test gives unique names to what it makes in it.
    """
    with EmbeddedPostgres(max_connections=300, settings={"max_prepared_transactions": 10}) as server:
        yield server


@pytest_asyncio.fixture
async def database(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """The name of an empty database of this test's own."""
    name = f"test_{next(_numbers)}"
    await create_database(postgres, name)
    yield name
    await execute(postgres, f"DROP DATABASE {quote(name)} WITH (FORCE)")


async def connect(server: EmbeddedPostgres, *, unix: bool = False, **options: Any) -> asyncpg.Connection:
    """A direct connection, as the superuser unless `user` and `password` say otherwise."""
    options = {"user": server.user, "password": server.password, "database": "postgres", "timeout": 20} | options
    host = str(server.socket_dir) if unix else server.host
    return await asyncpg.connect(host=host, port=server.port, ssl=False, **options)


async def execute(server: EmbeddedPostgres, *statements: str, database: str = "postgres") -> None:
    """Runs statements as the superuser, each by itself."""
    connection = await connect(server, database=database)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def create_database(server: EmbeddedPostgres, name: str, owner: str = EmbeddedPostgres.user) -> None:
    await execute(server, f"CREATE DATABASE {quote(name)} OWNER {quote(owner)} STRATEGY file_copy")


async def create_user(server: EmbeddedPostgres, name: str, password: str, options: str = "") -> None:
    """`options` as in CREATE ROLE. An existing user of that name is replaced as to its password."""
    await execute(
        server,
        f"DO $$ BEGIN CREATE ROLE {quote(name)} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"ALTER ROLE {quote(name)} PASSWORD {literal(password)} {options}",
    )


async def stored_secret(server: EmbeddedPostgres, user: str) -> str:
    """rolpassword: what Postgres keeps of the user's password."""
    connection = await connect(server)
    try:
        secret: str = await connection.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", user)
    finally:
        await connection.close()
    return secret


def quote(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
