"""Trunks to several gateways: spread over them, and what becomes of it when one is killed, drains, and returns."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

import pgtrunk
from helpers.pool_load import PoolLoad
from helpers.processes import GatewayProcess, gateway_process
from helpers.raw_session import RawSession
from helpers.silence import refusing_port, silence
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager, balancer, gateways
from pgtrunk.backoff import Backoff
from pgtrunk.sidecar import Sidecar, TcpEndpoint
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start
    from helpers.site import Site

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "LOOK", 0.4)
    monkeypatch.setattr(gateways, "SPARED", 1.0)
    monkeypatch.setattr(gateways, "PATIENCE", Backoff(base=0.2, ceiling=0.5))


def trunk_to(site: Site, *places: str, **settings: Any) -> StreamManager:
    return StreamManager(places, **{"ca_file": str(site.certificates.ca_cert), **settings})


async def pair(start: Start, **settings: Any) -> tuple[LocalGateway, LocalGateway]:
    """One on IPv4, one on IPv6."""
    return await start(**settings), await start(quic_listen_addr="::1", **settings)


def places(one: LocalGateway, other: LocalGateway) -> tuple[str, str]:
    return f"127.0.0.1:{one.quic.port}", f"[::1]:{other.quic.port}"


def connections(trunk: StreamManager) -> list[int]:
    return [gateway.connections for gateway in trunk.stats().gateways]


class Load(PoolLoad):
    """A load that tells what it may repeat, and of what it may not, what had begun before the kill was noticed."""

    def __init__(self, pool: asyncpg.Pool, workers: int) -> None:
        self.noticed_at = float("inf")
        self.repeated = 0
        self.in_flight = 0
        super().__init__(pool, workers)

    async def _work(self, worker: int) -> None:
        loop = asyncio.get_running_loop()
        while not (self.over or self.faults or self.pool.is_closing()):
            began = loop.time()
            try:
                assert await self.pool.fetchval("SELECT $1::int FROM pg_sleep(0.005)", worker) == worker
                self.served += 1
            except Exception as error:
                if pgtrunk.retry_safe(error):
                    self.repeated += 1
                elif began <= self.noticed_at and isinstance(error, asyncpg.ConnectionDoesNotExistError):
                    self.in_flight += 1
                else:
                    self.faults.append(error)
            await asyncio.sleep(0.01)

    async def end_in_peace(self) -> None:
        """Nobody has noticed anything."""
        await self.end()
        assert (self.repeated, self.in_flight) == (0, 0)


async def restarted(site: Site, process: GatewayProcess) -> GatewayProcess:
    again = await asyncio.to_thread(GatewayProcess, site, process.place, process.ini)
    await asyncio.to_thread(again.port, "quic")
    return again


async def test_one_is_killed_under_load_and_returns(site: Site) -> None:
    port = refusing_port()
    with (
        gateway_process(site, quic_listen_port=port) as one,
        gateway_process(site, quic_listen_addr="::1") as other,
    ):
        ports = await asyncio.gather(*(asyncio.to_thread(each.port, "quic") for each in (one, other)))
        assert ports[0] == port
        trunk = trunk_to(site, f"127.0.0.1:{port}", f"[::1]:{ports[1]}", connections=2, streams_per_connection=3)
        async with trunk, trunk.create_pool(**LOGIN, min_size=5, max_size=6, timeout=30) as pool:
            load = Load(pool, 6)
            await load.progress()
            assert connections(trunk) == [1, 1]

            one.send(signal.SIGKILL)
            await until(lambda: connections(trunk) == [0, 2])
            load.noticed_at = asyncio.get_running_loop().time()
            await load.progress()
            assert load.in_flight <= 3
            stats = trunk.stats().gateways
            assert (stats[0].alive, stats[1].alive, stats[1].failures) == (0, 1, 0)
            assert stats[0].last_error is not None

            repeated = load.repeated
            again = await restarted(site, one)
            try:
                await until(lambda: connections(trunk) == [1, 1] and not trunk.stats().connections_leaving)
                await load.progress()
                await load.end()
                assert load.repeated == repeated, "who moves loses nothing"
                assert trunk.stats().waiting == 0
                assert trunk.stats().connections.replaced >= 1
            finally:
                await asyncio.to_thread(again.stop)
        await until(lambda: trunk.stats().streams_in_use == 0)


async def test_one_that_drains_is_left_for_the_other_without_an_error(start: Start) -> None:
    one, other = await pair(start)
    trunk = trunk_to(one.site, *places(one, other), connections=2, streams_per_connection=6)
    async with trunk, trunk.create_pool(**LOGIN, min_size=10, max_size=12, timeout=30) as pool:
        load = Load(pool, 12)
        await load.progress()
        assert connections(trunk) == [1, 1]
        port = one.quic.port
        async with asyncio.timeout(30):
            await one.gateway.wait_for_transactions()
            assert one.counts(sessions=0, quic_streams=0)
            await one.gateway.close()
        await load.progress()
        assert connections(trunk) == [0, 2]

        back = await start(quic_listen_port=port)
        await until(lambda: connections(trunk) == [1, 1] and not trunk.stats().connections_leaving)
        await load.progress()
        await load.end_in_peace()
        assert back.counters()["sessions"] >= 1


async def test_a_single_connection_returns_to_its_place_and_in_order_to_the_first(start: Start) -> None:
    one, other = await pair(start)
    trunk = trunk_to(one.site, *places(one, other), connections=1, load_balance_hosts="disable")
    async with trunk, trunk.create_pool(**LOGIN, min_size=2, max_size=4, timeout=30) as pool:
        load = Load(pool, 4)
        await load.progress()
        assert connections(trunk) == [1, 0]
        port = one.quic.port
        async with asyncio.timeout(30):
            await one.gateway.wait_for_transactions()
            await one.gateway.close()
        await load.progress()
        assert connections(trunk) == [0, 1]
        await start(quic_listen_port=port)
        await until(lambda: connections(trunk) == [1, 0])
        await load.progress()
        await load.end_in_peace()


async def test_connections_of_one_trunk_and_of_many_are_spread(start: Start) -> None:
    one, other = await pair(start)
    async with trunk_to(one.site, *places(one, other), connections=4, streams_per_connection=1) as trunk:
        sessions = await asyncio.gather(*(trunk.connect(**LOGIN) for _ in range(4)))
        assert connections(trunk) == [2, 2]
        assert [each.quic.connections for each in (one, other)] == [2, 2]
        for session in sessions:
            await session.close()
    taken: Counter[tuple[int, ...]] = Counter()
    for _ in range(16):
        async with trunk_to(one.site, *places(one, other)) as trunk:
            session = await trunk.connect(**LOGIN)
            taken[tuple(connections(trunk))] += 1
            await session.close()
    assert set(taken) == {(1, 0), (0, 1)}, "all alike: one in 32,000"


async def test_silent_and_refusing_ones_cost_sessions_nothing(start: Start) -> None:
    one, _ = await pair(start)
    with silence() as silent:
        gone = [f"127.0.0.1:{silent.port}", f"[::1]:{refusing_port('::1')}"]
        trunk = trunk_to(
            one.site, *gone, f"127.0.0.1:{one.quic.port}", load_balance_hosts="disable", streams_per_connection=2
        )
        async with trunk:
            sessions = await asyncio.gather(*(trunk.connect(**LOGIN) for _ in range(8)))
            assert connections(trunk) == [0, 0, 4]
            assert trunk.stats().connections_failed == 0
            for session in sessions:
                await session.close()


async def test_a_cancel_goes_where_its_session_is(start: Start) -> None:
    """Neither gateway knows the other, so one that went astray would be lost."""
    one, other = await pair(start)
    trunk = trunk_to(one.site, *places(one, other), connections=2, streams_per_connection=1)
    async with trunk, Sidecar(trunk, [TcpEndpoint("127.0.0.1", 0)]) as sidecar:
        login = {"user": USER, "password": PASSWORD, "dbname": DATABASE, "sslmode": "disable", "gssencmode": "disable"}
        where: dict[str, Any] = {"host": "127.0.0.1", "port": sidecar.endpoints[0].port, **login}
        sessions = [await psycopg.AsyncConnection.connect(**where, autocommit=True) for _ in range(2)]
        assert connections(trunk) == [1, 1]
        for session in sessions:
            sleep = asyncio.ensure_future(session.execute("SELECT pg_sleep(60)"))
            await until(lambda: one.site.admin.running("pg_sleep"))
            await session.cancel_safe(timeout=20)
            with pytest.raises(psycopg.errors.QueryCanceled):
                await sleep
        for session in sessions:
            await session.close()


async def test_a_cancel_by_another_gateway_finds_its_peer(start: Start) -> None:
    one = await start(auth_type="trust", peer_id=1)
    peers = f"[peers]\n1 = host=127.0.0.1 port={one.port}"
    other = await start(quic_listen_addr="::1", auth_type="trust", peer_id=2, sections=peers)
    trunk = trunk_to(one.site, *places(one, other), connections=2, streams_per_connection=1)
    async with trunk:
        opened = [await trunk.open_numbered(RawSession) for _ in range(2)]
        ports = [each.transport.get_extra_info("peername")[1] for each in opened]
        mine, beside = (opened[ports.index(gateway.quic.port)] for gateway in (one, other))
        for each in opened:
            each.protocol.startup({})
            await each.protocol.until_ready()
        mine.protocol.send(frontend.query(b"SELECT pg_sleep(60)"))
        await until(lambda: one.site.admin.running("pg_sleep"))
        cancel = await trunk.open_numbered(RawSession, link=beside.link)
        cancel.protocol.send(mine.protocol.cancel_request())
        answers = await mine.protocol.until_ready()
        assert [each.error.sqlstate for each in answers if each.kind == "E"] == ["57014"]
        for each in opened:
            each.transport.close()
