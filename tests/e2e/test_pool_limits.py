"""Limits on backends and sessions with a real Postgres: who waits, who is evicted, who is refused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.raw_session import Message, RawSession
from helpers.site import DATABASE, USER
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.gateways import LocalGateway, Start, Way

PID = "SELECT pg_backend_pid()"


def pools(gateway: LocalGateway) -> dict[str, int]:
    """How many backends each has, by its database."""
    return {pool.key.database: len(pool.backends) for pool in gateway.gateway.pools}


async def three_databases(start: Start, **settings: object) -> LocalGateway:
    site = (await start()).site
    entry = site.target(f"dbname={DATABASE}")
    return await start(databases={"one": entry, "two": entry, "three": entry}, **settings)


async def test_max_user_connections_over_several_databases(start: Start, pooled: Way) -> None:
    gateway = await three_databases(start, max_user_connections=3)
    sessions = [await gateway.connect(pooled, database=name) for name in ("one", "two", "three") for _ in range(3)]
    most = 0

    async def ask(session: asyncpg.Connection) -> None:
        nonlocal most
        for _ in range(5):
            await session.fetchval("SELECT pg_sleep(0.002)")
            most = max(most, gateway.counters()["backends"] + gateway.counters()["connecting"])

    await asyncio.gather(*map(ask, sessions))
    assert most == 3
    # Each of them has been served, whoever had the places.
    assert all(pool.counters.leases for pool in gateway.gateway.pools)


async def test_max_db_connections_of_one_database(start: Start) -> None:
    site = (await start()).site
    gateway = await start(
        databases={DATABASE: site.target("max_db_connections=2"), "free": site.target(f"dbname={DATABASE}")},
        max_db_connections=9,
    )
    async with AsyncExitStack() as stack:
        for database in (DATABASE, DATABASE, "free", "free", "free"):
            session = await gateway.connect("tcp", database=database)
            await stack.enter_async_context(session.transaction())
            await session.execute("SELECT 1")
        late = await gateway.connect("tcp")
        waiting = asyncio.create_task(late.fetchval("SELECT 1"))
        await until(lambda: gateway.counts(waiting=1))
        assert pools(gateway) == {DATABASE: 2, "free": 3}
    assert await waiting == 1


async def test_an_idle_backend_elsewhere_is_closed_at_once_for_one_who_waits(
    start: Start, pooled: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gateway = await three_databases(start, max_user_connections=2)
    for database in ("one", "two", "three", "one"):
        session = await gateway.connect(pooled, database=database)
        assert await session.fetchval("SELECT current_database()") == DATABASE
        await session.close()
    assert pools(gateway) == {"one": 1, "two": 0, "three": 1}
    # The last one of them to log in was welcomed without the server.
    assert caplog.text.count("closing because: evicted") == 2


async def test_the_reserve(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, reserve_pool_size=1, reserve_pool_timeout=0.2)
    first, second, third = [await gateway.connect(pooled) for _ in range(3)]
    async with first.transaction():
        pid = await first.fetchval(PID)
        async with second.transaction():
            assert await second.fetchval(PID) != pid
            waiting = asyncio.create_task(third.fetchval("SELECT 1"))
            await until(lambda: gateway.counts(waiting=1))
            await asyncio.sleep(0.4)
            assert gateway.counts(waiting=1, backends=2)
    assert await waiting == 1


@pytest.mark.parametrize("key", ["max_db_client_connections", "max_user_client_connections"])
async def test_a_session_too_many_is_refused_and_may_come_when_another_has_left(
    start: Start, pooled: Way, key: str
) -> None:
    gateway = await start(**{key: 2})
    first, _ = [await gateway.connect(pooled) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(asyncpg.TooManyConnectionsError, match=key):
            await gateway.connect(pooled)
    await first.close()
    await until(lambda: gateway.counts(sessions=1))
    session = await gateway.connect(pooled)
    assert await session.fetchval("SELECT 1") == 1


async def test_server_round_robin(start: Start) -> None:
    gateway = await start(server_round_robin=1)
    sessions = [await gateway.connect("tcp") for _ in range(3)]
    async with AsyncExitStack() as stack:
        for session in sessions:
            await stack.enter_async_context(session.transaction())
            await session.execute("SELECT 1")
    pids = [await sessions[0].fetchval(PID) for _ in range(6)]
    assert len(set(pids)) == 3
    assert pids[:3] == pids[3:]


async def test_who_waits_long_is_told_so_once(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, query_wait_notify=1, auth_type="trust")
    holder = await gateway.connect("tcp")
    async with holder.transaction():
        await holder.execute("SELECT 1")
        waiter = await RawSession.start(gateway, pooled)
        waiter.send(frontend.query(b"SELECT 1"))
        notice = await waiter.until("N")
        assert b"No server connection available in postgres backend, client being queued" in text(notice)
        assert b"SNOTICE\0" in text(notice)
        await asyncio.sleep(1.2)
    assert waiter.kinds(await waiter.until_ready()) == "TDCZI"
    waiter.close()


def text(messages: list[Message]) -> bytes:
    return b"".join(message.body for message in messages)


# -- queries of the gateway's own --------------------------------------------------------------------------------------


async def test_connect_query(start: Start, pooled: Way) -> None:
    site = (await start()).site
    query = "SET work_mem TO ''7MB''; CREATE TEMP TABLE made (x int)"
    gateway = await start(databases={DATABASE: site.target(f"connect_query='{query}'")})
    session = await gateway.connect(pooled)
    assert await session.fetchval("SHOW work_mem") == "7MB"
    assert await session.fetchval("SELECT count(*) FROM made") == 0


async def test_a_connect_query_that_fails_is_no_reason_to_fail(start: Start) -> None:
    site = (await start()).site
    gateway = await start(databases={DATABASE: site.target("connect_query='SELEC 1'")})
    session = await gateway.connect("tcp")
    assert await session.fetchval("SELECT 1") == 1


async def test_settings_of_a_database_are_those_of_its_backends_and_of_its_clients(start: Start, pooled: Way) -> None:
    site = (await start()).site
    options = "application_name=theirs timezone=Asia/Tokyo datestyle=German client_encoding=LATIN1"
    gateway = await start(databases={DATABASE: site.target(options)}, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    session.send(frontend.query(b"SELECT current_setting('application_name'), current_setting('TimeZone')"))
    assert b"theirs\0\0\0\x0aAsia/Tokyo" in text(await session.until_ready())
    (backend,) = next(iter(gateway.gateway.pools)).backends.values()
    assert {"theirs", "Asia/Tokyo", "LATIN1", "German, DMY"} <= set(filter(None, backend.profile))
    session.close()


@pytest.mark.parametrize("query", ["<empty>", "SELECT 1"])
async def test_a_backend_that_has_died_unseen_is_found_out_before_anybody_gets_it(
    start: Start, pooled: Way, query: str
) -> None:
    gateway = await start(server_check_query=query, server_check_delay=0)
    session = await gateway.connect(pooled)
    pid = await session.fetchval(PID)
    assert await session.fetchval(PID) == pid
    (backend,) = next(iter(gateway.gateway.pools)).backends.values()
    # The gateway hears of the end only when it reads.
    backend.pause_reading()
    gateway.site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await until(lambda: pid not in gateway.site.admin.backends())
    asking = asyncio.create_task(session.fetchval(PID))
    await until(lambda: gateway.counts(waiting=1))
    backend.resume_reading()
    assert await asking != pid


async def test_a_backend_is_checked_when_it_has_been_idle(start: Start) -> None:
    gateway = await start(server_check_query="SELECT pg_sleep(0)", server_check_delay=0.2)
    session = await gateway.connect("tcp")
    pid = await session.fetchval(PID)
    (pool,) = gateway.gateway.pools
    await until(lambda: pool.counts().used == 1)
    assert await session.fetchval(PID) == pid
    await session.close()


async def test_a_check_that_fails_costs_the_backend_and_not_the_session(start: Start) -> None:
    gateway = await start(server_check_query="SELECT no_such_thing", server_check_delay=0.1, default_pool_size=1)
    session = await gateway.connect("tcp")
    pid = await session.fetchval(PID)
    (pool,) = gateway.gateway.pools
    await until(lambda: pool.stale)
    assert await session.fetchval(PID) != pid


# -- a restart of Postgres ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """One that may be stopped."""
    with EmbeddedPostgres(max_connections=20) as postgres:
        yield postgres


async def test_a_restart_makes_sessions_of_all_pools_wait(start: Start, own_postgres: EmbeddedPostgres) -> None:
    login = f"dbname=postgres user=postgres password={own_postgres.password}"
    entry = f"host={own_postgres.host} port={own_postgres.port} {login}"
    gateway = await start(databases=dict.fromkeys(("one", "two", "three"), entry), server_login_retry=0.5)
    sessions = [await gateway.connect("tcp", database=name) for name in ("one", "two", "three") for _ in range(4)]
    await asyncio.gather(*(session.execute("SELECT 1") for session in sessions))
    await asyncio.to_thread(own_postgres.stop, "fast")
    await until(lambda: gateway.counts(backends=0))
    failed = sum(pool.counters.failed for pool in gateway.gateway.pools)
    asking = [asyncio.create_task(session.fetchval("SELECT 1")) for session in sessions]
    await until(lambda: gateway.counts(waiting=12))
    await asyncio.sleep(1.0)
    # Twelve found out together; from then on one has tried for all.
    assert sum(pool.counters.failed for pool in gateway.gateway.pools) - failed < 12 + 8
    await asyncio.to_thread(own_postgres.start)
    assert await asyncio.gather(*asking) == [1] * 12


async def test_a_limit_counts_what_the_user_of_the_login_has(start: Start) -> None:
    """Where the database has a forced user, its clients' own names have nothing to do with it."""
    site = (await start()).site
    gateway = await start(
        databases={DATABASE: site.target()}, sections=f"[users]\n{USER} = max_user_connections=1 pool_size=5"
    )
    one, two = [await gateway.connect("tcp") for _ in range(2)]
    async with one.transaction():
        await one.execute("SELECT 1")
        waiting = asyncio.create_task(two.fetchval("SELECT 1"))
        await until(lambda: gateway.counts(waiting=1))
        assert gateway.counts(backends=1, connecting=0)
    assert await waiting == 1
