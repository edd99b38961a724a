"""The whole client where UDP is swallowed, to a Postgres that is none: asyncpg, its pools and cancels, and the cap."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.both_ways import both_ways, trust
from helpers.fake_gateway import Sink
from helpers.fake_postgres import FakePostgres
from helpers.tcp_gateway import TcpGateway
from helpers.trunks import until
from pgtrunk import (
    GatewayUnreachable,
    StreamManager,
    TrunkFull,
    UdpBlocked,
    UsageError,
    balancer,
    gateways,
    retry_safe,
)
from pgtrunk.backoff import Backoff
from pgtrunk.sidecar import Sidecar, UnixEndpoint
from pgtrunk.tcp.blockage import Blockage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from helpers.both_ways import BothWays
    from pgtrunk.manager import EarlyData

DSN = "postgresql://app:secret@/shop"


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Sockets that nobody has closed warn when they are collected, and warnings are errors."""
    gc.collect()
    yield
    gc.collect()


@asynccontextmanager
async def trunk(
    *, tls: bool = True, silent: bool = True, **settings: Any
) -> AsyncIterator[tuple[StreamManager, BothWays, FakePostgres]]:
    """A manager with little patience."""
    postgres = FakePostgres()
    async with both_ways(postgres, silent=silent, tls=tls) as gateway:
        manager = StreamManager(gateway.name, **trust(), **({"tickets": None} | settings))
        manager._dialer._head_start = 0.1
        manager._dialer.blockage = Blockage(Backoff(base=0.05, ceiling=0.2))
        tasks = asyncio.all_tasks()
        async with manager:
            yield manager, gateway, postgres
        await until(lambda: asyncio.all_tasks() == tasks)


async def test_sessions_queries_cancels_and_their_end() -> None:
    async with trunk() as (manager, gateway, postgres):
        connection = await manager.connect(DSN)
        assert await connection.fetchval("select 1") == 1
        assert manager.stats().tcp.in_use == 1
        assert manager.stats().tcp.udp_blocked
        assert manager.stats().connections.ready == 1
        with pytest.raises(asyncio.TimeoutError):
            await connection.execute("sleep", timeout=0.05)
        assert await connection.fetchval("select 1") == 1
        assert postgres.cancels == [1]
        await connection.close()
        await until(lambda: manager.stats().tcp.in_use == 0)
        assert gateway.quic.drivers == []


async def test_all_of_a_pool_at_once_and_no_more_than_the_cap() -> None:
    async with trunk(tcp_connections=10) as (manager, gateway, _):
        async with manager.create_pool(DSN, min_size=10, max_size=10) as pool:
            assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(200))) == [1] * 200
            assert manager.stats().tcp.in_use == 10
        await until(lambda: gateway.tcp.open == 0)


async def test_who_comes_when_the_cap_is_reached_waits_in_order_and_is_told_why() -> None:
    async with trunk(tcp_connections=2) as (manager, _, postgres):
        sessions = [await manager.connect(DSN) for _ in range(2)]
        with pytest.raises(TrunkFull, match=r"tcp_connections=2 decided; close sessions sooner, or raise it"):
            await manager.connect(DSN, timeout=0.1)
        came: list[int] = []

        async def come(number: int) -> None:
            session = await manager.connect(DSN)
            came.append(number)
            await session.close()

        waiting = []
        for number in range(4):
            waiting.append(asyncio.ensure_future(come(number)))
            await asyncio.sleep(0.01)
        assert came == []
        # A cancel does not wait for the query that it is to end.
        with pytest.raises(asyncio.TimeoutError):
            await sessions[0].execute("sleep", timeout=0.05)
        await until(lambda: postgres.cancels == [1])
        await sessions[0].close()
        await asyncio.gather(*waiting)
        assert came == [0, 1, 2, 3]
        await sessions[1].close()


async def test_a_small_cap_of_streams_does_not_keep_the_other_one_from_being_used() -> None:
    async with trunk(connections=2, streams_per_connection=3, tcp_connections=5) as (manager, _, _postgres):
        sessions = await asyncio.gather(*(manager.connect(DSN) for _ in range(5)))
        with pytest.raises(TrunkFull):
            await manager.connect(DSN, timeout=0.1)
        for session in sessions:
            await session.close()


async def test_sessions_move_back_without_an_error_when_udp_is_let_through() -> None:
    async with trunk() as (manager, gateway, _), manager.create_pool(DSN, min_size=4, max_size=4) as pool:
        assert manager.stats().tcp.in_use == 4
        kept = await manager.connect(DSN)
        held = await pool.acquire()
        gateway.udp.is_silent = False
        # Those that lie idle go at once; one that is lent out, when it comes back; what is not a pool's stays.
        await until(lambda: manager.stats().sessions.moved == 3)
        assert await held.fetchval("select 1") == 1
        await pool.release(held)
        assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(40))) == [1] * 40
        assert await kept.fetchval("select 1") == 1
        await until(lambda: manager.stats().tcp.in_use == 1)
        assert len(gateway.quic.driver.streams) == 4
        stats = manager.stats()
        assert (stats.tcp.fallbacks, stats.tcp.returns, stats.tcp.udp_blocked) == (1, 1, 0)
        assert stats.connections.goaways == 0
        assert stats.sessions.lost == 0
        await kept.close()


