"""pool_mode against a real PostgreSQL: what a session may do in each mode, and that nothing of it is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest

from helpers.raw_session import RawSession
from helpers.site import DATABASE, USER
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import Start, Way
    from helpers.site import Site

SESSION = {"pool_mode": "session", "default_pool_size": 1}


async def backend_of(session: asyncpg.Connection) -> int:
    return int(await session.fetchval("SELECT pg_backend_pid()") or 0)


# -- session mode ----------------------------------------------------------------------------------------------------


async def test_in_session_mode_everything_works_that_works_without_us(start: Start, pooled: Way) -> None:
    gateway = await start(**SESSION)
    session = await gateway.connect(pooled)
    heard: asyncio.Queue[object] = asyncio.Queue()
    await session.add_listener("news", lambda *news: heard.put_nowait(news[-1]))
    pid = await backend_of(session)
    await session.execute("CREATE TEMP TABLE mine (a int); INSERT INTO mine VALUES (1); PREPARE p AS SELECT 7")
    await session.execute("SET work_mem = '1234kB'; DECLARE c CURSOR WITH HOLD FOR SELECT 5")
    assert await session.fetchval("SELECT pg_try_advisory_lock(7)")
    async with session.transaction():
        assert await session.fetchval("SELECT a FROM mine") == 1
    assert await session.fetchval("EXECUTE p") == 7
    assert await session.fetchval("SHOW work_mem") == "1234kB"
    assert await session.fetchval("FETCH c") == 5
    gateway.site.admin.execute("NOTIFY news, 'hello'")
    assert await asyncio.wait_for(heard.get(), 20) == "hello"
    await session.execute("NOTIFY news, 'me too'")
    assert await asyncio.wait_for(heard.get(), 20) == "me too"
    assert await backend_of(session) == pid


@pytest.mark.parametrize("ending", ["close", "terminate", "in a transaction"])
async def test_what_a_session_leaves_is_gone_for_the_next(start: Start, pooled: Way, ending: str) -> None:
    gateway = await start(**SESSION)
    session = await gateway.connect(pooled)
    await session.execute("LISTEN news; SET work_mem = '1234kB'; SET TimeZone = 'Asia/Tokyo'; PREPARE p AS SELECT 7")
    await session.execute("CREATE TEMP TABLE mine (a int); SELECT pg_advisory_lock(7)")
    pid = await backend_of(session)
    if ending == "close":
        await session.close()
    else:
        if ending == "in a transaction":
            await session.execute("BEGIN; LOCK TABLE pg_class IN ACCESS SHARE MODE")
        session.terminate()
    other = await gateway.connect(pooled)
    assert await backend_of(other) == pid
    left = await other.fetchrow(
        "SELECT current_setting('work_mem') AS work_mem, current_setting('TimeZone') AS zone,"
        " (SELECT count(*) FROM pg_prepared_statements WHERE from_sql) AS prepared,"
        " (SELECT count(*) FROM pg_listening_channels()) AS channels, to_regclass('mine') AS mine,"
        " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') AS locks"
    )
    assert left is not None
    assert left["work_mem"] != "1234kB"
    assert left["zone"] != "Asia/Tokyo"
    assert other.get_settings().TimeZone == left["zone"]
    assert (left["prepared"], left["channels"], left["mine"], left["locks"]) == (0, 0, None, 0)


async def test_names_of_statements_are_the_clients_own(start: Start, pooled: Way) -> None:
    gateway = await start(**SESSION, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    assert await session.ask(frontend.parse(b"s", b"SELECT 1"), frontend.SYNC_MESSAGE) == "1ZI"
    session.send(frontend.query(b"SELECT name FROM pg_prepared_statements"))
    assert any(b"\0\0\0\x01s" in answer.body for answer in await session.until_ready())
    assert await session.ask(frontend.query(b"EXECUTE s")) == "TDCZI"
    assert await session.ask(frontend.query(b"DEALLOCATE s")) == "CZI"


async def test_a_reset_query_of_ones_own_and_none(start: Start) -> None:
    for query, kept in (("RESET work_mem", "mine"), ("", "mine")):
        gateway = await start(**SESSION, server_reset_query=query)
        session = await gateway.connect("tcp")
        await session.execute("SET work_mem = '1234kB'; CREATE TEMP TABLE mine (a int)")
        await session.close()
        other = await gateway.connect("tcp")
        assert await other.fetchval("SELECT to_regclass('mine')::text") == kept
        assert (await other.fetchval("SHOW work_mem") == "1234kB") is (query == "")
        await other.execute("DROP TABLE mine")


async def test_sessions_wait_for_one_that_keeps_the_backend(start: Start, pooled: Way) -> None:
    gateway = await start(**SESSION)
    first, second = await gateway.connect(pooled), await gateway.connect(pooled)
    pid = await backend_of(first)
    waiting = asyncio.ensure_future(backend_of(second))
    await until(lambda: gateway.counts(waiting=1))
    await first.close()
    assert await waiting == pid


@pytest.mark.parametrize(("users", "expected"), [("", ["session", "statement"]), ("transaction", ["transaction"] * 2)])
async def test_modes_by_user_and_database(site: Site, start: Start, users: str, expected: list[str]) -> None:
    """The user's comes first, then the database's."""
    gateway = await start(
        pool_mode="statement",
        databases={"kept": site.target(f"dbname={DATABASE} pool_mode=session"), DATABASE: site.target()},
        sections=f"[users]\n{USER} = pool_mode={users}\n" if users else "",
    )
    for database in ("kept", DATABASE):
        await gateway.connect("tcp", database=database)
    sessions = sorted(gateway.gateway.context.sessions, key=lambda session: session.id)
    assert [session.admission.pool_mode for session in sessions if session.admission is not None] == expected


# -- transaction mode ------------------------------------------------------------------------------------------------


async def test_server_reset_query_always(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, server_reset_query_always=1, session_state="ignore")
    session = await gateway.connect(pooled, server_settings={"lock_timeout": "5s"})
    for _ in range(3):
        assert await session.fetchval("SHOW lock_timeout") == "5s"
        assert await session.fetchval("SELECT to_regclass('mine')") is None
        await session.execute("CREATE TEMP TABLE mine (a int)")


# -- statement mode --------------------------------------------------------------------------------------------------


async def test_no_transaction_blocks_in_statement_mode(start: Start, pooled: Way) -> None:
    gateway = await start(pool_mode="statement", default_pool_size=1)
    session = await gateway.connect(pooled)
    assert await session.fetchval("SELECT $1::int", 5) == 5
    pid = await backend_of(session)
    with pytest.raises(asyncpg.PostgresError, match="transaction blocks not allowed in statement pooling mode"):
        await session.execute("BEGIN")
    other = await gateway.connect(pooled)
    assert await backend_of(other) == pid
    async with await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp"), autocommit=True) as driver:
        with pytest.raises(psycopg.Error, match="transaction blocks not allowed in statement pooling mode"):
            async with driver.transaction():
                pass
