"""How many backends a pool has, how long, and who gets one when."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from helpers.proxies import gate
from helpers.raw_session import RawSession
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

PID = "SELECT pg_backend_pid()"
BLOCKED: Final = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND datname = 'e2e'"
FORCED = f"user={USER} password='{PASSWORD.replace(chr(39), chr(39) * 2)}'"


async def burst(gateway: LocalGateway, count: int, way: Way = "tcp") -> set[int]:
    """As many sessions in transactions at once -> the pids of their backends."""
    async with AsyncExitStack() as transactions:
        sessions = [await gateway.connect(way) for _ in range(count)]
        for session in sessions:
            await transactions.enter_async_context(session.transaction())
        pids = set(await asyncio.gather(*(session.fetchval(PID) for session in sessions)))
    for session in sessions:
        await session.close()
    return pids


async def test_a_session_holds_its_backend_for_a_transaction_only(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2)
    one, two, three = [await gateway.connect(pooled) for _ in range(3)]
    async with one.transaction(), two.transaction():
        pids = await one.fetchval(PID), await two.fetchval(PID)
        assert len(set(pids)) == 2
        waiting = asyncio.create_task(three.fetchval(PID))
        await until(lambda: gateway.counts(waiting=1, leased=2))
        assert (await one.fetchval(PID), await two.fetchval(PID)) == pids
    assert await waiting in pids
    assert gateway.counts(waiting=0, leased=0, backends=2)


async def test_those_who_wait_are_served_in_order(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    holder, *others = [await gateway.connect(pooled) for _ in range(8)]
    served: list[int] = []

    async def ask(at: int) -> None:
        await others[at].execute("SELECT 1")
        served.append(at)

    async with holder.transaction():
        await holder.execute("SELECT 1")
        tasks = []
        for at in range(len(others)):
            tasks.append(asyncio.create_task(ask(at)))
            await until(lambda: gateway.counts(waiting=len(tasks)))
    await asyncio.gather(*tasks)
    assert served == list(range(len(others)))


async def test_backends_open_in_parallel(start: Start) -> None:
    """Ten wait, so ten are opened at once, and not one after the other."""
    postgres = (await start()).site.postgres
    async with gate(postgres.host, postgres.port) as proxy:
        gateway = await start(databases={DATABASE: f"host=127.0.0.1 port={proxy.port}"})
        sessions = [await gateway.connect("tcp") for _ in range(11)]
        proxy.shut()
        queries = [asyncio.create_task(session.execute("SELECT pg_sleep(0.2)")) for session in sessions]
        await until(lambda: proxy.waiting == 10)
        assert gateway.counts(waiting=10, connecting=10, leased=1)
        proxy.open()
        await asyncio.gather(*queries)
        assert gateway.counters()["backends"] == 11
        for session in sessions:
            await session.close()


async def test_no_more_than_the_pool_has_room_for(start: Start) -> None:
    postgres = (await start()).site.postgres
    async with gate(postgres.host, postgres.port) as proxy:
        entry = f"host=127.0.0.1 port={proxy.port} pool_size=3"
        gateway = await start(databases={DATABASE: entry}, default_pool_size=50)
        sessions = [await gateway.connect("unix") for _ in range(10)]
        proxy.shut()
        queries = [asyncio.create_task(session.fetchval(PID)) for session in sessions]
        await until(lambda: proxy.waiting == 2)
        proxy.open()
        assert len(set(await asyncio.gather(*queries))) <= 3
        assert gateway.counters()["backends"] <= 3
        for session in sessions:
            await session.close()


async def test_min_pool_size_with_a_forced_user(start: Start) -> None:
    site = (await start()).site
    gateway = await start(databases={DATABASE: site.target(f"min_pool_size=3 {FORCED}")}, server_idle_timeout=0.2)
    # Before any client.
    await until(lambda: gateway.counts(backends=3))
    pids = gateway.backend_pids
    site.admin.execute("SELECT pg_terminate_backend(%s)", min(pids))
    await until(lambda: gateway.counts(backends=3) and gateway.backend_pids != pids)
    assert (await burst(gateway, 6)) > set()
    await until(lambda: gateway.counts(backends=3))
    session = await gateway.connect("tcp", user=USER)
    assert await session.fetchval("SELECT current_user") == USER


async def test_min_pool_size_with_a_client(start: Start) -> None:
    gateway = await start(min_pool_size=4)
    assert gateway.counters()["backends"] == 0
    await gateway.connect("tcp")
    await until(lambda: gateway.counts(backends=4, connecting=0))


@pytest.mark.parametrize("minimum", [0, 1])
async def test_server_idle_timeout(start: Start, minimum: int) -> None:
    gateway = await start(min_pool_size=minimum, server_idle_timeout=0.3)
    for _ in range(2):
        assert len(await burst(gateway, 5)) == 5
        await until(lambda: gateway.counts(backends=minimum))


async def test_a_backend_that_is_used_is_not_idle(start: Start) -> None:
    gateway = await start(server_idle_timeout=0.4)
    session = await gateway.connect("tcp")
    pid = await session.fetchval(PID)
    loop = asyncio.get_running_loop()
    over = loop.time() + 1.2
    while loop.time() < over:
        assert await session.fetchval(PID) == pid
        await asyncio.sleep(0.05)


async def test_server_lifetime(start: Start, pooled: Way) -> None:
    gateway = await start(server_lifetime=0.3)
    session = await gateway.connect(pooled)
    async with session.transaction():
        pid = await session.fetchval(PID)
        await asyncio.sleep(0.5)
        # A transaction is never cut short.
        assert await session.fetchval(PID) == pid
    await until(lambda: gateway.counts(backends=0))
    assert await session.fetchval(PID) != pid


async def test_a_lifetime_of_zero_is_one_lease(start: Start, pooled: Way) -> None:
    gateway = await start(server_lifetime=0)
    sessions = [await gateway.connect(pooled) for _ in range(3)]
    pids = [await session.fetchval(PID) for session in sessions for _ in range(3)]
    assert len(set(pids)) == len(pids)
    async with sessions[0].transaction():
        assert await sessions[0].fetchval(PID) == await sessions[0].fetchval(PID)
    await until(lambda: gateway.counts(leased=0, connecting=0))


async def test_pools_of_two_databases_are_apart(start: Start, database: str, pooled: Way) -> None:
    site = (await start()).site
    gateway = await start(
        databases={
            "one": site.target(f"dbname={DATABASE} pool_size=1"),
            "two": site.target(f"dbname={database} pool_size=1"),
        }
    )
    one, two = await gateway.connect(pooled, database="one"), await gateway.connect(pooled, database="two")
    async with one.transaction(), two.transaction():
        assert await one.fetchval("SELECT current_database()") == DATABASE
        assert await two.fetchval("SELECT current_database()") == database
    await two.close()


async def test_a_client_that_does_not_read_gets_a_new_backend(start: Start) -> None:
    """A session whose own socket is full stops its backend, also one that was opened for it."""
    gateway = await start(server_lifetime=0, auth_type="trust")
    session = await RawSession.start(gateway, "unix")
    (served,) = gateway.gateway.context.sessions
    # As the transport does when the client has not taken the end of a result. It is done for it: a result would have
    # to fill the buffers of the system to the brim for that, and end there.
    served.pause_writing()
    session.send(frontend.query(b"SELECT repeat('y', 1000) FROM generate_series(1, 20000)"))
    await until(lambda: gateway.site.admin.rows(BLOCKED))
    assert served.transport.get_write_buffer_size() == 0
    served.resume_writing()
    assert session.kinds(await session.until_ready()) == "T" + "D" * 20_000 + "CZI"


async def test_a_pool_that_waits_for_postgres_forgets_nobody(start: Start) -> None:
    postgres = (await start()).site.postgres
    async with gate(postgres.host, postgres.port) as proxy:
        gateway = await start(
            databases={DATABASE: f"host=127.0.0.1 port={proxy.port}"}, default_pool_size=2, server_login_retry=0.1
        )
        sessions = [await gateway.connect("tcp") for _ in range(6)]
        # Connections are cut while they are made, while they work, and while they are idle.
        for _ in range(3):
            proxy.shut()
            queries = [asyncio.create_task(session.execute("SELECT pg_sleep(0.01)")) for session in sessions]
            await until(lambda: (gateway.counts(leased=0) and proxy.waiting == 2) or gateway.counts(waiting=0))
            proxy.cut()
            proxy.open()
            results = await asyncio.gather(*queries, return_exceptions=True)
            assert {type(result) for result in results} <= {
                str,
                asyncpg.ConnectionDoesNotExistError,
                asyncpg.PostgresError,
            }
            for session in sessions:
                await session.close()
            sessions = [await gateway.connect("tcp") for _ in range(6)]
        assert await asyncio.gather(*(session.fetchval("SELECT 1") for session in sessions)) == [1] * 6
        for session in sessions:
            await session.close()
        await until(lambda: gateway.counts(sessions=0))
