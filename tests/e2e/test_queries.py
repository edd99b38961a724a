"""Queries that many sessions ask of few backends, and long answers on both event loops; the rest is in behaviour."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.gateways import Connect, Start, Way

pytestmark = pytest.mark.both_loops


async def test_many_rows(connect: Connect) -> None:
    session = await connect()
    rows = await session.fetch("SELECT n, repeat('x', n % 50) AS x FROM generate_series(1, 50000) n")
    assert len(rows) == 50_000
    assert all(row["n"] == at and len(row["x"]) == at % 50 for at, row in enumerate(rows, 1))


async def test_executemany(connect: Connect) -> None:
    session = await connect()
    async with session.transaction():
        await session.execute("CREATE TEMP TABLE many (n int PRIMARY KEY, x text) ON COMMIT DROP")
        await session.executemany("INSERT INTO many VALUES ($1, $2)", [(n, "x" * 200) for n in range(5000)])
        assert await session.fetchrow("SELECT count(*), sum(n), sum(length(x)) FROM many") == (5000, 12497500, 1000000)


async def test_plans_that_a_migration_made_stale_are_prepared_again(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    sessions = [await gateway.connect(pooled) for _ in range(3)]
    await sessions[0].execute("DROP TABLE IF EXISTS altered; CREATE TABLE altered AS SELECT 1 AS a")
    for session in sessions:
        assert await session.fetchrow("SELECT * FROM altered") == (1,)
    await sessions[0].execute("ALTER TABLE altered ADD COLUMN b int DEFAULT 2")
    # asyncpg sees the error, prepares anew and asks again, once.
    for session in (*sessions, await gateway.connect(pooled)):
        assert await session.fetchrow("SELECT * FROM altered") == (1, 2)


async def test_sessions_share_backends_and_not_their_statements(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    sessions = [await gateway.connect(pooled) for _ in range(5)]
    statements = [await session.prepare(f"SELECT {at} + $1::int") for at, session in enumerate(sessions)]

    async def use(at: int) -> None:
        for number in range(30):
            async with sessions[at].transaction():
                assert await statements[at].fetchval(number * 10) == number * 10 + at
                await sessions[at].fetchval(f"SELECT $1::int, '{number}'", number)

    await asyncio.gather(*(use(at) for at in range(5)))
    assert gateway.counters()["backends"] == 1
