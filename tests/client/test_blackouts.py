"""Networks that swallow everything for a while, by real QUIC on loopback: what is found, and what is lost."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.datagrams import Relay, relay
from helpers.fake_postgres import FakePostgres
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import identities
from helpers.trunks import until
from pgtrunk import StreamManager
from pgtrunk.quic.config import QuicLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DSN = "postgresql://app:secret@/shop"


@dataclass
class World:
    trunk: StreamManager
    net: Relay
    server: LoopbackServer

    @property
    def suspect(self) -> int:
        return self.trunk.stats().connections.suspect

    @property
    def lost(self) -> tuple[int, int]:
        """Connections and sessions."""
        stats = self.trunk.stats()
        return stats.connections_lost, stats.streams_lost

    async def blackout(self, seconds: float) -> None:
        self.net.is_silent = True
        await asyncio.sleep(seconds)
        self.net.is_silent = False


@asynccontextmanager
async def world(*, idle_timeout: float = 10.0, **settings: Any) -> AsyncIterator[World]:
    limits = QuicLimits(idle_timeout=idle_timeout)
    async with LoopbackServer(FakePostgres(), limits=limits) as server, relay(server.port) as net:
        settings = {"ca_data": identities()[0].pem, "max_lifetime": None} | settings
        async with StreamManager(f"127.0.0.1:{net.port}", **settings) as trunk:
            yield World(trunk, net, server)


async def test_a_dead_path_is_found_by_a_query_and_new_sessions_are_served_beside_it() -> None:
    async with world(connections=1) as it:
        old = await it.trunk.connect(DSN)
        it.net.cut()
        asked = asyncio.create_task(old.fetchval("select 1"))
        await until(lambda: it.suspect == 1)
        assert it.lost == (0, 0), "long before the idle timeout"
        new = await it.trunk.connect(DSN)
        assert await new.fetchval("select 1") == 1
        assert it.trunk.stats().connections_ready == 1
        assert not asked.done()
        it.net.mend()
        assert await asked == 1, "asked once, and answered"
        await until(lambda: it.suspect == 0)
        assert it.lost == (0, 0)
        await old.close()
        await new.close()


async def test_idle_sessions_of_a_pool_move_to_a_connection_that_answers() -> None:
    async with world(connections=1, keepalive=0.3) as it, it.trunk.create_pool(DSN, min_size=4, max_size=4) as pool:
        assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(4))) == [1] * 4
        it.net.cut()
        await until(lambda: it.trunk.stats().sessions_moved == 4)
        assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(8))) == [1] * 8
        assert it.lost == (0, 0)


async def test_a_session_that_is_being_opened_on_a_dead_path_is_opened_beside_it() -> None:
    async with world(connections=1) as it:
        old = await it.trunk.connect(DSN)
        it.net.cut()
        new = await asyncio.gather(*(it.trunk.connect(DSN) for _ in range(3)))
        assert it.suspect == 1
        assert await asyncio.gather(*(session.fetchval("select 1") for session in new)) == [1] * 3
        it.net.mend()
        assert await old.fetchval("select 1") == 1
        for session in [old, *new]:
            await session.close()


async def test_all_that_is_silent_for_a_moment_loses_nothing() -> None:
    async with world(connections=2, streams_per_connection=2) as it:
        sessions = [await it.trunk.connect(DSN) for _ in range(4)]
        asked = [asyncio.create_task(session.fetchval("select 1")) for session in sessions]
        await asyncio.sleep(0)
        await it.blackout(1.6)
        assert await asyncio.gather(*asked) == [1] * 4
        assert await asyncio.gather(*(session.fetchval("select 1") for session in sessions)) == [1] * 4
        assert it.lost == (0, 0)
        for session in sessions:
            await session.close()


async def test_a_path_that_stays_dead_ends_at_the_idle_timeout_and_others_are_there_before() -> None:
    async with world(connections=1, idle_timeout=3.0) as it:
        old = await it.trunk.connect(DSN)
        it.net.cut()
        asked = asyncio.create_task(old.fetchval("select 1"))
        await until(lambda: it.suspect == 1)
        new = await it.trunk.connect(DSN)
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await asked
        assert await new.fetchval("select 1") == 1
        assert it.lost == (1, 1)
        await new.close()


async def test_min_connections_outlive_the_idle_timeout() -> None:
    async with world(min_connections=2, idle_timeout=0.6) as it:
        await until(lambda: it.trunk.stats().connections_ready == 2)
        await asyncio.sleep(1.3)
        assert it.trunk.stats().connections_opened == 2
        assert it.trunk.stats().connections_ready == 2


async def test_connections_that_are_replaced_for_their_age_cost_no_query() -> None:
    async with world(connections=1, max_lifetime=0.2) as it, it.trunk.create_pool(DSN, min_size=4, max_size=4) as pool:
        for _ in itertools.takewhile(lambda _: it.trunk.stats().connections.replaced < 3, itertools.count()):
            assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(8))) == [1] * 8
        assert it.lost == (0, 0)
        assert it.trunk.stats().sessions_moved >= 4
    await until(lambda: not any(driver.streams for driver in it.server.drivers))


@pytest.mark.long
@pytest.mark.parametrize("seconds", [3.0, 5.0, 7.0])
async def test_a_blackout_costs_no_session_whatever_it_was_doing(seconds: float) -> None:
    async with world(connections=2, streams_per_connection=4, acquire_timeout=30.0) as it:
        idle = [await it.trunk.connect(DSN) for _ in range(2)]
        busy = [await it.trunk.connect(DSN) for _ in range(4)]
        stop = asyncio.Event()

        async def work(session: asyncpg.Connection) -> int:
            answers = 0
            while not stop.is_set():
                assert await session.fetchval("select 1", timeout=30) == 1
                answers += 1
            return answers

        working = [asyncio.create_task(work(session)) for session in busy]
        async with it.trunk.create_pool(DSN, min_size=2, max_size=2) as pool:
            await asyncio.sleep(0.2)
            await it.blackout(seconds)
            assert await asyncio.gather(*(pool.fetchval("select 1", timeout=30) for _ in range(10))) == [1] * 10
            stop.set()
            assert all(await asyncio.gather(*working))
            assert await asyncio.gather(*(session.fetchval("select 1") for session in [*idle, *busy])) == [1] * 6
        assert it.lost == (0, 0)
        assert it.trunk.stats().connections.suspected >= 1
        for session in [*idle, *busy]:
            await session.close()
