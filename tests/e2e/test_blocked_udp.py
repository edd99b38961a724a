"""A network that lets no UDP through, before a real gateway: sessions go over TLS over TCP, and come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from helpers.datagrams import Relay
from helpers.every_front import settings_for
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager
from pgtrunk.backoff import Backoff
from pgtrunk.sidecar import Sidecar, UnixEndpoint
from pgtrunk.tcp.blockage import Blockage

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start
    from helpers.site import Site

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}


@contextlib.asynccontextmanager
async def network(start: Start, site: Site) -> AsyncIterator[tuple[LocalGateway, Relay]]:
    """A gateway whose port over UDP is that of TCP, as seen from clients; nothing is lost yet."""
    while True:
        gateway = await start(**settings_for("trunk-tcp", site))
        try:
            udp = Relay(gateway.quic.port, own_port=gateway.port)
        except OSError:
            continue
        break
    try:
        yield gateway, udp
    finally:
        udp.close()


async def trunk(gateway: LocalGateway, **settings: Any) -> StreamManager:
    """One with little patience. It is closed with the gateway."""
    ca = str(gateway.site.certificates.ca_cert)
    manager = StreamManager(f"127.0.0.1:{gateway.port}", ca_file=ca, **settings)
    manager._dialer._head_start = 0.2
    manager._dialer.blockage = Blockage(Backoff(base=0.1, ceiling=0.2))
    await manager.open()
    gateway.trunks.append(manager)
    return manager


async def test_blocked_and_let_through_under_load(start: Start, site: Site) -> None:
    async with network(start, site) as (gateway, udp):
        udp.is_silent = True
        manager = await trunk(gateway)
        done = 0

        async def work() -> None:
            nonlocal done
            while not has_ended:
                async with pool.acquire() as session, session.transaction():
                    assert await session.fetchval("select $1::int", done) is not None
                done += 1

        has_ended = False
        async with manager.create_pool(min_size=8, max_size=8, **LOGIN) as pool:
            load = [asyncio.ensure_future(work()) for _ in range(8)]
            await until(lambda: done > 50)
            assert manager.stats().tcp.in_use == 8
            udp.is_silent = False
            await until(lambda: manager.stats().tcp.in_use == 0)
            before = done
            await until(lambda: done > before + 50)
            has_ended = True
            await asyncio.gather(*load)
        stats = manager.stats()
        assert (stats.tcp.fallbacks, stats.tcp.returns) == (1, 1)
        assert (stats.sessions.lost, stats.sessions.moved) == (0, 8)
        assert stats.connections.failed == 0


async def test_blocked_after_it_was_let_through(start: Start, site: Site) -> None:
    """The client has a ticket, and takes its connection for open before anybody has answered."""
    async with network(start, site) as (gateway, udp):
        manager = await trunk(gateway, max_idle=0.1)
        session = await manager.connect(**LOGIN)
        assert await session.fetchval("select 1") == 1
        await session.close()
        await until(lambda: manager.stats().connections.ready == 0)
        udp.is_silent = True
        session = await manager.connect(**LOGIN)
        assert await session.fetchval("select 1") == 1
        assert manager.stats().tcp.in_use == 1
        await session.close()


async def test_blocked_in_the_middle_of_a_session(start: Start, site: Site) -> None:
    """What is on QUIC waits for its connection's end; what comes meanwhile goes over TCP."""
    async with network(start, site) as (gateway, udp):
        manager = await trunk(gateway)
        stuck = await manager.connect(**LOGIN)
        udp.is_silent = True
        query = asyncio.ensure_future(stuck.fetchval("select 1"))
        await until(lambda: manager.stats().connections.suspect > 0)
        session = await manager.connect(**LOGIN)
        assert await session.fetchval("select 1") == 1
        assert manager.stats().tcp.in_use == 1
        udp.is_silent = False
        assert await query == 1
        for each in (stuck, session):
            await each.close()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
async def test_a_driver_and_its_cancel_through_the_sidecar(start: Start, site: Site, transport: Any) -> None:
    async with network(start, site) as (gateway, udp):
        udp.is_silent = True
        manager = await trunk(gateway, transport=transport)
        folder = str(gateway.site.place())
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "dbname": DATABASE, "host": folder}
        async with Sidecar(manager, [UnixEndpoint(folder)]):
            async with await psycopg.AsyncConnection.connect(**login, autocommit=True) as connection:
                task = asyncio.ensure_future(connection.execute("select pg_sleep(60)"))
                await until(lambda: gateway.counts(leased=1))
                # As psql does when somebody presses Ctrl-C.
                await connection.cancel_safe(timeout=20)
                with pytest.raises(psycopg.errors.QueryCanceled):
                    await task
                cursor = await connection.execute("select 1")
                assert await cursor.fetchone() == (1,)
            assert manager.stats().tcp.in_use <= 1
