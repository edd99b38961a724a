"""Simple, extended and prepared queries, cursors, what is large, and many sessions at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
import pytest

Connect = Callable[..., Awaitable[asyncpg.Connection]]
Libpq = psycopg.AsyncConnection[Any]


async def test_simple(session: asyncpg.Connection, table: str) -> None:
    assert await session.execute("SELECT 1") == "SELECT 1"
    # Several statements in one message, of which asyncpg tells the last.
    text = f"CREATE TABLE {table} (n int); INSERT INTO {table} VALUES (1), (2); DELETE FROM {table}"
    assert await session.execute(text) == "DELETE 2"
    assert await session.fetch("") == []


async def test_simple_by_psycopg(libpq: Libpq) -> None:
    cursor = await libpq.execute(b"SELECT 1; SELECT 'x', NULL; SELECT")
    results = [cursor.description is not None and await cursor.fetchall()]
    while cursor.nextset():
        results.append(await cursor.fetchall() if cursor.rownumber is not None else [])
    assert results[:2] == [[(1,)], [("x", None)]]


@pytest.mark.parametrize("cache", [0, 3, 100])
async def test_extended(connect: Connect, cache: int) -> None:
    session = await connect(statement_cache_size=cache)
    for number in range(8):
        assert await session.fetchval("SELECT $1::int * 2", number) == number * 2
        assert await session.fetchrow("SELECT $1::text AS a, NULL AS b", "x") == ("x", None)
        # More texts than a small cache keeps: the oldest are closed, and prepared again when they come back.
        assert await session.fetchval(f"SELECT {number % 5} + $1::int", 100) == 100 + number % 5


async def test_prepared(connect: Connect) -> None:
    one, other = await connect(), await connect()
    statement = await one.prepare("SELECT $1::int + 1 AS sum, $2::text")
    assert [column.type.name for column in statement.get_attributes()] == ["int4", "text"]
    assert [column.name for column in statement.get_attributes()] == ["sum", "text"]
    assert [parameter.name for parameter in statement.get_parameters()] == ["int4", "text"]
    for number in range(5):
        async with one.transaction():
            assert await statement.fetchrow(number, "ä") == (number + 1, "ä")
        assert await other.fetchval("SELECT $1::int - 1", number) == number - 1


async def test_prepared_by_psycopg(libpq: Libpq) -> None:
    for number in range(8):  # more than prepare_threshold
        cursor = await libpq.execute("SELECT %s::int + 1, %s", (number, "ä"))
        assert await cursor.fetchone() == (number + 1, "ä")
    async with libpq.cursor(binary=True) as cursor:
        await cursor.execute("SELECT %s::numeric, %s::bytea, %s::timestamptz IS NULL", ("1.50", b"\0\xff", None))
        row = await cursor.fetchone()
    assert row is not None and (str(row[0]), row[1], row[2]) == ("1.50", b"\0\xff", True)


async def test_deallocate(connect: Connect) -> None:
    session, other = await connect(), await connect()
    kept = await other.prepare("SELECT 1")
    for text in ("DEALLOCATE ALL", "DISCARD ALL"):
        statement = await session.prepare("SELECT $1::int")
        assert await statement.fetchval(1) == 1
        await session.execute(text)
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await statement.fetchval(1)
        assert await kept.fetchval() == 1


async def test_cursors(session: asyncpg.Connection) -> None:
    async with session.transaction():
        rows = [row["n"] async for row in session.cursor("SELECT n FROM generate_series(1, 100) n", prefetch=7)]
        assert rows == list(range(1, 101))
        cursor = await session.cursor("SELECT n FROM generate_series(1, 100) n")
        assert [row["n"] for row in await cursor.fetch(10)] == list(range(1, 11))
        assert await cursor.forward(50) == 50
        assert (await cursor.fetchrow())["n"] == 61
        await session.execute("DECLARE named SCROLL CURSOR FOR SELECT n FROM generate_series(1, 5) n")
        assert await session.fetchval("FETCH 2 FROM named") == 1
        assert [row["n"] for row in await session.fetch("FETCH BACKWARD ALL FROM named")] == [1]
    with pytest.raises(asyncpg.NoActiveSQLTransactionError):
        await session.execute("DECLARE named CURSOR FOR SELECT 1")


async def test_cursors_by_psycopg(libpq: Libpq) -> None:
    async with libpq.transaction(), libpq.cursor("named") as cursor:
        cursor.itersize = 7
        await cursor.execute("SELECT n FROM generate_series(1, 50) n")
        assert [row async for row in cursor] == [(n,) for n in range(1, 51)]


async def test_executemany(session: asyncpg.Connection, table: str) -> None:
    await session.execute(f"CREATE TABLE {table} (n int PRIMARY KEY, x text)")
    rows = [(n, "x" * 200) for n in range(1000)]
    await session.executemany(f"INSERT INTO {table} VALUES ($1, $2)", rows)
    # All or nothing.
    with pytest.raises(asyncpg.UniqueViolationError):
        await session.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(n % 1500, "") for n in range(2000, 4000)])
    assert await session.fetchrow(f"SELECT count(*), sum(length(x)) FROM {table}") == (1000, 200_000)


async def test_large_rows_and_parameters(session: asyncpg.Connection) -> None:
    text = "ä" * 1_000_000
    assert await session.fetchval("SELECT $1::text", text) == text
    assert await session.fetchval("SELECT length($1::bytea)", bytes(3_000_000)) == 3_000_000
    assert await session.execute(f"SELECT length('{'x' * 1_000_000}')") == "SELECT 1"
    rows = await session.fetch("SELECT n, repeat('x', n % 50) AS x FROM generate_series(1, 20000) n")
    assert all(row["n"] == at and len(row["x"]) == at % 50 for at, row in enumerate(rows, 1))
    wide = await session.fetchrow("SELECT " + ", ".join(f"{n} AS c{n}" for n in range(1600)))
    assert wide is not None and list(wide) == list(range(1600))


async def test_large_by_psycopg(libpq: Libpq) -> None:
    cursor = await libpq.execute("SELECT %s::text, repeat('y', 1000000)", ("x" * 2_000_000,))
    row = await cursor.fetchone()
    assert row is not None and (len(row[0]), len(row[1])) == (2_000_000, 1_000_000)


async def test_sessions_at_once(connect: Connect, table: str) -> None:
    sessions = await asyncio.gather(*(connect() for _ in range(10)))
    await sessions[0].execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int); INSERT INTO {table} VALUES (1, 0)")

    async def work(session: asyncpg.Connection, own: int) -> None:
        statement = await session.prepare(f"SELECT {own} + $1::int")
        for number in range(10):
            async with session.transaction():
                await session.execute(f"UPDATE {table} SET n = n + 1")
                assert await statement.fetchval(number * 100) == number * 100 + own

    await asyncio.gather(*(work(session, at) for at, session in enumerate(sessions)))
    assert await sessions[0].fetchval(f"SELECT n FROM {table}") == 100
