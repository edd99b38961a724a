"""A gateway drains while another one takes its place: applications see nothing of it; and who cannot move."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from helpers.datagrams import Relay, relay
from helpers.pool_load import PoolLoad
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager
from pgtrunk.sidecar import Sidecar, TcpEndpoint
from pgtrunk_gateway import moving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helpers.gateways import LocalGateway, Start

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE}


class Pair:
    """Two gateways behind one address; new connections are led to the second once ``turn`` is called."""

    def __init__(self, old: LocalGateway, new: LocalGateway, way: Relay) -> None:
        self.old, self.new, self.way = old, new, way

    def turn(self) -> None:
        self.way.lead_to(self.new.quic.port)

    def trunk(self, **settings: Any) -> StreamManager:
        ca = str(self.old.site.certificates.ca_cert)
        return StreamManager(f"127.0.0.1:{self.way.port}", **{"ca_file": ca, "connections": 1, **settings})


@asynccontextmanager
async def pair(start: Start, **settings: Any) -> AsyncIterator[Pair]:
    old, new = await start(**settings), await start(**settings)
    async with relay(old.quic.port) as way:
        yield Pair(old, new, way)


@pytest.mark.parametrize("how", ["wait_for_clients", "wait_for_transactions"])
@pytest.mark.parametrize("one_in", [0, 20])
async def test_no_error_reaches_an_application_that_uses_a_pool(start: Start, how: str, one_in: int) -> None:
    async with pair(start) as it, it.trunk() as trunk:
        it.way.one_in = one_in
        async with trunk.create_pool(**LOGIN, min_size=4, max_size=12, timeout=30) as pool:
            load = PoolLoad(pool, 16)
            await load.progress()
            it.turn()
            stopping = asyncio.ensure_future(getattr(it.old.gateway, how)())
            await load.progress()
            async with asyncio.timeout(30):
                await stopping
            await load.progress()
            await load.end()
            assert it.old.counts(sessions=0, quic_streams=0)
            stats = trunk.stats()
            assert (stats.goaways, stats.connections_leaving) == (1, 0)
            assert stats.sessions_moved >= 1
            assert it.new.counters()["sessions"] >= 1


async def test_there_and_back_and_there_again(start: Start) -> None:
    """One gateway after the other, under load all the time."""
    first = await start()
    async with relay(first.quic.port) as way:
        trunk = StreamManager(f"127.0.0.1:{way.port}", ca_file=str(first.site.certificates.ca_cert), connections=2)
        async with trunk, trunk.create_pool(**LOGIN, min_size=2, max_size=10, timeout=30) as pool:
            load = PoolLoad(pool, 12)
            here = first
            for _ in range(4):
                await load.progress(30)
                there = await start()
                way.lead_to(there.quic.port)
                async with asyncio.timeout(30):
                    await here.gateway.wait_for_transactions()
                here = there
            await load.progress(30)
            await load.end()
            assert trunk.stats().goaways >= 4


async def test_sessions_wait_for_a_gateway_that_takes_over_late(start: Start) -> None:
    async with (
        pair(start) as it,
        it.trunk(acquire_timeout=30) as trunk,
        trunk.create_pool(**LOGIN, min_size=1, max_size=4, timeout=30) as pool,
    ):
        load = PoolLoad(pool, 4)
        await load.progress()
        stopping = asyncio.ensure_future(it.old.gateway.wait_for_clients())
        await until(lambda: trunk.stats().connections_leaving)
        await load.progress()
        coming = asyncio.ensure_future(trunk.connect(**LOGIN))
        await asyncio.sleep(0.3)
        assert not coming.done()
        it.turn()
        await (await coming).close()
        await stopping
        await load.progress()
        await load.end()


async def test_a_transaction_ends_where_it_began_and_what_is_lent_out_is_left_alone(start: Start) -> None:
    async with pair(start) as it, it.trunk() as trunk, trunk.create_pool(**LOGIN, min_size=1, max_size=2) as pool:
        async with pool.acquire() as lent:
            async with lent.transaction():
                pid = await lent.fetchval("SELECT pg_backend_pid()")
                it.turn()
                stopping = asyncio.ensure_future(it.old.gateway.wait_for_clients())
                await until(lambda: it.new.counts(quic_connections=1))
                assert await lent.fetchval("SELECT pg_backend_pid()") == pid
            assert await lent.fetchval("SELECT 1") == 1
            assert not stopping.done()
        await asyncio.wait_for(stopping, 20)
        assert await pool.fetchval("SELECT pg_backend_pid()") in it.new.backend_pids


async def test_who_knows_no_goaway_is_served_until_he_leaves(start: Start) -> None:
    async with pair(start) as it, it.trunk() as trunk:
        trunk._dialer.quic._config = replace(trunk._dialer.quic._config, alpn=("postgresql",))
        session = await trunk.connect(**LOGIN)
        it.turn()
        stopping = asyncio.ensure_future(it.old.gateway.wait_for_clients())
        await asyncio.sleep(0.3)
        assert await session.fetchval("SELECT 1") == 1
        assert (trunk.stats().goaways, trunk.stats().connections_ready) == (0, 1)
        with pytest.raises(asyncpg.CannotConnectNowError):
            await trunk.connect(**LOGIN)
        await session.close()
        await asyncio.wait_for(stopping, 20)


async def test_the_moment_ends_for_sessions_that_cannot_move(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MOMENT", 0.3)
    async with pair(start) as it, it.trunk() as trunk:
        session = await trunk.connect(**LOGIN)
        over_tcp = await it.old.connect("tcp")
        began = asyncio.get_running_loop().time()
        await it.old.gateway.wait_for_transactions()
        assert asyncio.get_running_loop().time() - began >= 0.3
        await until(lambda: session.is_closed() and over_tcp.is_closed())


async def test_a_handshake_that_ends_later_hears_of_it_too(start: Start) -> None:
    async with pair(start) as it, it.trunk() as trunk:
        it.old.gateway.moving.ask(0)
        session = await trunk.connect(**LOGIN)
        await until(lambda: trunk.stats().goaways)
        it.turn()
        assert await session.fetchval("SELECT 1") == 1
        await session.close()


async def test_behind_a_sidecar_sessions_stay_and_new_ones_go_to_the_next_gateway(start: Start) -> None:
    def ask(session: psycopg.Connection[Any]) -> int:
        row = session.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        return int(row[0])

    async with pair(start) as it, it.trunk() as trunk, Sidecar(trunk, [TcpEndpoint("127.0.0.1", 0)]) as sidecar:
        options: dict[str, Any] = {"host": "127.0.0.1", "port": sidecar.endpoints[0].port, "dbname": DATABASE}
        login = {**options, "user": USER, "password": PASSWORD, "sslmode": "disable", "gssencmode": "disable"}

        def connect() -> psycopg.Connection[Any]:
            return psycopg.connect(**login, autocommit=True)

        stays = await asyncio.to_thread(connect)
        it.turn()
        stopping = asyncio.ensure_future(it.old.gateway.wait_for_clients())
        await until(lambda: it.new.counts(quic_connections=1))
        comes = await asyncio.to_thread(connect)
        assert await asyncio.to_thread(ask, stays) in it.old.backend_pids
        assert await asyncio.to_thread(ask, comes) in it.new.backend_pids
        assert not stopping.done()
        await asyncio.to_thread(stays.close)
        await asyncio.wait_for(stopping, 20)
        await asyncio.to_thread(comes.close)
