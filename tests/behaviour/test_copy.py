"""COPY both ways, as asyncpg does it, in the extended protocol, and as psycopg does, in the simple one."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import psycopg
import pytest

Libpq = psycopg.AsyncConnection[Any]

ROWS: Final = 5000


async def test_in_and_out(session: asyncpg.Connection, table: str) -> None:
    await session.execute(f"CREATE TABLE {table} (n int, x text)")
    records = [(n, "ä" * (n % 100)) for n in range(ROWS)]
    assert await session.copy_records_to_table(table, records=records) == f"COPY {ROWS}"
    out = io.BytesIO()
    assert await session.copy_from_query(f"SELECT * FROM {table} ORDER BY n", output=out) == f"COPY {ROWS}"
    assert out.getvalue().decode() == "".join(f"{n}\t{x}\n" for n, x in records)
    assert await session.fetchval(f"SELECT count(*) FROM {table}") == ROWS


async def test_one_that_fails(session: asyncpg.Connection, table: str) -> None:
    await session.execute(f"CREATE TABLE {table} (n int PRIMARY KEY)")

    async def lines() -> AsyncIterator[bytes]:
        yield b"1\n"
        raise ValueError("no more")

    for _ in range(2):
        with pytest.raises(asyncpg.UniqueViolationError):
            await session.copy_records_to_table(table, records=[(n % 1000,) for n in range(ROWS)])
        with pytest.raises(asyncpg.BadCopyFileFormatError):
            await session.copy_to_table(table, source=io.BytesIO(b"1\t2\n" * ROWS))
        with pytest.raises(ValueError, match="no more"):
            await session.copy_to_table(table, source=lines())
        with pytest.raises(asyncpg.DivisionByZeroError):
            query = "SELECT 1 / (n - 4000) FROM generate_series(1, 5000) n"
            await session.copy_from_query(query, output=io.BytesIO())
        assert await session.fetchval(f"SELECT count(*) FROM {table}") == 0


async def test_in_a_transaction(session: asyncpg.Connection, table: str) -> None:
    await session.execute(f"CREATE TABLE {table} (n int)")
    transaction = session.transaction()
    await transaction.start()
    await session.copy_records_to_table(table, records=[(1,)])
    assert await session.fetchval(f"SELECT count(*) FROM {table}") == 1
    await transaction.rollback()
    assert await session.fetchval(f"SELECT count(*) FROM {table}") == 0


@pytest.mark.parametrize("extended", [False, True])
async def test_by_psycopg(libpq: Libpq, table: str, extended: bool) -> None:
    await libpq.execute(f"CREATE TABLE {table} (n int, x text DEFAULT 'x')".encode())
    cursor = libpq.cursor()
    text = f"COPY {table} (n) FROM STDIN" + (" WHERE n < %s" if extended else "")
    async with cursor.copy(text.encode(), [ROWS] if extended else None) as copy:
        for n in range(ROWS):
            await copy.write_row((n,))
    async with cursor.copy(f"COPY {table} TO STDOUT".encode()) as copy:
        assert [row async for row in copy.rows()] == [(str(n), "x") for n in range(ROWS)]
    with pytest.raises(RuntimeError, match="not today"):
        async with cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
            await copy.write(b"1\tx\n")
            raise RuntimeError("not today")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        async with cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
            await copy.write(b"no number\tx\n" * 1000)
    assert await (await libpq.execute(f"SELECT count(*) FROM {table}".encode())).fetchone() == (ROWS,)


async def test_a_reader_that_stops(libpq: Libpq) -> None:
    cursor = libpq.cursor()
    with pytest.raises(RuntimeError, match="enough"):
        async with cursor.copy("COPY (SELECT repeat('x', 99) FROM generate_series(1, 50000)) TO STDOUT") as copy:
            assert await copy.read()
            raise RuntimeError("enough")
    assert await (await libpq.execute("SELECT 1")).fetchone() == (1,)
