"""What applications do all day, by every way in; the direct one shows that no more is asked than Postgres does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

if TYPE_CHECKING:
    from helpers.gateways import Connect, Start, Way

pytestmark = pytest.mark.both_loops


async def test_simple_queries(connect: Connect) -> None:
    session = await connect()
    assert await session.execute("SELECT 1") == "SELECT 1"
    # Several statements in one message, of which asyncpg tells the last.
    assert await session.execute("CREATE TEMP TABLE t (n int); INSERT INTO t VALUES (1); DROP TABLE t") == "DROP TABLE"
    assert await session.fetch("") == []
    assert await session.fetch("SELECT 1; ") == [(1,)]


@pytest.mark.parametrize("cache", [0, 100])
async def test_extended_queries(connect: Connect, cache: int) -> None:
    session = await connect(statement_cache_size=cache)
    for number in range(20):
        assert await session.fetchval("SELECT $1::int * 2", number) == number * 2
        assert await session.fetchrow("SELECT $1::text AS a, NULL AS b", "x") == ("x", None)
        rows = await session.fetch("SELECT n FROM generate_series(1, $1) n", number)
        assert [row["n"] for row in rows] == list(range(1, number + 1))


@pytest.mark.parametrize("cache", [0, 3])
async def test_statements_come_and_go(connect: Connect, cache: int) -> None:
    # More texts than the client keeps: it closes the oldest, and prepares again what comes back.
    session = await connect(statement_cache_size=cache)
    for _ in range(3):
        for number in range(8):
            assert await session.fetchval(f"SELECT {number} + $1::int", 100) == 100 + number


async def test_named_statements_outlive_transactions(connect: Connect) -> None:
    one, other = await connect(), await connect()
    statement = await one.prepare("SELECT $1::int + 1")
    await other.fetchval("SELECT 1")
    for number in range(10):
        async with one.transaction():
            assert await statement.fetchval(number) == number + 1
        async with other.transaction():
            assert await other.fetchval("SELECT $1::int - 1", number) == number - 1
    assert statement.get_attributes()[0].type.name == "int4"
    assert [parameter.name for parameter in statement.get_parameters()] == ["int4"]


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


async def test_executemany_is_all_or_nothing(connect: Connect) -> None:
    session = await connect()
    await session.execute("CREATE TABLE IF NOT EXISTS all_or_nothing (n int PRIMARY KEY); TRUNCATE all_or_nothing")
    with pytest.raises(asyncpg.UniqueViolationError):
        await session.executemany("INSERT INTO all_or_nothing VALUES ($1)", [(n % 900,) for n in range(1000)])
    assert await session.fetchval("SELECT count(*) FROM all_or_nothing") == 0


async def test_cursors(connect: Connect) -> None:
    session = await connect()
    async with session.transaction():
        seen = [row["n"] async for row in session.cursor("SELECT n FROM generate_series(1, 1000) n", prefetch=7)]
        assert seen == list(range(1, 1001))
        cursor = await session.cursor("SELECT n FROM generate_series(1, 100) n")
        assert [row["n"] for row in await cursor.fetch(10)] == list(range(1, 11))
        assert await cursor.forward(50) == 50
        assert (await cursor.fetchrow())["n"] == 61
        await session.execute("DECLARE named CURSOR FOR SELECT n FROM generate_series(1, 5) n")
        assert await session.fetchval("FETCH 1 FROM named") == 1
        assert [row["n"] for row in await session.fetch("FETCH ALL FROM named")] == [2, 3, 4, 5]


async def test_transactions_and_savepoints(connect: Connect) -> None:
    session, other = await connect(), await connect()
    await session.execute("CREATE TABLE IF NOT EXISTS saved (n int); TRUNCATE saved")
    async with session.transaction():
        await session.execute("INSERT INTO saved VALUES (1)")
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with session.transaction():
                await session.execute("INSERT INTO saved VALUES (2)")
                await session.execute("SELECT 1/0")
        async with session.transaction():
            await session.execute("INSERT INTO saved VALUES (3)")
        # Nobody else sees it, and whoever asks in between has another backend.
        assert await other.fetchval("SELECT count(*) FROM saved") == 0
        assert await session.fetchval("SELECT array_agg(n) FROM saved") == [1, 3]
    assert await other.fetchval("SELECT array_agg(n) FROM saved") == [1, 3]


async def test_isolation_levels_and_what_a_commit_may_say(connect: Connect) -> None:
    session = await connect()
    async with session.transaction(isolation="serializable", readonly=True, deferrable=True):
        assert await session.fetchval("SHOW transaction_isolation") == "serializable"
    assert await session.fetchval("SHOW transaction_read_only") == "off"
    transaction = session.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.UndefinedTableError):
        await session.execute("TABLE nowhere")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await session.execute("SELECT 1")
    assert await session.execute("COMMIT") == "ROLLBACK"
    assert await session.fetchval("SELECT 1") == 1


ERRORS = [
    ("selec 1", asyncpg.PostgresSyntaxError),
    ("SELECT 1/0", asyncpg.DivisionByZeroError),
    ("SELECT * FROM nowhere", asyncpg.UndefinedTableError),
    ("SELECT 'x'::int", asyncpg.InvalidTextRepresentationError),
    ("DO $$ BEGIN RAISE EXCEPTION 'own words' USING ERRCODE = 'PT001'; END $$", asyncpg.PostgresError),
    ("DO $$ BEGIN RAISE EXCEPTION 'VFATAL'; END $$", asyncpg.RaiseError),
]


@pytest.mark.parametrize(("text", "kind"), ERRORS)
async def test_a_session_goes_on_after_an_error(connect: Connect, text: str, kind: type[asyncpg.PostgresError]) -> None:
    session = await connect()
    for ask in (session.execute, session.fetch):
        with pytest.raises(kind):
            await ask(text)
        assert await session.fetchval("SELECT 41 + $1::int", 1) == 42


@pytest.mark.parametrize(("text", "kind"), ERRORS)
async def test_a_transaction_fails_as_in_postgres(
    connect: Connect, text: str, kind: type[asyncpg.PostgresError]
) -> None:
    session = await connect()
    for ask in (session.execute, session.fetch):
        with pytest.raises(kind):
            async with session.transaction():
                assert await session.fetchval("SELECT 1") == 1
                await ask(text)
        assert await session.fetchval("SELECT 41 + $1::int", 1) == 42


async def test_errors_keep_all_their_fields(connect: Connect) -> None:
    session = await connect()
    await session.execute("CREATE TABLE IF NOT EXISTS fields (n int CONSTRAINT only_small CHECK (n < 10))")
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await session.execute("INSERT INTO fields VALUES (11)")
    error = caught.value
    assert (error.table_name, error.constraint_name, error.schema_name) == ("fields", "only_small", "public")
    assert error.detail == "Failing row contains (11)."
    with pytest.raises(asyncpg.PostgresSyntaxError) as caught_other:
        await session.fetch("SELECT 1 FROM WHERE")
    assert caught_other.value.position == "15"


async def test_notices(connect: Connect) -> None:
    session = await connect()
    heard: list[str] = []
    session.add_log_listener(lambda _, message: heard.append(message.message))
    await session.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
    await session.fetch("SELECT 1")
    await session.execute("DROP TABLE IF EXISTS nowhere")
    await asyncio.sleep(0)
    assert heard == ["one", "two", 'table "nowhere" does not exist, skipping']


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


async def test_deallocate_all_and_discard_all(connect: Connect) -> None:
    session, other = await connect(), await connect()
    await other.prepare("SELECT 1")
    for statement in ("DEALLOCATE ALL", "DISCARD ALL"):
        prepared = await session.prepare("SELECT $1::int")
        assert await prepared.fetchval(1) == 1
        await session.execute(statement)
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await prepared.fetchval(1)
        assert await other.fetchval("SELECT 1") == 1
        assert await (await session.prepare("SELECT 2 + $1::int")).fetchval(1) == 3
