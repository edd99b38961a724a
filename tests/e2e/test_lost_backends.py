"""Backends that end under a session, and a Postgres that stops and starts again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.proxies import gate
from helpers.raw_session import RawSession
from helpers.site import DATABASE
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from helpers.gateways import LocalGateway, Start, Way

PID = "SELECT pg_backend_pid()"


def terminate(gateway: LocalGateway, pid: int) -> None:
    gateway.site.admin.execute("SELECT pg_terminate_backend(%s)", pid)


async def loss(query: Awaitable[object]) -> str:
    """The SQLSTATE of the message that ended the session."""
    with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
        await query
    assert isinstance(caught.value.__cause__, asyncpg.PostgresError)
    return str(caught.value.__cause__.sqlstate)


async def test_an_idle_backend_is_no_loss(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    session = await gateway.connect(pooled)
    statement = await session.prepare("SELECT $1::int, pg_backend_pid()")
    for number in range(3):
        row = await statement.fetchrow(number)
        assert row is not None and row[0] == number
        terminate(gateway, row[1])
        await until(lambda: gateway.counts(backends=0))
    assert await session.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_one_that_runs_a_query(start: Start, pooled: Way, in_transaction: bool) -> None:
    gateway = await start(default_pool_size=1)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    if in_transaction:
        await session.execute("BEGIN")
    pid = await session.fetchval(PID)
    running = asyncio.create_task(session.execute("SELECT pg_sleep(60)"))
    waiting = asyncio.create_task(other.fetchval(PID))
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    terminate(gateway, pid)
    assert await loss(running) == "57P01"
    await until(session.is_closed)
    assert await waiting != pid
    assert await other.fetchval("SELECT 1") == 1


ROWS = b"1\n" * 1000
EXTENDED = frontend.bind(b"", b"") + frontend.execute() + frontend.SYNC_MESSAGE


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("large", [False, True])
async def test_one_in_the_middle_of_copy_in(start: Start, pooled: Way, extended: bool, large: bool) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    session, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
    await session.ask(frontend.query(b"DROP TABLE IF EXISTS copied; CREATE TABLE copied (n int)"))
    copy = b"COPY copied FROM STDIN"
    session.send(frontend.parse(b"", copy) + EXTENDED if extended else frontend.query(copy))
    await session.until("G")
    session.send(frontend.copy_data(ROWS), frontend.copy_data(ROWS * 200)[:100_000] if large else b"")
    other.send(frontend.query(b"SELECT count(*) FROM copied"))
    await until(lambda: gateway.counts(waiting=1))
    (pid,) = gateway.backend_pids
    terminate(gateway, pid)
    (error,) = [message.error for message in await session.until_lost() if message.kind == "E"]
    # Postgres says so itself, if it does not die over what it has not read.
    assert error.sqlstate in ("57P01", "08006")
    rows = [message.body[6:] for message in await other.until_ready() if message.kind == "D"]
    assert rows == [b"0"]
    assert gateway.backend_pids and pid not in gateway.backend_pids


@pytest.mark.parametrize("extended", [False, True])
async def test_one_in_the_middle_of_copy_out(start: Start, pooled: Way, extended: bool) -> None:
    """It has sent a part of a row, or of several: what is told, if it is, is told between two messages."""
    gateway = await start(default_pool_size=1, auth_type="trust")
    session, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
    copy = b"COPY (SELECT repeat('x', 300000) FROM generate_series(1, 1000)) TO STDOUT"
    session.send(frontend.parse(b"", copy) + EXTENDED if extended else frontend.query(copy))
    await session.until("d")
    session.transport.pause_reading()
    await until(lambda: gateway.site.admin.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"))
    other.send(frontend.query(b"SELECT 1"))
    (pid,) = gateway.backend_pids
    terminate(gateway, pid)
    session.transport.resume_reading()
    told = "".join(message.kind for message in await session.until_lost())
    assert set(told.rstrip("E")) <= {"d"} and told.count("E") <= 1
    assert RawSession.kinds(await other.until_ready()) == "TDCZI"


async def test_one_in_a_transaction_between_queries(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    await session.execute("BEGIN")
    terminate(gateway, await session.fetchval(PID))
    await until(session.is_closed)
    with pytest.raises((asyncpg.InterfaceError, asyncpg.ConnectionDoesNotExistError)):
        await session.execute("SELECT 1")
    assert await other.fetchval("SELECT 1") == 1


async def test_a_connection_that_breaks_without_a_word(start: Start, pooled: Way) -> None:
    postgres = (await start()).site.postgres
    async with gate(postgres.host, postgres.port) as proxy:
        gateway = await start(
            databases={DATABASE: f"host=127.0.0.1 port={proxy.port}"}, default_pool_size=2, auth_type="trust"
        )
        idle, running, held = [await RawSession.start(gateway, pooled) for _ in range(3)]
        running.send(frontend.query(b"SELECT pg_sleep(60)"))
        assert await held.ask(frontend.query(b"BEGIN")) == "CZT"
        assert await held.ask(frontend.query(b"SELECT 1")) == "TDCZT"
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        proxy.cut()
        for session in (running, held):
            (message,) = await session.until_lost()
            error = message.error
            assert (error.severity, error.sqlstate, error.message) == ("FATAL", "08006", "server connection was lost")
            assert "server conn crashed?" in error.detail
        assert await idle.ask(frontend.query(b"SELECT 1")) == "TDCZI"
        await until(lambda: gateway.counts(sessions=1, leased=0))
        idle.close()
        await until(lambda: gateway.counts(sessions=0))
    for pid in gateway.site.admin.backends():
        terminate(gateway, pid)


async def test_words_that_look_fatal_are_not(start: Start, pooled: Way) -> None:
    """What a user's own error says does not count as Postgres's farewell: a loss after it is told."""
    postgres = (await start()).site.postgres
    async with gate(postgres.host, postgres.port) as proxy:
        gateway = await start(databases={DATABASE: f"host=127.0.0.1 port={proxy.port}"}, auth_type="trust")
        session = await RawSession.start(gateway, pooled)
        raising = b"BEGIN; DO $$ BEGIN RAISE EXCEPTION 'VFATAL'; END $$"
        assert await session.ask(frontend.query(raising)) == "CEZE"
        proxy.cut()
        (message,) = await session.until_lost()
        assert message.error.sqlstate == "08006"
        await until(lambda: gateway.counts(sessions=0))


# -- Postgres itself


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that a test may stop."""
    with EmbeddedPostgres(max_connections=20) as postgres:
        yield postgres


