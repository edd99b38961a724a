"""Each timeout ends what it is for, with its SQLSTATE and the setting's name, and nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.proxies import silence
from helpers.raw_session import RawSession
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import StartupMessage

if TYPE_CHECKING:
    from helpers.gateways import Start, Way

SELECT = frontend.query(b"SELECT 1")
STARTUP = StartupMessage(parameters={"user": USER, "database": DATABASE}).encode()


async def test_query_wait_timeout(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    holder, waiter = await gateway.connect(pooled), await gateway.connect(pooled)
    async with holder.transaction():
        await holder.execute("SELECT 1")
        # Only now: on a busy machine the first backend may take as long.
        gateway.gateway.operations.set("query_wait_timeout", "0.2")
        for ask in (waiter.execute, waiter.fetch, waiter.execute):
            with pytest.raises(asyncpg.TooManyConnectionsError) as caught:
                await ask("SELECT 1")
            error = caught.value
            assert error.args[0] == "query_wait_timeout: no backend became free in time"
            assert error.detail == (
                f"Pool {DATABASE}/{USER} has 1 of 1 backends, 1 of them in use; 0 more sessions wait."
            )
            assert error.hint is not None and "query_wait_timeout" in error.hint
        assert await holder.fetchval("SELECT 1") == 1
    assert await waiter.fetchval("SELECT 1") == 1


async def test_query_wait_timeout_of_those_who_came_at_different_times(start: Start) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    holder = await gateway.connect("tcp")
    waiters = [await RawSession.start(gateway, "tcp") for _ in range(4)]
    async with holder.transaction():
        await holder.execute("SELECT 1")
        gateway.gateway.operations.set("query_wait_timeout", "0.4")
        for waiter in waiters:
            # The second request waits anew once the first has been refused.
            waiter.send(SELECT, SELECT)
            await asyncio.sleep(0.05)
        for waiter in waiters:
            for _ in range(2):
                answers = await waiter.until_ready()
                assert [answer.error.sqlstate for answer in answers if answer.kind == "E"] == ["53300"]
    assert [await waiter.ask(SELECT) for waiter in waiters] == ["TDCZI"] * 4


async def test_query_wait_timeout_of_the_user_overrides(start: Start) -> None:
    gateway = await start(
        default_pool_size=1, query_wait_timeout=0.1, sections=f"[users]\n{USER} = query_wait_timeout=30"
    )
    holder, waiter = await gateway.connect("tcp"), await gateway.connect("tcp")
    async with holder.transaction():
        await holder.execute("SELECT 1")
        waiting = asyncio.create_task(waiter.fetchval("SELECT 1"))
        await asyncio.sleep(0.3)
        assert gateway.counts(waiting=1)
    assert await waiting == 1


async def test_idle_transaction_timeout(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, idle_transaction_timeout=0.3, auth_type="trust")
    first = await gateway.connect(pooled)
    await first.execute("CREATE TABLE IF NOT EXISTS idlers (n int)")
    session = await RawSession.start(gateway, pooled)
    # A transaction that is busy is not idle, however long it takes; neither is a session without one.
    for query in (b"BEGIN", b"INSERT INTO idlers VALUES (1)", b"SELECT pg_sleep(0.7)", b"SELECT 1"):
        await session.ask(frontend.query(query))
    assert gateway.site.admin.is_locked("idlers")
    (message,) = await session.until_lost()
    error = message.error
    assert (error.severity, error.sqlstate, error.message) == ("FATAL", "25P03", "idle transaction timeout")
    assert error.detail == "idle_transaction_timeout = 0.3 s."
    await until(lambda: not gateway.site.admin.is_locked("idlers"))
    assert await first.fetchval("SELECT count(*) FROM idlers") == 0
    assert gateway.counters()["backends"] == 1


async def test_a_failed_transaction_is_idle_too(start: Start, pooled: Way) -> None:
    gateway = await start(idle_transaction_timeout=0.1, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    assert await session.ask(frontend.query(b"BEGIN; SELECT 1/0")) in ("CTEZE", "CEZE")
    (message,) = await session.until_lost()
    assert message.error.sqlstate == "25P03"


SCRAM_CHOICE = frontend.sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=abcdefghijklmnop")


@pytest.mark.parametrize(
    "octets",
    [STARTUP[:3], STARTUP[:20], STARTUP, STARTUP + b"p\0", STARTUP + SCRAM_CHOICE, b"\0\0\0\x08\x04\xd2\x16\x2f"],
    ids=["length", "half", "whole", "half answer", "half login", "tls"],
)
async def test_client_login_timeout(start: Start, pooled: Way, octets: bytes) -> None:
    gateway = await start(client_login_timeout=0.3)
    session = await RawSession.open(gateway, pooled)
    session.reads_messages = False
    session.send(octets)
    await until(session.is_lost.is_set)
    assert b"VFATAL\0C57014\0Mclient_login_timeout\0Dclient_login_timeout = 0.3 s.\0" in session.octets
    await until(lambda: gateway.counts(sessions=0, admitted=0))


async def test_a_client_that_says_nothing(start: Start, pooled: Way) -> None:
    gateway = await start(client_login_timeout=0.3)
    silent = await RawSession.open(gateway, pooled)
    if pooled == "quic":
        # The gateway knows of a stream when a frame of it comes, or of one that was opened after it.
        later = await RawSession.open(gateway, pooled)
        later.send(STARTUP[:1])
        await until(lambda: gateway.counts(sessions=2, quic_streams=2))
    (message,) = await silent.until_lost()
    assert message.error.message == "client_login_timeout"
    await until(lambda: gateway.counts(sessions=0))


async def test_server_connect_timeout(start: Start, pooled: Way) -> None:
    async with silence() as port:
        gateway = await start(
            databases={DATABASE: f"host=127.0.0.1 port={port}"}, server_connect_timeout=0.3, client_login_timeout=1
        )
        with pytest.raises(asyncpg.PostgresError, match=r"client_login_timeout \(server down\)") as caught:
            await gateway.connect(pooled)
        assert caught.value.sqlstate == "08001"
        assert caught.value.detail is not None
        assert caught.value.detail.endswith(
            f"connect timeout: no connection to 127.0.0.1:{port} within server_connect_timeout = 0.3 s."
        )
        await until(lambda: gateway.counts(connecting=0))


async def test_a_login_does_not_wait_longer_for_postgres_than_it_may(start: Start, pooled: Way) -> None:
    async with silence() as port:
        gateway = await start(databases={DATABASE: f"host=127.0.0.1 port={port}"}, client_login_timeout=0.5)
        with pytest.raises(asyncpg.QueryCanceledError, match="client_login_timeout"):
            await gateway.connect(pooled)
        assert gateway.counts(admitted=0)
        # The attempt goes on for whoever comes next, until server_connect_timeout or the end of the gateway.
        assert gateway.counts(connecting=1)
        await gateway.close()


async def test_cancel_wait_timeout(start: Start, pooled: Way) -> None:
    """A backend that does not become idle in time after its client has vanished is given up."""
    gateway = await start(default_pool_size=1, cancel_wait_timeout=0.3, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    # Postgres is deaf to cancels while it does this, and then to all but the end of the function.
    deaf = b"""DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(0.7); EXIT; EXCEPTION WHEN query_canceled THEN NULL; END;
    END LOOP; END $$"""
    session.send(frontend.query(deaf))
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    session.abort()
    await until(lambda: gateway.counts(backends=0, cancels=0))
    other = await gateway.connect(pooled)
    assert await other.fetchval("SELECT 1") == 1
    await until(lambda: not gateway.site.admin.running("pg_sleep"))


async def test_timeouts_that_are_off(start: Start, pooled: Way) -> None:
    off = ("query_wait_timeout", "client_login_timeout", "server_connect_timeout", "server_idle_timeout")
    gateway = await start(**dict.fromkeys((*off, "cancel_wait_timeout", "idle_transaction_timeout"), 0))
    session = await gateway.connect(pooled, password=PASSWORD)
    async with session.transaction():
        assert await session.fetchval("SELECT 1") == 1
    with pytest.raises(TimeoutError):
        await session.execute("SELECT pg_sleep(60)", timeout=0.05)
    assert await session.fetchval("SELECT 1") == 1


async def last_words(session: RawSession) -> tuple[str, str, str]:
    """The error with which a session ends."""
    (error,) = [message.error for message in await session.until_lost() if message.kind == "E"]
    return error.severity, error.sqlstate, error.message


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
async def test_query_timeout(start: Start, pooled: Way, mode: str) -> None:
    """The query does not go on without its session."""
    gateway = await start(default_pool_size=1, query_timeout=0.5, pool_mode=mode, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    assert await session.ask(SELECT) == "TDCZI"
    session.send(frontend.query(b"SELECT pg_sleep(60)"))
    assert await last_words(session) == ("FATAL", "57014", "query timeout")
    await until(lambda: not gateway.site.admin.running("pg_sleep"))
    other = await gateway.connect(pooled)
    assert await other.fetchval("SELECT 1 FROM pg_sleep(0.1)") == 1
    assert gateway.counts(backends=1)


async def test_query_timeout_while_it_waits(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, query_timeout=0.5, auth_type="trust")
    holder, waiting = await gateway.connect(pooled), await RawSession.start(gateway, pooled)
    async with holder.transaction():
        await holder.execute("SELECT 1")
        waiting.send(SELECT)
        assert await last_words(waiting) == ("FATAL", "57014", "query_timeout")
        assert await holder.fetchval("SELECT 1") == 1


async def test_transaction_timeout(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, transaction_timeout=0.5, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    assert await session.ask(frontend.query(b"BEGIN; CREATE TABLE too_slow (a int)")) == "CCZT"
    session.send(frontend.query(b"SELECT pg_sleep(60)"))
    assert await last_words(session) == ("FATAL", "25P04", "transaction timeout")
    other = await gateway.connect(pooled)
    assert await other.fetchval("SELECT to_regclass('too_slow')") is None


async def test_client_idle_timeout(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1, client_idle_timeout=0.5, auth_type="trust")
    session = await RawSession.start(gateway, pooled)
    inside = await RawSession.start(gateway, pooled)
    assert await inside.ask(frontend.query(b"BEGIN")) == "CZT"
    assert await inside.ask(SELECT) == "TDCZT"
    assert await last_words(session) == ("FATAL", "57P05", "client_idle_timeout")
    assert await inside.ask(frontend.query(b"COMMIT")) == "CZI"


async def test_timeouts_of_the_user_override(start: Start, pooled: Way) -> None:
    gateway = await start(
        default_pool_size=1,
        client_idle_timeout=0.3,
        query_timeout=0.3,
        transaction_timeout=0.3,
        sections=f"[users]\n{USER} = client_idle_timeout=60 query_timeout=60 transaction_timeout=60\n",
    )
    session = await gateway.connect(pooled)
    assert await session.fetchval("SELECT 1 FROM pg_sleep(0.6)") == 1
