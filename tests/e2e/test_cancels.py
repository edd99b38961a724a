"""Cancel requests: they hit what they are meant for, whatever it is doing, and nothing else ever."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.raw_session import RawSession
from helpers.site import DATABASE
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

pytestmark = pytest.mark.both_loops

SLEEP = frontend.query(b"SELECT pg_sleep(60)")
SELECT = frontend.query(b"SELECT 1")
CANCELLED = "57014"


async def send(gateway: LocalGateway, way: Way, request: bytes, beside: RawSession | None = None) -> None:
    """Sends a cancel request, and returns when the gateway says by closing that it has acted on it."""
    connection = await RawSession.open(gateway, way, beside)
    connection.send(request)
    assert await connection.until_lost() == []


async def errors(session: RawSession) -> list[str]:
    """The SQLSTATEs of the errors up to the next ReadyForQuery."""
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


async def test_asyncpg_cancels_what_runs(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    session = await gateway.connect(pooled)
    for _ in range(3):
        running = asyncio.create_task(session.execute("SELECT pg_sleep(60)"))
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await session.fetchval("SELECT 1") == 1
        with pytest.raises(TimeoutError):
            await session.fetchval("SELECT 1 FROM pg_sleep(60)", timeout=0.05)
        assert await session.fetchval("SELECT 1") == 1
    assert gateway.counters()["backends"] == 1


async def test_inside_a_transaction(start: Start, pooled: Way) -> None:
    gateway = await start()
    session = await gateway.connect(pooled)
    with pytest.raises(TimeoutError):
        async with session.transaction():
            pid = await session.fetchval("SELECT pg_backend_pid()")
            with pytest.raises(TimeoutError):
                async with session.transaction():
                    await session.execute("SELECT pg_sleep(60)", timeout=0.05)
            assert await session.fetchval("SELECT pg_backend_pid()") == pid
            await session.execute("SELECT pg_sleep(60)", timeout=0.05)
    assert await session.fetchval("SELECT 1") == 1


async def test_what_waits_is_refused_and_the_session_goes_on(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    holder = await gateway.connect(pooled)
    waiter = await RawSession.start(gateway, pooled)
    extended = [frontend.parse(b"", b"SELECT 1"), frontend.bind(b"", b""), frontend.execute(), frontend.SYNC_MESSAGE]
    async with holder.transaction():
        await holder.execute("SELECT 1")
        # One at a time, several behind each other, and with what came after the request of which nothing was sent.
        for requests in (
            [SELECT],
            extended,
            [SELECT, *extended, SELECT],
            [b"".join(extended)[:30], b"".join(extended)[30:]],
        ):
            answers = sum(request[-5:] == frontend.SYNC_MESSAGE or request == SELECT for request in requests)
            for request in requests:
                waiter.send(request)
            for _ in range(answers):
                await until(lambda: gateway.counts(waiting=1))
                await send(gateway, pooled, waiter.cancel_request())
                assert await errors(waiter) == [CANCELLED]
    assert await waiter.ask(SELECT) == "TDCZI"


async def test_a_cancel_that_comes_too_late_or_too_early_is_ignored(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    for status, request in (("I", SELECT), ("T", frontend.query(b"BEGIN")), ("T", SELECT)):
        assert (await session.ask(request)).endswith(status)
        await send(gateway, pooled, session.cancel_request())
    assert await session.ask(frontend.query(b"COMMIT")) == "CZI"


async def test_a_wrong_key_cancels_nothing(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust", login_failure_limit=0)
    session = await RawSession.start(gateway, pooled)
    session.send(frontend.query(b"SELECT pg_sleep(0.5)"))
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    assert session.key is not None
    pid, secret = session.key.pid, session.key.secret
    backend = next(iter(gateway.backend_pids))
    for request in (
        CancelRequest(pid, bytes([secret[0] ^ 1]) + secret[1:]),
        CancelRequest(pid, secret[:-1] + bytes([secret[-1] ^ 4])),
        CancelRequest(pid, secret[:-1]),
        CancelRequest(pid, secret + b"\0"),
        CancelRequest(pid, bytes(4)),
        CancelRequest(pid, bytes(256)),
        CancelRequest(pid ^ 1, secret),
        CancelRequest(-pid, secret),
        CancelRequest(backend, secret),
        CancelRequest(0, secret),
    ):
        await send(gateway, pooled, request.encode())
    assert await errors(session) == []
    # The lowest two bits count hops between peers.
    session.send(SLEEP)
    await until(lambda: gateway.site.admin.running("pg_sleep(60)"))
    await send(gateway, pooled, CancelRequest(pid, secret[:-1] + bytes([secret[-1] & 0xFC])).encode())
    assert await errors(session) == [CANCELLED]


async def test_at_a_full_pool(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2, auth_type="trust")
    sessions = [await RawSession.start(gateway, pooled) for _ in range(6)]
    for session in sessions:
        session.send(SLEEP)
    await until(lambda: len(gateway.site.admin.running("pg_sleep")) == 2 and gateway.counts(waiting=4))
    # From the last to the first: waiting ones, then running ones.
    for session in reversed(sessions):
        await send(gateway, pooled, session.cancel_request())
        assert await errors(session) == [CANCELLED]
    for session in sessions:
        assert await session.ask(SELECT) == "TDCZI"


async def test_at_the_stream_cap(start: Start) -> None:
    gateway = await start(quic_max_streams=6, default_pool_size=2)
    await gateway.trunk(connections=1, acquire_timeout=0.2)
    sessions = [await gateway.connect("quic")]
    with pytest.raises(TimeoutError):
        while True:
            sessions.append(await gateway.connect("quic"))
    queries = [asyncio.create_task(session.execute("SELECT pg_sleep(60)")) for session in sessions]
    await until(lambda: len(gateway.site.admin.running("pg_sleep")) == 2)
    for query in queries:
        query.cancel()
    await asyncio.wait(queries)
    for session in sessions:
        assert await session.fetchval("SELECT 1") == 1


async def test_when_postgres_takes_no_more_connections(start: Start, pooled: Way) -> None:
    """A cancel is a connection, too, but one that does not count there."""
    gateway = await start(auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    session.send(SLEEP)
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    await asyncio.gather(*(send(gateway, pooled, session.cancel_request()) for _ in range(20)))
    assert await errors(session) == [CANCELLED]
    assert await session.ask(SELECT) == "TDCZI"


async def test_the_next_session_is_never_hit(start: Start, pooled: Way) -> None:
    """Two sessions on one backend: one is cancelled all the time, the other must not notice."""
    gateway = await start(default_pool_size=1, auth_type="trust")
    victim, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
    dice = random.Random(2)
    is_over = False
    sent = 0

    async def query(session: RawSession) -> list[str]:
        session.send(frontend.query(b"SELECT pg_sleep(%f)" % dice.choice((0.0, 0.0, 0.0002, 0.001))))
        return await errors(session)

    async def keep_cancelling() -> None:
        nonlocal sent
        while sent < 300:
            await send(gateway, pooled, victim.cancel_request())
            sent += 1
            await asyncio.sleep(dice.choice((0, 0, 0.0003, 0.001)))

    async def be_cancelled() -> int:
        hits = 0
        while not is_over:
            told = await query(victim)
            assert told in ([], [CANCELLED])
            hits += len(told)
        return hits

    async def be_left_alone() -> int:
        queries = 0
        while not is_over:
            assert await query(other) == []
            queries += 1
        return queries

    hits, queries = asyncio.create_task(be_cancelled()), asyncio.create_task(be_left_alone())
    await asyncio.gather(*(keep_cancelling() for _ in range(3)))
    is_over = True
    assert await hits > 0
    assert await queries > 0
    assert gateway.counters()["backends"] == 1
    assert gateway.gateway.cancels.sent > 0


@pytest.mark.parametrize("database", [None, DATABASE])
async def test_while_the_pool_is_paused(start: Start, pooled: Way, database: str | None) -> None:
    gateway = await start(auth_type="trust")
    operations = gateway.gateway.operations
    holder, first, second = [await RawSession.start(gateway, pooled) for _ in range(3)]
    for request in (frontend.query(b"BEGIN"), SELECT):
        await holder.ask(request)
    pausing = asyncio.create_task(operations.pause(database))
    # It waits for the transaction, and is a pause already for all others.
    for session in (first, second):
        session.send(SELECT)
    await until(lambda: gateway.counts(waiting=2))
    await send(gateway, pooled, first.cancel_request())
    assert await errors(first) == [CANCELLED]
    # What runs can be cancelled too.
    holder.send(SLEEP)
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    await send(gateway, pooled, holder.cancel_request())
    assert await errors(holder) == [CANCELLED]
    assert await holder.ask(frontend.query(b"ROLLBACK")) == "CZI"
    await asyncio.wait_for(pausing, 20)
    first.send(SELECT)
    await until(lambda: gateway.counts(waiting=2))
    await send(gateway, pooled, second.cancel_request())
    assert await errors(second) == [CANCELLED]
    assert gateway.counts(waiting=1, leased=0)
    operations.resume(database)
    assert await errors(first) == []
    assert await second.ask(SELECT) == "TDCZI"


@pytest.mark.parametrize("pooled", ["unix", "quic"])
async def test_while_the_gateway_waits_for_its_clients(start: Start, pooled: Way) -> None:
    """It takes no new sessions, and over TCP no connections either, as PgBouncer does not: others may listen there."""
    gateway = await start(auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    session.send(SLEEP)
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    stopping = asyncio.create_task(gateway.gateway.wait_for_clients())
    await until(lambda: gateway.gateway.context.draining)
    # The connection of a session is there for its cancels, though it gets no new sessions.
    await send(gateway, pooled, session.cancel_request(), beside=session)
    assert await errors(session) == [CANCELLED]
    session.close()
    await asyncio.wait_for(stopping, 20)


async def psql(gateway: LocalGateway, way: Way, query: str) -> asyncio.subprocess.Process:
    conninfo = gateway.conninfo(way)
    environment = os.environ | {"PGPASSWORD": conninfo.pop("password")}
    return await asyncio.create_subprocess_exec(
        EmbeddedPostgres.binary("psql"),
        "-X",
        *("-c", query),
        " ".join(f"{name}={value}" for name, value in conninfo.items()),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def control_c(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(20):
        _, said = await process.communicate()
    assert b"canceling statement due to user request" in said
    assert process.returncode == 1


@pytest.mark.parametrize("pooled", ["tcp", "unix"])
async def test_control_c_in_psql(start: Start, pooled: Way) -> None:
    gateway = await start()
    process = await psql(gateway, pooled, "SELECT pg_sleep(60)")
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    await control_c(process)


@pytest.mark.parametrize("pooled", ["tcp", "unix"])
async def test_control_c_in_a_psql_that_waits_for_a_backend(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    holder = await gateway.connect(pooled)
    async with holder.transaction():
        await holder.execute("SELECT 1")
        process = await psql(gateway, pooled, "SELECT 'nothing that takes long'")
        await until(lambda: gateway.counts(waiting=1))
        await control_c(process)


async def test_cancel_connections_that_say_nothing_more(start: Start, pooled: Way) -> None:
    gateway = await start(client_login_timeout=1, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    session.send(SLEEP)
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    # Whoever cancels may be gone at once: the cancel goes its way.
    connection = await RawSession.open(gateway, pooled)
    connection.send(session.cancel_request())
    connection.close()
    assert await errors(session) == [CANCELLED]
    half = await RawSession.open(gateway, pooled)
    half.send(session.cancel_request()[:11])
    told = await half.until_lost()
    assert [message.error.sqlstate for message in told] == [CANCELLED], "client_login_timeout"


async def test_asyncpg_that_is_refused_while_it_waits(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    holder, waiter = await gateway.connect(pooled), await gateway.connect(pooled)
    async with holder.transaction():
        await holder.execute("SELECT 1")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await waiter.fetchval("SELECT $1::int", 1, timeout=0.05)
        assert isinstance(waiter, asyncpg.Connection) and not waiter.is_closed()
    assert await waiter.fetchval("SELECT $1::int", 1) == 1
