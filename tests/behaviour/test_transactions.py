"""Transactions, and how they fail: errors with all their fields, notices, what goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg
import psycopg
import pytest

Connect = Callable[..., Awaitable[asyncpg.Connection]]
Libpq = psycopg.AsyncConnection[Any]

ERRORS: Final = {
    "selec 1": "42601",
    "SELECT 1/0": "22012",
    "SELECT * FROM nowhere": "42P01",
    "SELECT 'x'::int": "22P02",
    "SELECT 1 FROM generate_series(1, 2000) n WHERE 1/(n - 1500) > 5": "22012",
    "DO $$ BEGIN RAISE EXCEPTION 'own words' USING ERRCODE = 'PT001'; END $$": "PT001",
    "DO $$ BEGIN RAISE EXCEPTION 'VFATAL'; END $$": "P0001",
    "VACUUM (no_such_option)": "42601",
    "SELECT set_config('work_mem', 'much', false)": "22023",
}
"""A text, and the SQLSTATE that Postgres has for it."""


async def sqlstate(asking: Awaitable[object]) -> str | None:
    """Of the error, with what it was told; None where there is none."""
    try:
        await asking
    except (asyncpg.PostgresError, psycopg.Error) as error:
        return str(error.sqlstate)
    return None


async def test_errors_and_what_comes_after(session: asyncpg.Connection) -> None:
    for text, expected in ERRORS.items():
        for ask in (session.execute, session.fetch):
            assert await sqlstate(ask(text)) == expected, text
            assert await session.fetchval("SELECT 41 + $1::int", 1) == 42


async def test_errors_by_psycopg(libpq: Libpq) -> None:
    for text, expected in ERRORS.items():
        for parameters in (None, ()):
            assert await sqlstate(libpq.execute(text.encode(), parameters)) == expected, text
            assert libpq.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert await (await libpq.execute("SELECT %s::int", (1,))).fetchone() == (1,)


async def test_errors_in_a_transaction(session: asyncpg.Connection) -> None:
    for text, expected in ERRORS.items():
        if text.startswith("VACUUM"):
            continue
        await session.execute("BEGIN")
        assert await sqlstate(session.fetch(text)) == expected
        assert await sqlstate(session.fetch("SELECT 1")) == "25P02"
        assert await session.execute("COMMIT") == "ROLLBACK"
        assert await session.fetchval("SELECT 1") == 1


async def test_all_fields_of_an_error(session: asyncpg.Connection, table: str) -> None:
    await session.execute(f"CREATE TABLE {table} (n int CONSTRAINT small CHECK (n < 10))")
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await session.execute(f"INSERT INTO {table} VALUES (11)")
    error = caught.value
    assert (error.table_name, error.constraint_name, error.schema_name) == (table, "small", "public")
    assert (error.severity, error.detail) == ("ERROR", "Failing row contains (11).")
    with pytest.raises(asyncpg.PostgresSyntaxError) as syntax:
        await session.fetch("SELECT 1 FROM WHERE")
    assert syntax.value.position == "15"
    with pytest.raises(asyncpg.UndefinedFunctionError) as hinted:
        await session.fetch("SELECT nothing('x')")
    assert hinted.value.hint


async def test_notices(session: asyncpg.Connection) -> None:
    heard: list[tuple[str, str]] = []
    session.add_log_listener(lambda _, message: heard.append((message.sqlstate, message.message)))
    await session.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
    await session.execute("DROP TABLE IF EXISTS nowhere")
    await session.execute("COMMIT")
    await asyncio.sleep(0)
    assert heard == [
        ("00000", "one"),
        ("01000", "two"),
        ("00000", 'table "nowhere" does not exist, skipping'),
        ("25P01", "there is no transaction in progress"),
    ]


async def test_notices_by_psycopg(libpq: Libpq) -> None:
    heard: list[str | None] = []
    libpq.add_notice_handler(lambda diagnostic: heard.append(diagnostic.message_primary))
    await libpq.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE NOTICE 'two'; END $$")
    assert heard == ["one", "two"]


async def test_what_others_see(connect: Connect, table: str) -> None:
    session, other = await connect(), await connect()
    await session.execute(f"CREATE TABLE {table} (n int)")
    async with session.transaction():
        await session.execute(f"INSERT INTO {table} VALUES (1)")
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with session.transaction():
                await session.execute(f"INSERT INTO {table} VALUES (2)")
                await session.execute("SELECT 1/0")
        async with session.transaction():
            await session.execute(f"INSERT INTO {table} VALUES (3)")
        assert await other.fetchval(f"SELECT count(*) FROM {table}") == 0
        assert await session.fetchval(f"SELECT array_agg(n) FROM {table}") == [1, 3]
    assert await other.fetchval(f"SELECT array_agg(n) FROM {table}") == [1, 3]


async def test_several_statements_are_one_transaction(session: asyncpg.Connection, table: str) -> None:
    await session.execute(f"CREATE TABLE {table} (n int)")
    assert await sqlstate(session.execute(f"INSERT INTO {table} VALUES (1); SELECT 1/0")) == "22012"
    assert await session.fetchval(f"SELECT count(*) FROM {table}") == 0
    await session.execute(f"BEGIN; INSERT INTO {table} VALUES (1); COMMIT; INSERT INTO {table} VALUES (2)")
    assert await session.fetchval(f"SELECT count(*) FROM {table}") == 2


async def test_isolation_and_locks(connect: Connect, table: str) -> None:
    session, other = await connect(), await connect()
    await session.execute(f"CREATE TABLE {table} (n int); INSERT INTO {table} VALUES (0)")
    async with session.transaction(isolation="serializable", readonly=True, deferrable=True):
        assert await session.fetchval("SHOW transaction_isolation") == "serializable"
        assert await session.fetchval("SHOW transaction_read_only") == "on"
    assert await session.fetchval("SHOW transaction_read_only") == "off"
    async with session.transaction():
        await session.execute(f"UPDATE {table} SET n = 1")
        assert await sqlstate(other.fetch(f"SELECT FROM {table} FOR UPDATE NOWAIT")) == "55P03"
    first, second = session.transaction(isolation="repeatable_read"), other.transaction(isolation="repeatable_read")
    await first.start()
    await second.start()
    for each in (session, other):
        await each.fetchval(f"SELECT n FROM {table}")
    await session.execute(f"UPDATE {table} SET n = 2")
    await first.commit()
    assert await sqlstate(other.execute(f"UPDATE {table} SET n = 3")) == "40001"
    await second.rollback()


async def test_transactions_by_psycopg(libpq: Libpq, table: str) -> None:
    await libpq.set_autocommit(False)
    await libpq.execute(f"CREATE TABLE {table} (n int)".encode())
    assert libpq.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    await libpq.commit()
    async with libpq.transaction():
        await libpq.execute(f"INSERT INTO {table} VALUES (1)".encode())
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with libpq.transaction():
                await libpq.execute("SELECT 1/0")
    assert await (await libpq.execute(f"SELECT count(*) FROM {table}".encode())).fetchone() == (1,)
    await libpq.rollback()
    await libpq.set_autocommit(True)


async def test_what_is_left_open_is_rolled_back(connect: Connect, table: str) -> None:
    session, other = await connect(), await connect()
    await session.execute(f"CREATE TABLE {table} (n int)")
    await session.execute("BEGIN")
    await session.execute(f"INSERT INTO {table} VALUES (1)")
    await session.close()
    # Waits for the lock of the one that has left, if it is still there.
    await other.execute(f"ALTER TABLE {table} ADD COLUMN x int")
    assert await other.fetchval(f"SELECT count(*) FROM {table}") == 0
