"""Where the time of a query went, as its client's trunk shows it: each stage in turn is made to be the slow one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.datagrams import relay
from helpers.raw_session import RawSession
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.quic.connecting import connect
from pgtrunk_gateway.stats.stages import STAGES

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start
    from pgtrunk import StreamManager
    from pgtrunk.stages import Stages

SLOW = 0.4
"""Seconds of what is slow in a test, far more than the rest of it takes."""


async def open_session(gateway: LocalGateway, trunk: StreamManager) -> asyncpg.Connection:
    connection: asyncpg.Connection = await trunk.connect(user=USER, password=PASSWORD, database=DATABASE)
    gateway.connections.append(connection)
    return connection


async def reported(trunk: StreamManager, executions: int) -> Stages:
    """The stages once the gateway has reported on so many requests, and on no more."""
    await until(lambda: trunk.stats().stages.execution.count >= executions)
    stages = trunk.stats().stages
    assert stages.execution.count == stages.backend.count == executions
    return stages


@pytest.mark.both_loops
async def test_a_slow_query_shows_in_its_execution(start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk()
    session = await open_session(gateway, trunk)
    for _ in range(2):
        await session.execute(f"select pg_sleep({SLOW})")
    stages = await reported(trunk, 2)
    assert stages.exchange.count == stages.transfer.count == 2
    assert stages.execution.total > 2 * SLOW * 0.9
    assert stages.execution.total > stages.transfer.total + stages.backend.total
    assert stages.execution.p50 > stages.transfer.p50
    assert stages.exchange.total == pytest.approx(stages.execution.total + stages.transfer.total, rel=0.1)


async def test_a_full_pool_shows_in_the_wait_for_a_backend(start: Start) -> None:
    gateway = await start(default_pool_size=1)
    trunk = await gateway.trunk()
    holder, other = [await open_session(gateway, trunk) for _ in range(2)]
    async with holder.transaction():
        await holder.execute("select 1")
        waiting = asyncio.create_task(other.execute("select 2"))
        await until(lambda: gateway.counters()["waiting"])
        await asyncio.sleep(SLOW)
    await waiting
    # BEGIN has taken no backend.
    stages = await reported(trunk, 3)
    assert stages.backend.total > stages.execution.total + stages.transfer.total
    assert (stages.backend.p50, stages.exchange.count) == (0.0, 4)
    assert stages.backend.p99 > stages.execution.p99


async def test_a_full_trunk_shows_in_the_wait_for_a_stream(start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk(connections=1, streams_per_connection=1)
    first = await open_session(gateway, trunk)
    waiting = asyncio.create_task(open_session(gateway, trunk))
    await until(lambda: trunk.stats().waiting)
    await asyncio.sleep(SLOW)
    await first.close()
    await (await waiting).execute("select 1")
    stages = await reported(trunk, 1)
    assert stages.stream.count == 2
    assert stages.stream.total > (stages.exchange.total + stages.execution.total + stages.backend.total)


async def test_a_long_way_shows_in_the_transfer(start: Start) -> None:
    gateway = await start()
    async with relay(gateway.quic.port, delay=SLOW / 2) as way:
        trunk = await gateway.trunk(port=way.port)
        session = await open_session(gateway, trunk)
        for _ in range(2):
            await session.execute("select 1")
        stages = await reported(trunk, 2)
        assert stages.transfer.total > stages.execution.total + stages.backend.total
        assert stages.transfer.p50 > stages.execution.p50
        (path,) = trunk.stats().path
        assert path.rtt_min >= SLOW * 0.9
        assert stages.transfer.p50 > path.rtt_min * 0.9
        await session.close()


async def test_what_a_query_takes_in_a_transaction_is_its_own_and_not_the_clients_turn(start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk()
    session = await open_session(gateway, trunk)
    async with session.transaction():
        await session.execute("select 1")
        await asyncio.sleep(SLOW)
        await session.execute("select 2")
        await asyncio.sleep(SLOW)
    stages = await reported(trunk, 3)
    assert stages.exchange.total < 2 * SLOW
    assert stages.execution.total < 2 * SLOW


async def test_without_timings_the_gateway_still_reports(start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk(timings=False)
    session = await open_session(gateway, trunk)
    await session.execute("select 1")
    stages = await reported(trunk, 1)
    assert (stages.exchange.count, stages.transfer.count) == (0, 0)


async def test_stats_of_what_went_over_the_network(start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk(connections=2, streams_per_connection=1, early_data="off")
    sessions = [await open_session(gateway, trunk) for _ in range(2)]
    asking = asyncio.create_task(sessions[0].execute(f"select pg_sleep({SLOW})"))
    await until(lambda: trunk.stats().sessions.asking == 1)
    await asking
    stats = trunk.stats()
    assert [path.sessions for path in stats.path] == [1, 1]
    assert all(0 < path.rtt_min <= path.rtt for path in stats.path)
    assert {path.peer for path in stats.path} == {f"127.0.0.1:{gateway.quic.port}"}
    assert stats.transfer.packets_sent == sum(path.packets_sent for path in stats.path) > 0
    # Two whose connections had to be opened for them; then one that takes another's place.
    assert stats.sessions.round_trips_saved == 2 + 2
    await sessions[0].close()
    sessions.append(await open_session(gateway, trunk))
    assert trunk.stats().sessions.round_trips_saved == 2 + 2 + 3
    await trunk.close()
    ended = trunk.stats()
    assert ended.path == ()
    assert ended.transfer.sent >= stats.transfer.sent > 0
    assert ended.transfer.received >= stats.transfer.received > 0


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_the_gateway_reports_on_each_query_that_it_counts(start: Start, mode: str) -> None:
    gateway = await start(pool_mode=mode, lazy_begin=0)
    trunk = await gateway.trunk()
    session = await open_session(gateway, trunk)
    await session.execute("create temp table kept (a int)" if mode == "session" else "select 1")
    assert await session.fetchval("select $1::int", 3) == 3
    with pytest.raises(asyncpg.DivisionByZeroError):
        await session.fetchval("select 1 / 0")
    async with session.transaction():
        await session.execute("select 1")
        await session.copy_from_query("select generate_series(1, 1000)", output=lambda _: asyncio.sleep(0))
    (pool,) = gateway.gateway.pools
    counted = pool.stats.query_count
    stages = await reported(trunk, counted)
    # asyncpg prepares what has arguments by a Flush first, which a pool that shares backends may answer by itself.
    assert counted >= stages.exchange.count == stages.transfer.count == 7


async def test_a_client_without_a_control_stream_is_told_nothing(start: Start) -> None:
    gateway = await start()
    config = ClientConfig(ca_file=str(gateway.site.certificates.ca_cert), alpn=("postgresql",))
    connection = await connect("127.0.0.1", gateway.quic.port, config=config, timeout=20)
    heard: list[object] = []
    connection.driver.control.on_stats = heard.append
    session = RawSession()
    connection.open_stream(lambda: session)
    session.startup({})
    await until(lambda: session.octets or session._messages)
    (driver,) = gateway.quic.drivers
    assert STAGES not in driver.extra
    connection.close()
    await connection.wait_closed()
    assert heard == []
