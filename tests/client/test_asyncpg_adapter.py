"""asyncpg over streams: sessions, cancels, pools, timeouts; and that each way to end a session frees its slot."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.cancelling import Moment, cancel_at, cancel_everywhere
from helpers.fake_gateway import FakeGateway
from helpers.fake_postgres import FakePostgres
from helpers.trunks import turns, until, until_idle
from pgtrunk import (
    AcquireTimeout,
    GatewayUnreachable,
    LoginTimeout,
    SessionLost,
    StreamManager,
    TrunkClosed,
    UsageError,
)
from pgtrunk.asyncpg_adapter import StreamLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

DSN = "postgresql://app:secret@/shop"


class World:
    """A manager, the gateway that it dials, and the Postgres behind that."""

    def __init__(self, manager: StreamManager, gateway: FakeGateway, postgres: FakePostgres) -> None:
        self.trunk = manager
        self.gateway = gateway
        self.postgres = postgres

    async def idle(self) -> None:
        """Waits until nothing is in use any more, at either end."""
        assert self.trunk._trunk is not None
        await until_idle(self.trunk._trunk)
        await turns()
        assert self.gateway.open_streams == 0
        assert self.postgres.sessions == {}


@asynccontextmanager
async def world(*, connections: int = 1, streams: int = 2, **settings: Any) -> AsyncIterator[World]:
    postgres = FakePostgres()
    gateway = FakeGateway(postgres)
    manager = StreamManager(
        "gw.test",
        connections=connections,
        streams_per_connection=streams,
        dangerously_skip_certificate_verification=True,
        **settings,
    )
    manager._dialer.dial = gateway.connect  # type: ignore[method-assign]
    async with manager:
        yield World(manager, gateway, postgres)


# Sessions.


async def test_a_session_logs_in_runs_and_closes() -> None:
    async with world() as it:
        connection = await it.trunk.connect(DSN)
        assert await connection.fetchval("select 1") == 1
        assert await connection.execute("set x") == "OK"
        assert it.postgres.startups[0].parameters["user"] == "app"
        assert it.postgres.startups[0].parameters["database"] == "shop"
        assert it.trunk.stats().streams_in_use == 1
        await connection.close()
        await it.idle()


async def test_environment_that_is_about_sockets_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere.example.net")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLNEGOTIATION", "direct")
    monkeypatch.setenv("PGUSER", "from_environment")
    monkeypatch.setenv("PGDATABASE", "also")
    async with world() as it:
        connection = await it.trunk.connect()
        assert it.postgres.startups[0].parameters["user"] == "from_environment"
        assert it.postgres.startups[0].parameters["database"] == "also"
        await connection.close()


async def test_a_password_file_is_not_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pgpass"
    file.write_text("localhost:*:*:*:meant for this machine\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    seen: list[Any] = []

    class Looking(asyncpg.Connection):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            seen.append(args[-1].password)

    async with world() as it:
        await (await it.trunk.connect("postgresql://app@/shop", connection_class=Looking)).close()
    assert seen == [None]


@pytest.mark.parametrize(
    ("dsn", "arguments", "words"),
    [
        ("postgresql://app:secret@db.example.net/shop", {}, "goes to gateway gw.test:6432"),
        (DSN, {"host": "db"}, "name no host"),
        (DSN, {"port": 5432}, "name no port"),
        (DSN, {"passfile": "x"}, "passfile"),
        (DSN, {"ssl": True}, "told not to verify"),
    ],
)
async def test_what_contradicts_the_trunk_is_refused(dsn: str, arguments: dict[str, Any], words: str) -> None:
    async with world() as it:
        with pytest.raises(UsageError, match=words):
            await it.trunk.connect(dsn, **arguments)
        with pytest.raises(UsageError, match=words):
            it.trunk.create_pool(dsn, **arguments)
        assert it.gateway.dials == 0


async def test_the_loop_cannot_be_given() -> None:
    async with world() as it:
        with pytest.raises(UsageError, match="loop="):
            await it.trunk.connect(DSN, loop=asyncio.get_running_loop())
        with pytest.raises(UsageError, match="connect="):
            it.trunk.create_pool(DSN, connect=it.trunk.connect)


async def end_by_close(connection: Any) -> None:
    await connection.close()


async def end_by_terminate(connection: Any) -> None:
    connection.terminate()


async def end_by_reset(connection: Any) -> None:
    with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
        await connection.execute("die")
    assert isinstance(caught.value.__cause__, SessionLost)
    assert connection.is_closed()


async def end_by_timeout_of_close(connection: Any) -> None:
    sleeping = asyncio.create_task(connection.execute("sleep"))
    await turns()
    connection.terminate()
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await sleeping


@pytest.mark.parametrize("end", [end_by_close, end_by_terminate, end_by_reset, end_by_timeout_of_close])
async def test_every_end_of_a_session_frees_its_slot(end: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async with world(streams=1) as it:
        for _ in range(3):
            await end(await it.trunk.connect(DSN))
            await it.idle()


async def test_a_lost_connection_closes_its_sessions_with_the_cause() -> None:
    async with world() as it:
        idle, busy = await it.trunk.connect(DSN), await it.trunk.connect(DSN)
        sleeping = asyncio.create_task(busy.execute("sleep"))
        await turns()
        it.gateway.connections[0].lose("idle for 10 s")
        with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
            await sleeping
        assert isinstance(caught.value.__cause__, SessionLost)
        assert idle.is_closed()
        assert busy.is_closed()
        assert it.trunk.stats().streams_lost == 2
        await (await it.trunk.connect(DSN)).close()


async def test_a_connection_that_is_dropped_frees_its_slot() -> None:
    async with world(streams=1) as it:
        connection = await it.trunk.connect(DSN)
        with pytest.warns(ResourceWarning, match="unclosed connection"):
            del connection
        await it.idle()


async def test_the_loop_of_a_session_is_found_as_the_real_one() -> None:
    async with world() as it:
        loop = asyncio.get_running_loop()
        assert it.trunk._trunk is not None
        proxy: Any = StreamLoop(it.trunk._trunk, asyncio.timeout(None), None, 1.0)
        assert proxy == loop
        assert loop == proxy
        assert proxy != object()
        assert {loop: 1}[proxy] == 1
        assert proxy.time() == pytest.approx(loop.time(), abs=10)
        with pytest.raises(UsageError, match="TCP"):
            await proxy.create_connection(asyncio.Protocol, "h", 1)


# Cancels.


async def test_a_query_is_cancelled_on_its_own_connection_with_all_streams_in_use() -> None:
    async with world(streams=1) as it:
        connection = await it.trunk.connect(DSN)
        waiting = asyncio.create_task(it.trunk.connect(DSN))
        await turns()
        with pytest.raises(asyncio.TimeoutError):
            await connection.execute("sleep", timeout=0.01)
        assert await connection.fetchval("select 1") == 1
        assert it.postgres.cancels == [1]
        stats = it.trunk.stats()
        assert (stats.cancels_sent, stats.cancels_in_use, stats.waiting) == (1, 0, 1)
        await connection.close()
        await (await waiting).close()
        await it.idle()


async def test_a_cancel_that_is_never_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk.asyncpg_adapter.CANCEL_TIMEOUT", 0.05)
    async with world() as it:
        it.postgres.hears_cancels = False
        connection = await it.trunk.connect(DSN)
        with pytest.raises(asyncio.TimeoutError):
            await connection.execute("sleep", timeout=0.01)
        await until(lambda: it.postgres.cancels and not it.trunk.stats().cancels_in_use)
        connection.terminate()
        await it.idle()


async def test_a_session_that_came_through_a_fork_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it:
        assert it.trunk._trunk is not None
        proxy = StreamLoop(it.trunk._trunk, asyncio.timeout(None), None, 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: 4711)
            with pytest.raises(UsageError, match="after the fork"):
                await proxy.create_unix_connection(asyncio.Protocol)
        assert it.gateway.dials == 0


# Timeouts.


async def test_the_wait_for_a_stream_is_bounded_by_the_stricter_limit_and_the_error_names_it() -> None:
    async with world(streams=1, acquire_timeout=0.02) as it:
        connection = await it.trunk.connect(DSN)
        with pytest.raises(AcquireTimeout, match=r"within acquire_timeout=0\.02 s"):
            await it.trunk.connect(DSN, timeout=5)
        with pytest.raises(AcquireTimeout, match=r"within timeout=0\.01 s"):
            await it.trunk.connect(DSN, timeout=0.01)
        await connection.close()
        await it.idle()


async def test_a_login_that_does_not_end_is_bounded_by_timeout() -> None:
    async with world(acquire_timeout=0.02) as it:
        it.postgres.logs_in = False
        with pytest.raises(LoginTimeout, match=r"timeout=0\.05 s: it had its stream") as caught:
            await it.trunk.connect(DSN, timeout=0.05)
        assert isinstance(caught.value, TimeoutError)
        await it.idle()


async def test_a_password_function_that_does_not_end_is_bounded_by_timeout() -> None:
    async def forever() -> str:
        await asyncio.Event().wait()
        return ""

    async with world() as it:
        with pytest.raises(LoginTimeout, match="no stream had been asked for yet"):
            await it.trunk.connect("postgresql://app@/shop", password=forever, timeout=0.01)
        assert it.gateway.dials == 0


async def test_an_unreachable_gateway_is_not_hidden_by_asyncpg() -> None:
    async with world() as it:
        it.gateway.script.append(GatewayUnreachable("nothing listens there"))
        with pytest.raises(GatewayUnreachable, match="nothing listens there"):
            await it.trunk.connect(DSN)


# Pools.


async def test_a_pool_works_as_a_context_and_awaited() -> None:
    async with world(connections=2, streams=4) as it:
        async with it.trunk.create_pool(DSN, min_size=2, max_size=6) as pool:
            assert it.trunk.stats().streams_in_use == 2
            assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(20))) == [1] * 20
            assert it.trunk.stats().streams_in_use == 6
        await it.idle()
        pool = await it.trunk.create_pool(DSN, min_size=1, max_size=1)
        assert await pool.fetchval("select 1") == 1
        await pool.close()
        await it.idle()


async def test_a_pool_does_not_reset_unless_it_is_told_to() -> None:
    async with world(streams=4) as it:
        async with it.trunk.create_pool(DSN, min_size=1, max_size=1) as pool:
            await pool.execute("first")
        assert it.postgres.queries == ["first"]
        async with it.trunk.create_pool(DSN, min_size=1, max_size=1, reset=None) as pool:
            await pool.execute("second")
        assert any("RESET ALL" in query for query in it.postgres.queries)


async def test_a_pool_replaces_what_was_lost_expired_or_terminated() -> None:
    async with world(streams=2) as it:
        async with it.trunk.create_pool(DSN, min_size=0, max_size=2) as pool:
            await asyncio.gather(*(pool.execute("first") for _ in range(2)))
            it.gateway.connections[0].lose()
            await turns()
            assert await pool.fetchval("select 1") == 1
            await pool.expire_connections()
            assert await pool.fetchval("select 1") == 1
        await it.idle()
        pool = await it.trunk.create_pool(DSN, min_size=2, max_size=2)
        pool.terminate()
        await it.idle()


async def test_new_arguments_of_a_pool_are_checked_when_they_are_used() -> None:
    async with world() as it, it.trunk.create_pool(DSN, min_size=0, max_size=1) as pool:
        pool.set_connect_args("postgresql://app@elsewhere/shop")
        with pytest.raises(UsageError, match="name no host"):
            await pool.fetchval("select 1")


# Before, after, and cancelled at every await.


async def test_a_closed_trunk_says_so() -> None:
    async with world() as it:
        connection = await it.trunk.connect(DSN)
        pool = await it.trunk.create_pool(DSN, min_size=1, max_size=1)
    assert connection.is_closed()
    with pytest.raises(TrunkClosed):
        await it.trunk.connect(DSN)
    with pytest.raises(TrunkClosed):
        it.trunk.create_pool(DSN)
    with pytest.raises(TrunkClosed):
        await pool.fetchval("select 1")
    pool.terminate()


async def test_cancelling_connect_anywhere_loses_nothing() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with world(streams=1) as it:

            async def connect_and_close() -> None:
                await (await it.trunk.connect(DSN)).close()

            hit = await cancel_at(connect_and_close(), at, moment)
            await it.idle()
            await connect_and_close()
            await it.idle()
            return hit

    assert await cancel_everywhere(scenario) == 3  # for the slot, for the login, for the end


async def test_cancelling_a_query_anywhere_loses_nothing() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with world(streams=1) as it:
            connection = await it.trunk.connect(DSN)

            async def query() -> None:
                await connection.execute("quick")
                await connection.fetchval("select 1")

            hit = await cancel_at(query(), at, moment)
            assert await connection.fetchval("select 1") == 1
            await connection.close()
            await it.idle()
            return hit

    assert await cancel_everywhere(scenario) >= 3


async def test_cancelling_a_pool_anywhere_loses_nothing() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with world(streams=3) as it:

            async def use_pool() -> None:
                async with it.trunk.create_pool(DSN, min_size=2, max_size=3) as pool:
                    assert await pool.fetchval("select 1") == 1

            hit = await cancel_at(use_pool(), at, moment)
            await it.idle()
            await use_pool()
            await it.idle()
            return hit

    assert await cancel_everywhere(scenario) >= 4
