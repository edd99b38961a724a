"""BEGIN takes no backend: it travels with the first request of its transaction, and nobody loses anything by that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from helpers.flights import counted
from helpers.postgres import connect as connect_directly
from helpers.raw_session import RawSession
from helpers.site import DATABASE, USER
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

PID: Final = "SELECT pg_backend_pid()"
BEGIN, COMMIT, ROLLBACK, SELECT = (frontend.query(text) for text in (b"BEGIN", b"COMMIT", b"ROLLBACK", b"SELECT 1"))
CANCELLED: Final = "57014"


async def test_one_backend_is_enough_for_two_that_have_begun(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    one, other = await gateway.connect(pooled), await gateway.connect(pooled)
    mine, theirs = one.transaction(), other.transaction()
    await mine.start()
    await theirs.start()
    assert gateway.counts(leased=0, waiting=0)
    pid = await other.fetchval(PID)
    await theirs.commit()
    assert await one.fetchval(PID) == pid
    assert gateway.counts(leased=1)
    waiting = asyncio.create_task(other.fetchval(PID))
    await until(lambda: gateway.counts(waiting=1))
    await mine.commit()
    assert await waiting == pid
    assert gateway.counts(backends=1)


async def test_one_that_asks_nothing_needs_no_backend(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    holder, session = await gateway.connect(pooled), await gateway.connect(pooled)
    async with holder.transaction():
        await holder.execute("SELECT 1")
        for isolation in (None, "serializable"):
            async with session.transaction(isolation=isolation, readonly=isolation is None):
                assert session.is_in_transaction()
        assert gateway.counts(waiting=0)
    # As PgBouncer counts them: two transactions of two queries, and one of three.
    (pool,) = gateway.gateway.pools
    assert (pool.stats.xact_count, pool.stats.query_count) == (3, 7)


async def test_begin_and_its_first_request_are_one_flight(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    session = await gateway.connect(pooled)
    other = await RawSession.start(gateway, pooled, TimeZone="Asia/Tokyo")
    # The server takes them, which is not certain at first.
    assert await other.ask(SELECT) == "TDCZI"
    statement = await session.prepare("SELECT $1::int")
    flights = counted(gateway)
    for count in range(1, 4):
        async with session.transaction():
            assert await statement.fetchval(count) == count
        # One for BEGIN and the query, and one for COMMIT.
        assert len(flights.writes) == 2
        flights.writes.clear()
        # Settings go along, too.
        assert [await other.ask(request) for request in (BEGIN, SELECT, COMMIT)] == ["CZT", "TDCZT", "CZI"]
        assert len(flights.writes) == 2
        flights.writes.clear()


async def test_it_can_be_switched_off(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, lazy_begin=0)
    session = await gateway.connect(pooled)
    async with session.transaction():
        assert gateway.counts(leased=1)
        gateway.gateway.operations.set("lazy_begin", "1")
        assert await session.fetchval("SELECT 1") == 1
    async with session.transaction():
        assert gateway.counts(leased=0)
        gateway.gateway.operations.set("lazy_begin", "0")
        assert await session.fetchval("SELECT 1") == 1
        assert gateway.counts(leased=1)


async def test_when_the_transaction_begins(start: Start, pooled: Way) -> None:
    """With its first request: so do its snapshot and its now()."""
    gateway = await start()
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    await other.execute("DROP TABLE IF EXISTS moments; CREATE TABLE moments AS SELECT clock_timestamp() AS at")
    async with session.transaction(isolation="repeatable_read"):
        await other.execute("UPDATE moments SET at = clock_timestamp()")
        assert await session.fetchval("SELECT now() > at FROM moments")
        await other.execute("UPDATE moments SET at = clock_timestamp()")
        assert await session.fetchval("SELECT now() > at FROM moments"), "the snapshot is that of the first request"


async def test_backends_may_end_meanwhile(start: Start, pooled: Way) -> None:
    gateway = await start()
    session = await gateway.connect(pooled)
    pid = await session.fetchval(PID)
    async with session.transaction():
        gateway.site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
        await until(lambda: gateway.counts(backends=0))
        assert await session.fetchval(PID) != pid


async def test_a_pause_does_not_wait_for_it(start: Start, pooled: Way) -> None:
    gateway = await start()
    session = await gateway.connect(pooled)
    async with session.transaction():
        await asyncio.wait_for(gateway.gateway.operations.pause(None), 20)
        asking = asyncio.create_task(session.fetchval("SELECT 1"))
        await until(lambda: gateway.counts(waiting=1))
        gateway.gateway.operations.resume(None)
        assert await asking == 1


async def test_it_is_killed_as_any(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    assert await session.ask(BEGIN) == "CZT"
    (served,) = gateway.gateway.context.sessions
    gateway.gateway.operations.kill_client(served.id)
    (message,) = await session.until_lost()
    assert (message.error.severity, message.error.sqlstate) == ("FATAL", "57P01")


# -- the first request is refused, or cancelled ------------------------------------------------------------------------


async def errors(session: RawSession) -> tuple[list[str], str]:
    """SQLSTATEs and the status, up to ReadyForQuery."""
    messages = await session.until_ready()
    return [message.error.sqlstate for message in messages if message.kind == "E"], messages[-1].body.decode()


async def cancel(gateway: LocalGateway, way: Way, session: RawSession) -> None:
    connection = await RawSession.open(gateway, way)
    connection.send(session.cancel_request())
    assert await connection.until_lost() == []


async def test_a_full_pool_shows_there(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, query_wait_timeout=0.2)
    holder, session = await gateway.connect(pooled), await gateway.connect(pooled)
    async with holder.transaction():
        await holder.execute("SELECT 1")
        with pytest.raises(asyncpg.TooManyConnectionsError):
            async with session.transaction():
                await session.fetchval("SELECT 1")
        transaction = session.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await session.execute("SELECT 1")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await session.fetchval("SELECT 1")
    await transaction.rollback()
    assert await session.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("waits", [True, False])
async def test_a_cancel_of_the_first_request(start: Start, pooled: Way, waits: bool) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    holder, session = [await RawSession.start(gateway, pooled) for _ in range(2)]
    if waits:
        assert [await holder.ask(request) for request in (BEGIN, SELECT)] == ["CZT", "TDCZT"]
    assert await session.ask(BEGIN) == "CZT"
    # It has nothing to cancel yet.
    await cancel(gateway, pooled, session)
    session.send(frontend.query(b"SELECT pg_sleep(60)"))
    if waits:
        await until(lambda: gateway.counts(waiting=1))
    else:
        await until(lambda: gateway.site.admin.running("pg_sleep"))
    await cancel(gateway, pooled, session)
    assert await errors(session) == ([CANCELLED], "E")
    if waits:
        assert await holder.ask(ROLLBACK) == "CZI"
    session.send(SELECT)
    assert await errors(session) == (["25P02"], "E")
    assert await session.ask(COMMIT) == "CZI"
    assert await session.ask(SELECT) == "TDCZI"


async def test_cancels_that_come_with_the_first_request(start: Start) -> None:
    """None of them hits BEGIN: that would end the session."""
    gateway = await start(default_pool_size=2, auth_type="trust")
    sessions = [await RawSession.start(gateway, "unix") for _ in range(4)]

    async def work(session: RawSession) -> int:
        cancelled = 0
        for _ in range(50):
            assert await session.ask(BEGIN) == "CZT"
            session.send(frontend.query(b"SELECT pg_sleep(0.01)"))
            await asyncio.gather(*(cancel(gateway, "unix", session) for _ in range(2)))
            told, status = await errors(session)
            assert (told, status) in (([CANCELLED], "E"), ([], "T"))
            cancelled += bool(told)
            assert await session.ask(COMMIT) == "CZI"
        return cancelled

    assert sum(await asyncio.gather(*map(work, sessions))) > 0


# -- BEGIN itself fails ------------------------------------------------------------------------------------------------


async def test_no_half_of_a_transaction_is_ever_committed(start: Start, site: Site) -> None:
    """Whatever somebody on the server cancels: BEGIN, too, which the client has been told has succeeded."""
    gateway = await start(default_pool_size=3, auth_type="trust")
    site.admin.execute("DROP TABLE IF EXISTS halves")
    site.admin.execute("CREATE TABLE halves (n int, half int)")
    site.admin.execute("GRANT ALL ON halves TO PUBLIC")
    admin = await connect_directly(site.postgres, database=DATABASE)
    numbers = iter(range(10**9))
    done = 0

    async def work() -> None:
        nonlocal done
        session = await RawSession.start(gateway, "unix")
        while done < 600:
            number = next(numbers)
            one, other = (frontend.query(b"INSERT INTO halves VALUES (%d, %d)" % (number, half)) for half in (1, 2))
            for request in (BEGIN, one, other, COMMIT):
                session.send(request)
                if "Z" not in {message.kind for message in await session.until_ready()}:
                    # BEGIN was hit, and with it the session.
                    session = await RawSession.start(gateway, "unix")
                    break
            done += 1

    async def meddle() -> None:
        while done < 600:
            await admin.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND usename = $2",
                DATABASE,
                USER,
            )

    try:
        async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
            for working in (work(), work(), work(), meddle()):
                tasks.create_task(working)
        assert await admin.fetch("SELECT n FROM halves GROUP BY n HAVING count(*) <> 2") == []
        assert await admin.fetchval("SELECT count(*) > 0 FROM halves")
    finally:
        await admin.close()


# -- a server that recovers --------------------------------------------------------------------------------------------


@pytest.fixture
def standby() -> Iterator[EmbeddedPostgres]:
    """One that waits for more to replay, and reads."""
    with EmbeddedPostgres(max_connections=20, settings={"wal_level": "replica"}) as postgres:
        postgres.stop("fast")
        (Path(postgres.socket_dir) / "data" / "standby.signal").touch()
        postgres.start()
        yield postgres


MODES: Final = (
    b"BEGIN",
    b"BEGIN READ ONLY",
    b"BEGIN READ WRITE",
    b"BEGIN ISOLATION LEVEL SERIALIZABLE",
    b"START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    b"START TRANSACTION READ ONLY, READ WRITE",
)


async def behind(start: Start, standby: EmbeddedPostgres) -> LocalGateway:
    login = f"dbname=postgres user=postgres password={standby.password}"
    entry = f"host={standby.host} port={standby.port} {login}"
    return await start(databases={"standby": entry}, auth_type="trust", default_pool_size=1)


async def test_modes_that_a_standby_refuses_are_refused_at_once(start: Start, standby: EmbeddedPostgres) -> None:
    gateway = await behind(start, standby)
    session = await RawSession.start(gateway, "tcp", database="standby")
    assert session.parameters["in_hot_standby"] == "on"
    told: dict[bytes, Any] = {}
    for mode in MODES:
        session.send(frontend.query(mode))
        told[mode] = await errors(session)
        assert await session.ask(SELECT) == ("TDCZT" if told[mode][1] == "T" else "TDCZI")
        assert await session.ask(ROLLBACK) == "CZI"
    refused = (["0A000"], "I")
    assert told == {mode: refused if b"WRITE" in mode or b"SERIAL" in mode else ([], "T") for mode in MODES}


SAYS: Final = b"DO $$ BEGIN RAISE LOG 'it has run'; END $$"
ONCE: Final = frontend.parse(b"", SAYS) + frontend.bind(b"", b"") + frontend.execute()


@pytest.mark.parametrize(
    "request_",
    [frontend.query(SAYS), ONCE + frontend.SYNC_MESSAGE, ONCE + frontend.FLUSH_MESSAGE, ONCE],
    ids=["query", "batch", "batch with flush", "open batch"],
)
async def test_where_begin_fails_what_it_was_sent_with_does_not_run(
    start: Start, standby: EmbeddedPostgres, request_: bytes
) -> None:
    gateway = await behind(start, standby)
    session = await RawSession.start(gateway, "tcp", database="standby")
    assert await session.ask(SELECT) == "TDCZI"
    (pool,) = gateway.gateway.pools
    # As after a server has become a standby of another, and nobody has asked it yet.
    pool.greeting.welcome = {**(pool.greeting.welcome or {}), "in_hot_standby": "off"}
    assert await session.ask(frontend.query(b"BEGIN READ WRITE")) == "CZT"
    session.send(request_)
    (message,) = await session.until_lost()
    error = message.error
    assert (error.severity, error.sqlstate) == ("FATAL", "0A000")
    assert error.message == "cannot set transaction read-write mode during recovery"
    assert error.detail.startswith("BEGIN failed")
    await until(lambda: gateway.counts(backends=0, leased=0, sessions=0))
    assert "it has run" not in standby.log