def entry(postgres: EmbeddedPostgres) -> str:
    return f"host={postgres.host} port={postgres.port} dbname=postgres user=postgres password={postgres.password}"


async def restarted(start: Start, postgres: EmbeddedPostgres) -> LocalGateway:
    return await start(databases={DATABASE: entry(postgres)}, server_login_retry=0.2, default_pool_size=3)


async def test_postgres_stops_and_starts_again(start: Start, own_postgres: EmbeddedPostgres) -> None:
    gateway = await restarted(start, own_postgres)
    sessions = [await gateway.connect(way) for way in ("tcp", "unix", "quic") for _ in range(2)]
    statements = [await session.prepare("SELECT $1::int") for session in sessions]
    await sessions[0].execute("BEGIN; SELECT 1")
    await asyncio.to_thread(own_postgres.stop, "fast")
    await until(lambda: gateway.counts(backends=0))
    await until(sessions[0].is_closed)
    # Who asks meanwhile waits; who comes meanwhile is let in, since the gateway knows the server's settings.
    asked = [asyncio.create_task(statement.fetchval(7)) for statement in statements[1:]]
    await until(lambda: gateway.counts(waiting=len(asked)))
    late = await gateway.connect("tcp")
    await asyncio.to_thread(own_postgres.start)
    assert await asyncio.gather(*asked) == [7] * len(asked)
    assert await late.fetchval("SELECT 1") == 1


async def test_postgres_crashes(start: Start, own_postgres: EmbeddedPostgres) -> None:
    gateway = await restarted(start, own_postgres)
    sessions = [await gateway.connect(way) for way in ("tcp", "unix", "quic")]
    running = [asyncio.create_task(session.execute("SELECT pg_sleep(60)")) for session in sessions]
    await until(lambda: gateway.counts(leased=3))
    await asyncio.to_thread(own_postgres.kill)
    for query in running:
        assert await loss(query) in ("08006", "57P01", "57P02")
    await until(lambda: gateway.counts(sessions=0, backends=0))
    await asyncio.to_thread(own_postgres.start)
    assert await (await gateway.connect("quic")).fetchval("SELECT 1") == 1


async def test_a_gateway_that_starts_before_postgres(start: Start, own_postgres: EmbeddedPostgres) -> None:
    await asyncio.to_thread(own_postgres.stop)
    gateway = await restarted(start, own_postgres)
    connecting = [asyncio.create_task(gateway.connect(way)) for way in ("tcp", "unix", "quic")]
    await until(lambda: len(gateway.gateway.pools))
    (pool,) = gateway.gateway.pools
    await until(lambda: pool.counters.failed > 1)
    assert not any(task.done() for task in connecting)
    await asyncio.to_thread(own_postgres.start)
    for session in await asyncio.gather(*connecting):
        assert await session.fetchval("SELECT 1") == 1


async def test_postgres_has_no_more_connections(start: Start, own_postgres: EmbeddedPostgres) -> None:
    """The pool is larger than what Postgres allows: those whom it refuses wait for the backends that there are."""
    gateway = await start(
        databases={DATABASE: entry(own_postgres)}, default_pool_size=40, server_login_retry=0.1, max_client_conn=200
    )
    sessions = await asyncio.gather(*(gateway.connect("tcp") for _ in range(60)))
    for _ in range(3):
        await asyncio.gather(*(session.execute("SELECT pg_sleep(0.01)") for session in sessions))
    assert 1 <= gateway.counters()["backends"] <= 20


async def test_a_user_whose_password_postgres_changes(start: Start, own_postgres: EmbeddedPostgres) -> None:
    gateway = await restarted(start, own_postgres)
    session = await gateway.connect("tcp")
    assert await session.fetchval("SELECT current_user") == "postgres"
    await session.execute("ALTER USER postgres PASSWORD 'another'")
    assert await session.fetchval("SELECT 1") == 1, "its backend is logged in"
    assert await loss(session.execute("SELECT pg_terminate_backend(pg_backend_pid())")) == "57P01"
    assert await loss((await gateway.connect("tcp")).fetchval("SELECT 1")) == "28P01"