@pytest.mark.parametrize("when", ["idle", "in a transaction", "running"])
async def test_errors_say_whether_a_retry_is_safe(when: str) -> None:
    async with trunk() as (manager, gateway, postgres):
        session = await manager.connect(DSN)
        if when == "in a transaction":
            await session.execute("begin")
        query: asyncio.Future[Any] | None = None
        if when == "running":
            query = asyncio.ensure_future(session.execute("sleep"))
            await until(lambda: postgres.queries == ["sleep"])
        gateway.tcp.connections[-1].transport.abort()
        if query is None:
            await until(session.is_closed)
            query = asyncio.ensure_future(session.execute("select 1"))
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError)) as caught:
            await query
        assert retry_safe(caught.value) == (when != "running")


async def test_a_gateway_that_dies_and_comes_back() -> None:
    async with trunk() as (manager, gateway, _):
        session = await manager.connect(DSN)
        await gateway.tcp.vanish()
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError)):
            await session.fetchval("select 1")
        waiting = asyncio.ensure_future(manager.connect(DSN))
        await asyncio.sleep(0.1)
        await gateway.tcp.listen()
        session = await waiting
        assert await session.fetchval("select 1") == 1
        await session.close()


@pytest.mark.parametrize("by", ["asyncpg", "asyncpg without early data", "the sidecar"])
async def test_sessions_that_find_their_gateway_dead_are_opened_at_another(by: str, tmp_path: Path) -> None:
    async with TcpGateway(FakePostgres()) as near, TcpGateway(FakePostgres()) as far:
        places = [f"127.0.0.1:{each.port}" for each in (near, far)]
        early: EarlyData = "off" if by == "asyncpg without early data" else "login"
        settings: dict[str, Any] = {"transport": "tcp", "load_balance_hosts": "disable", "early_data": early}
        manager = StreamManager(places, **trust(), **settings, connect_timeout=60, acquire_timeout=60)
        async with manager, Sidecar(manager, [UnixEndpoint(str(tmp_path))]):

            async def connect() -> asyncpg.Connection:
                if by == "the sidecar":
                    return await asyncpg.connect(DSN, host=str(tmp_path), port=5432)
                return await manager.connect(DSN)

            session = await connect()
            await near.vanish()
            await until(session.is_closed)
            async with asyncio.timeout(30):
                sessions = await asyncio.gather(*(connect() for _ in range(3)))
            assert [await each.fetchval("select 1") for each in sessions] == [1, 1, 1]
            assert all(each.opened for each in manager.stats().gateways)
            for each in sessions:
                await each.close()


async def test_sessions_return_to_a_gateway_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "LOOK", 0.1)
    monkeypatch.setattr(gateways, "SPARED", 0.1)
    monkeypatch.setattr(gateways, "PATIENCE", Backoff(base=0.1, ceiling=0.2))
    async with TcpGateway(FakePostgres()) as near, TcpGateway(FakePostgres()) as far:
        places = [f"127.0.0.1:{each.port}" for each in (near, far)]
        async with (
            StreamManager(places, transport="tcp", load_balance_hosts="disable", **trust()) as manager,
            manager.create_pool(DSN, min_size=2, max_size=2) as pool,
        ):
            await near.vanish()
            await until(lambda: manager.stats().sessions.lost == 2)
            async with pool.acquire() as one, pool.acquire() as other:
                assert [await each.fetchval("select 1") for each in (one, other)] == [1, 1]
            assert far.open == 2
            await near.listen()
            await until(lambda: far.open == 0)
            assert await pool.fetchval("select 1") == 1
            assert manager.stats().sessions.moved >= 2
            assert [each.connections for each in manager.stats().gateways] == [1, 0]


async def test_a_gateway_without_tls_says_what_to_do() -> None:
    words = "UDP to .* is not answered, and TCP there does not offer TLS: .*client_tls_sslmode=require"
    async with trunk(tls=False, connect_timeout=0.5) as (manager, gateway, _):
        with pytest.raises(UdpBlocked, match=words):
            await manager.connect(DSN)
        assert gateway.tcp.protocols == []


async def test_the_transport_that_is_asked_for() -> None:
    async with trunk(transport="tcp", silent=False) as (manager, gateway, _):
        transport, protocol = await manager.open_stream(Sink)
        assert transport.get_extra_info("transport") == "tcp"
        transport.close()
        await protocol.lost
        assert gateway.quic.drivers == []
    async with trunk(transport="quic", silent=False) as (manager, gateway, _):
        transport, protocol = await manager.open_stream(Sink)
        assert transport.get_extra_info("transport") == "quic"
        transport.close()
        await protocol.lost
        assert gateway.tcp.connections == []


async def test_nothing_is_left_where_nobody_answers() -> None:
    async with trunk(connect_timeout=0.3, acquire_timeout=0.5) as (manager, gateway, _):
        await gateway.tcp.vanish()
        with pytest.raises(GatewayUnreachable, match="over TCP"):
            await manager.connect(DSN)


@pytest.mark.parametrize("wrong", [{"transport": "udp"}, {"transport": None}, {"tcp_connections": 0}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        StreamManager("gw.test", **wrong)
