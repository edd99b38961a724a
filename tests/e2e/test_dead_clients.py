"""Clients that vanish: what they had is given back, what ran is cancelled, nothing is committed that they did not."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from helpers.proxies import gate
from helpers.raw_session import RawSession
from helpers.site import DATABASE
from helpers.victim import victim
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

TABLE = "DROP TABLE IF EXISTS victims; CREATE TABLE victims (n int); INSERT INTO victims VALUES (0)"
SLEEP = frontend.query(b"SELECT pg_sleep(600)")
INSERT = b"INSERT INTO victims VALUES (99)"


async def prepared(start: Start, pooled: Way, **settings: object) -> LocalGateway:
    """A gateway with one backend, and the table that the victims work on."""
    gateway = await start(default_pool_size=1, auth_type="trust", **settings)
    session = await gateway.connect(pooled)
    await session.execute(TABLE)
    await session.close()
    return gateway


async def is_as_before(gateway: LocalGateway, way: Way, seconds: float, *, same_backend: bool = True) -> None:
    """Waits until the lock is free, and sees that the only backend is clean and, unless said otherwise, the same."""
    admin = gateway.site.admin
    before = gateway.backend_pids
    await until(lambda: not admin.is_locked("victims"), seconds)
    session = await gateway.connect(way)
    assert await session.fetchval("SELECT array_agg(n) FROM victims") == [0]
    assert not session.is_in_transaction()
    if same_backend:
        assert gateway.backend_pids == before
        assert gateway.counters()["backends"] == 1


@pytest.mark.parametrize("scenario", ["lock", "query", "copy", "read"])
@pytest.mark.parametrize("killed", ["tcp", "unix"])
async def test_kill_9_of_a_client(start: Start, killed: Way, scenario: str) -> None:
    gateway = await prepared(start, killed)
    with victim(gateway, killed, scenario) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "there\n"
        await until(lambda: gateway.counts(leased=1))
        if scenario == "query":
            await until(lambda: gateway.site.admin.running("pg_sleep"))
        process.kill()
        # One second, and what a busy machine adds.
        await until(lambda: gateway.counts(sessions=0), 1 + 4)
        await is_as_before(gateway, killed, 1 + 4)


@pytest.mark.parametrize(("scenario", "settings"), [("lock", {}), ("query", {"quic_idle_timeout": 2})])
async def test_kill_9_of_a_quic_client(start: Start, scenario: str, settings: dict[str, object]) -> None:
    """It sends no farewell: the gateway has only silence to go by, ten seconds of it unless told otherwise."""
    gateway = await prepared(start, "quic", **settings)
    await gateway.trunks[0].close()
    gateway.trunks.clear()
    with victim(gateway, "quic", scenario) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "there\n"
        await until(lambda: gateway.site.admin.is_locked("victims"))
        began = asyncio.get_running_loop().time()
        process.kill()
        await until(lambda: not gateway.site.admin.is_locked("victims"), 12)
        assert asyncio.get_running_loop().time() - began > 1, "silence alone is no reason yet"
        await is_as_before(gateway, "quic", 12)


async def test_a_session_is_aborted_in_a_transaction(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    session = await RawSession.start(gateway, pooled)
    await session.ask(frontend.query(b"BEGIN"))
    await session.ask(frontend.query(b"UPDATE victims SET n = 1"))
    assert gateway.site.admin.is_locked("victims")
    session.abort()
    await is_as_before(gateway, pooled, 1 + 4)


@pytest.mark.both_loops
async def test_a_session_is_aborted_in_a_query(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    admin = gateway.site.admin
    for request in (SLEEP, frontend.query(b"UPDATE victims SET n = 1; SELECT pg_sleep(600)")):
        session = await RawSession.start(gateway, pooled)
        session.send(request)
        await until(lambda: admin.running("pg_sleep"))
        session.abort()
        # Postgres is told: it would find out by itself only when it has something to say.
        await until(lambda: not admin.running("pg_sleep"), 1 + 4)
        await is_as_before(gateway, pooled, 1 + 4)
    assert gateway.gateway.cancels.sent == 2


async def test_a_query_that_reaches_postgres_after_its_cancel(start: Start, pooled: Way) -> None:
    """Postgres forgets a cancel that finds nothing to cancel."""
    postgres = (await start()).site.postgres
    async with gate(postgres.host, postgres.port) as proxy:
        gateway = await prepared(start, pooled, databases={DATABASE: f"host=127.0.0.1 port={proxy.port}"})
        session = await RawSession.start(gateway, pooled)
        proxy.hold()
        session.send(frontend.query(b"INSERT INTO victims SELECT 1 FROM pg_sleep(600)"))
        await until(lambda: gateway.counts(leased=1))
        session.abort()
        await until(lambda: gateway.gateway.cancels.sent and gateway.counts(cancels=0))
        proxy.let_pass()
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        await until(lambda: not gateway.site.admin.running("pg_sleep"), 1 + 4)
        await is_as_before(gateway, pooled, 1 + 4)
        await gateway.settle()


async def test_an_open_batch_is_not_committed(start: Start, pooled: Way) -> None:
    """Sync commits what came before it; the one that ends the batch of a client that is gone must not."""
    gateway = await prepared(start, pooled)
    insert = [frontend.parse(b"", INSERT), frontend.bind(b"", b""), frontend.execute()]
    named = [frontend.parse(b"s", INSERT), frontend.bind(b"", b"s"), frontend.execute()]
    for batch in (insert, [*insert, frontend.FLUSH_MESSAGE], [*named, frontend.FLUSH_MESSAGE], insert * 3):
        session = await RawSession.start(gateway, pooled)
        session.send(*batch)
        if batch[-1] == frontend.FLUSH_MESSAGE:
            assert session.kinds(await session.until("C")) == "12C"
        await until(lambda: gateway.counts(leased=1))
        session.abort()
        await until(lambda: gateway.counts(leased=0))
        await is_as_before(gateway, pooled, 1 + 4)


async def test_a_batch_that_was_skipped_to_its_end(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    session = await RawSession.start(gateway, pooled)
    session.send(frontend.parse(b"", b"selec"), frontend.FLUSH_MESSAGE)
    await session.until("E")
    session.send(frontend.parse(b"", INSERT), frontend.bind(b"", b""), frontend.execute())
    session.abort()
    await is_as_before(gateway, pooled, 1 + 4)


@pytest.mark.both_loops
@pytest.mark.parametrize("sync", [True, False])
async def test_in_the_middle_of_a_copy(start: Start, pooled: Way, sync: bool) -> None:
    gateway = await prepared(start, pooled)
    copy = b"COPY victims FROM STDIN"
    extended = [frontend.parse(b"", copy), frontend.bind(b"", b""), frontend.execute()]
    for request in ([frontend.query(copy)], extended, [*extended, frontend.SYNC_MESSAGE]):
        session = await RawSession.start(gateway, pooled)
        session.send(*request)
        if sync:
            await session.until("G")
            session.send(frontend.copy_data(b"1\n" * 1000))
        else:
            await until(lambda: gateway.counts(leased=1))
        session.abort()
        await until(lambda: gateway.counts(leased=0))
        await is_as_before(gateway, pooled, 1 + 4)


async def test_in_the_middle_of_the_data_of_a_copy(start: Start, pooled: Way) -> None:
    """What there is of a message is no data yet: nothing of it is kept, however long it was to be."""
    gateway = await prepared(start, pooled)
    copy = b"COPY victims FROM STDIN"
    data = frontend.copy_data(b"1\n" * 1_000_000)
    extended = frontend.parse(b"", copy) + frontend.bind(b"", b"") + frontend.execute()
    for request in (frontend.query(copy), extended + frontend.FLUSH_MESSAGE, extended + frontend.SYNC_MESSAGE):
        for sent in (frontend.copy_data(b"1\n" * 1000) + data[:1_500_000], data[:10_000], data[:3]):
            session = await RawSession.start(gateway, pooled)
            session.send(request)
            await session.until("G")
            session.send(sent)
            await asyncio.sleep(0.01)
            session.abort()
            await until(lambda: gateway.counts(sessions=0, leased=0, cancels=0))
            await is_as_before(gateway, pooled, 1 + 4, same_backend=False)
            for connection in gateway.connections:
                await connection.close()


async def test_in_the_middle_of_a_copy_out(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    copy = b"COPY (SELECT repeat('x', 100000) FROM generate_series(1, 1000), victims) TO STDOUT"
    extended = frontend.parse(b"", copy) + frontend.bind(b"", b"") + frontend.execute()
    for request in (frontend.query(copy), extended + frontend.SYNC_MESSAGE, extended + frontend.FLUSH_MESSAGE):
        session = await RawSession.start(gateway, pooled)
        session.send(request)
        await session.until("d")
        session.transport.pause_reading()
        await until(lambda: gateway.site.admin.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"))
        session.abort()
        await until(lambda: gateway.counts(leased=0, cancels=0), 1 + 4)
        await is_as_before(gateway, pooled, 1 + 4)


async def test_a_copy_that_is_done_may_end_without_its_client(start: Start, pooled: Way) -> None:
    """As with Postgres itself, COMMIT may have been said, or not: but it is all of the rows, or none."""
    gateway = await prepared(start, pooled)
    for _ in range(10):
        session = await RawSession.start(gateway, pooled)
        session.send(frontend.query(b"COPY victims FROM STDIN"))
        await session.until("G")
        session.send(frontend.copy_data(b"7\n" * 1000), frontend.COPY_DONE_MESSAGE)
        session.abort()
        await until(lambda: gateway.counts(leased=0, sessions=0, cancels=0))
        assert gateway.site.admin.value("SELECT count(*) FROM victims WHERE n = 7") % 1000 == 0
    assert gateway.counters()["backends"] == 1


async def test_in_the_middle_of_a_message(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    large = frontend.query(b"INSERT INTO victims SELECT length('" + b"x" * 3_000_000 + b"')")
    bind = frontend.bind(b"", b"", [b"y" * 3_000_000])
    for request in (
        large,
        frontend.parse(b"", b"INSERT INTO victims SELECT length($1)") + bind,
        frontend.parse(b"", b"INSERT INTO victims VALUES (1)") + frontend.bind(b"", b"") + frontend.execute() + large,
    ):
        for length in (len(request) - 1, len(request) // 2, len(request) - 2_900_000):
            session = await RawSession.start(gateway, pooled)
            session.send(request[:length])
            # Here some of the request has arrived, and there nearly all of it.
            await until(lambda: gateway.counts(leased=1))
            await asyncio.sleep(0)
            session.abort()
            await until(lambda: gateway.counts(sessions=0))
            # Nobody can finish the message for the client, so its backend may have to go.
            await is_as_before(gateway, pooled, 1 + 4, same_backend=False)
            for connection in gateway.connections:
                await connection.close()


@pytest.mark.parametrize("batch", [False, True])
async def test_in_the_middle_of_a_message_behind_a_query_that_runs(start: Start, pooled: Way, batch: bool) -> None:
    gateway = await prepared(start, pooled)
    sleep = frontend.query(b"SELECT pg_sleep(60)")
    if batch:
        sleep = frontend.parse(b"", b"SELECT pg_sleep(60)") + frontend.bind(b"", b"") + frontend.execute()
    session = await RawSession.start(gateway, pooled)
    session.send(sleep + (frontend.FLUSH_MESSAGE if batch else b""))
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    session.send(frontend.query(b"SELECT '" + b"x" * 3_000_000 + b"'")[:1_000_000])
    await asyncio.sleep(0.1)
    session.abort()
    await until(lambda: not gateway.site.admin.running("pg_sleep"), 5)
    await until(lambda: gateway.counts(leased=0, cancels=0))


async def test_while_it_waits_for_a_backend(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    holder = await gateway.connect(pooled)
    async with holder.transaction():
        await holder.execute("SELECT 1")
        # The large one stops being read while it waits, and Postgres gets the beginning of it at least.
        for request in (frontend.query(INSERT), frontend.query(b"SELECT 1 --" + b"x" * 1_000_000)):
            session = await RawSession.start(gateway, pooled)
            session.send(request)
            await until(lambda: gateway.counts(waiting=1))
            session.abort()
            if len(request) < 1000:
                await until(lambda: gateway.counts(waiting=0, sessions=1))
    await is_as_before(gateway, pooled, 1 + 4, same_backend=False)


@pytest.mark.both_loops
async def test_while_it_does_not_read(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    for _ in range(2):
        session = await RawSession.start(gateway, pooled)
        session.transport.pause_reading()
        session.send(frontend.query(b"SELECT repeat('x', 1000) FROM generate_series(1, 50000)"))
        await until(lambda: gateway.site.admin.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"))
        session.abort()
        await until(lambda: gateway.counts(leased=0), 1 + 4)
        await is_as_before(gateway, pooled, 1 + 4)


async def test_politely_in_a_transaction(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    for ending in (frontend.TERMINATE_MESSAGE, frontend.query(INSERT) + frontend.TERMINATE_MESSAGE):
        session = await RawSession.start(gateway, pooled)
        assert await session.ask(frontend.query(b"BEGIN; UPDATE victims SET n = 1")) == "CCZT"
        session.send(ending)
        await session.until_lost()
        await is_as_before(gateway, pooled, 1 + 4)


async def test_terminate_behind_a_query_lets_it_end(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    session = await RawSession.start(gateway, pooled)
    session.send(frontend.query(INSERT), frontend.TERMINATE_MESSAGE)
    await session.until_lost()
    await until(lambda: gateway.counts(leased=0))
    admin = gateway.site.admin
    await until(lambda: admin.rows("SELECT n FROM victims ORDER BY n") == [(0,), (99,)])


async def test_sessions_that_end_without_a_word_between_queries(start: Start, pooled: Way) -> None:
    gateway = await prepared(start, pooled)
    for _ in range(30):
        session = await RawSession.start(gateway, pooled)
        assert await session.ask(frontend.query(b"SELECT 1")) == "TDCZI"
        session.abort()
    for _ in range(30):
        login = asyncio.create_task(gateway.connect(pooled))
        await asyncio.sleep(0)
        login.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await login
    await until(lambda: gateway.counts(sessions=0))
    await is_as_before(gateway, pooled, 1 + 4)
