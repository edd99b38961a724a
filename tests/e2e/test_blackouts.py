"""Five seconds in which the network swallows everything: no session of a real gateway is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from helpers.datagrams import relay
from helpers.site import DATABASE, PASSWORD, USER

if TYPE_CHECKING:
    import asyncpg

    from helpers.gateways import Start

pytestmark = [pytest.mark.long]

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
BLACKOUT = 5.0


async def test_no_session_is_lost_and_each_row_written_once(start: Start) -> None:
    gateway = await start(default_pool_size=20)
    table = await gateway.connect("tcp")
    await table.execute("CREATE TABLE IF NOT EXISTS blackout (who int, n int); TRUNCATE blackout")
    async with relay(gateway.quic.port) as net:
        trunk = await gateway.trunk(port=net.port, connections=2, streams_per_connection=4, acquire_timeout=30.0)
        sessions = [await trunk.connect(**LOGIN) for _ in range(6)]
        stop = asyncio.Event()

        async def write(who: int, session: asyncpg.Connection) -> int:
            n = 0
            while not stop.is_set():
                async with session.transaction():
                    await session.execute("INSERT INTO blackout VALUES ($1, $2)", who, n, timeout=30)
                n += 1
            return n

        asleep = asyncio.create_task(sessions[4].fetchval("SELECT 1 FROM pg_sleep(2)", timeout=30))
        transaction = sessions[5].transaction()
        await transaction.start()
        await sessions[5].execute("INSERT INTO blackout VALUES (5, 0)")
        writing = [asyncio.create_task(write(who, session)) for who, session in enumerate(sessions[:4])]
        await asyncio.sleep(0.3)
        net.is_silent = True
        await asyncio.sleep(BLACKOUT)
        assert trunk.stats().connections.suspected >= 1
        net.is_silent = False
        await asyncio.sleep(1.0)
        stop.set()
        written = await asyncio.gather(*writing)
        assert await asleep == 1
        await transaction.commit()
        rows = await table.fetch("SELECT who, count(*), count(DISTINCT n) AS distinct FROM blackout GROUP BY who")
        assert sorted(map(tuple, rows)) == [*((who, n, n) for who, n in enumerate(written)), (5, 1, 1)]
        stats = trunk.stats()
        assert (stats.connections_lost, stats.streams_lost, stats.connections.suspect) == (0, 0, 0)
        for session in sessions:
            await session.close()
