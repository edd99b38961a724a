"""What a promotion costs: the statements that it cut, and a wait for everybody else.

Each test has a primary and a standby of its own, and leaves of them what it has made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest
import pytest_asyncio

from helpers.fake_patroni import FakePatroni, member
from helpers.postgres import execute
from helpers.processes import GatewayProcess, gateway_process
from helpers.site import DATABASE, PASSWORD, USER, Site
from helpers.standby import Pair, pair_of_servers, site_of
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start

SIZE: Final = 4
SETTINGS: Final[dict[str, Any]] = {"query_wait_timeout": 40, "server_login_retry": 1, "default_pool_size": SIZE}
PORT: Final = "SELECT inet_server_port()"
"""Which of the servers answers."""
CUT: Final = {"57P01", "08006", "08003"}
"""What who had something running is told: by Postgres itself, by the gateway, or by asyncpg of a session that ended."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    with pair_of_servers() as pair:
        yield pair


@pytest.fixture
def site(pair: Pair) -> Iterator[Site]:
    with site_of(pair) as site:
        yield site


Connect = Callable[[], Awaitable[asyncpg.Connection]]


@dataclass
class Load:
    """Sessions that write one row after the other, and begin anew where they were ended, with what they were told."""

    done: int = 0
    errors: list[str] = field(default_factory=list)
    ended: bool = False

    async def run(self, connect: Connect) -> None:
        connection = await connect()
        while not self.ended:
            try:
                await connection.execute("INSERT INTO notes VALUES (1)")
            except asyncpg.PostgresError as error:
                self.errors.append(error.sqlstate)
                connection.terminate()
                connection = await connect()
            else:
                self.done += 1

    async def goes_on(self, count: int = 100) -> None:
        """Returns when so many more rows have been written."""
        until_now = self.done
        await until(lambda: self.done >= until_now + count)


def by(gateway: LocalGateway, *ways: Any) -> list[Connect]:
    return [lambda way=way: gateway.connect(way) for way in ways]  # type: ignore[misc]


def ports(gateway: LocalGateway) -> set[int]:
    """Where its backends are."""
    return {backend.target.port for pool in gateway.gateway.pools for backend in pool.backends.values()}


async def test_promotion_under_load(start: Start, pair: Pair) -> None:
    """What was acknowledged is there, and nothing is there twice. The old primary comes back, and nobody goes there."""
    gateway = await start(databases=pair.entry("target_session_attrs=read-write"), **SETTINGS)
    load = Load()
    async with asyncio.TaskGroup() as group:
        for connect in by(gateway, *("tcp", "unix", "quic") * 3):
            group.create_task(load.run(connect))
        await load.goes_on()
        # It ends only when the standby has it all.
        await asyncio.to_thread(pair.first.stop)
        await until(lambda: gateway.counters()["waiting"] > 0)
        await asyncio.to_thread(pair.second.promote)
        await load.goes_on()
        await asyncio.to_thread(pair.first.follow, pair.second)
        await load.goes_on()
        load.ended = True
    assert len(load.errors) <= SIZE
    assert set(load.errors) <= CUT
    assert ports(gateway) == {pair.second.port}
    connection = await gateway.connect("tcp")
    count = await connection.fetchval("SELECT count(*) FROM notes")
    assert load.done <= count <= load.done + len(load.errors)


async def test_who_had_nothing_running_notices_nothing(start: Start, pair: Pair) -> None:
    """They are connected, idle, and their next query waits for the promotion."""
    gateway = await start(databases=pair.entry("target_session_attrs=primary"), **SETTINGS)
    connections = [await gateway.connect(way) for way in ("tcp", "quic") for _ in range(4)]
    assert {await each.fetchval(PORT) for each in connections} == {pair.first.port}
    await asyncio.to_thread(pair.first.stop)
    queries = asyncio.gather(*(each.fetchval(PORT) for each in connections))
    await until(lambda: gateway.counters()["waiting"] == len(connections))
    await asyncio.to_thread(pair.second.promote)
    assert set(await queries) == {pair.second.port}


async def test_a_primary_that_is_made_read_only_is_left(start: Start, pair: Pair) -> None:
    """No connection ends by itself: what tells is that it refuses to write. Sessions that it has told of its setting
    have that as theirs, until they set another; but they are at the other server."""
    gateway = await start(databases=pair.entry("target_session_attrs=read-write"), **SETTINGS)
    connection = await gateway.connect("tcp")
    assert await connection.fetchval(PORT) == pair.first.port
    await asyncio.to_thread(pair.second.promote)
    await execute(pair.first, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")

    async def is_refused() -> bool:
        try:
            await connection.execute("INSERT INTO notes VALUES (1)")
        except asyncpg.ReadOnlySQLTransactionError:
            return True
        return False

    async with asyncio.timeout(40):
        # The server reads its files when it comes to it.
        while not await is_refused():  # noqa: ASYNC110 - each time is a question
            await asyncio.sleep(0.05)
    await until(lambda: ports(gateway) == {pair.second.port})
    await (await gateway.connect("tcp")).execute("INSERT INTO notes VALUES (1)")
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute("INSERT INTO notes VALUES (1)")
    assert await connection.fetchval(PORT) == pair.second.port


async def test_a_standby_that_is_promoted_is_left_by_who_wants_a_standby(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry("target_session_attrs=standby"), **SETTINGS)
    connection = await gateway.connect("tcp")
    assert await connection.fetchval(PORT) == pair.second.port
    await asyncio.to_thread(pair.first.stop)
    await asyncio.to_thread(pair.second.promote)
    await connection.execute("SELECT 1")
    await until(lambda: not ports(gateway))
    waits = asyncio.create_task(connection.fetchval(PORT))
    await asyncio.to_thread(pair.first.follow, pair.second)
    assert await waits == pair.first.port


# -- two gateways


@pytest.fixture
def gateways(site: Site, pair: Pair) -> Iterator[list[GatewayProcess]]:
    entry = pair.entry("target_session_attrs=primary")
    with (
        gateway_process(site, databases=entry, peer_id=1, **SETTINGS) as one,
        gateway_process(site, databases=entry, peer_id=2, workers=2, **SETTINGS) as other,
    ):
        yield [one, other]


async def test_two_gateways_follow_each_by_itself(gateways: list[GatewayProcess], pair: Pair) -> None:
    load = Load()
    login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 40, "ssl": False}
    opened: list[asyncpg.Connection] = []

    def through(gateway: GatewayProcess) -> Connect:
        async def connect() -> asyncpg.Connection:
            opened.append(await asyncpg.connect(host="127.0.0.1", port=gateway.port(), **login))
            return opened[-1]

        return connect

    try:
        async with asyncio.TaskGroup() as group:
            for gateway in gateways * 3:
                group.create_task(load.run(through(gateway)))
            await load.goes_on(50)
            await asyncio.to_thread(pair.first.stop)
            await asyncio.to_thread(pair.second.promote)
            await load.goes_on(50)
            load.ended = True
        assert {await each.fetchval(PORT) for each in opened if not each.is_closed()} == {pair.second.port}
        assert len(load.errors) <= 2 * SIZE
        assert set(load.errors) <= CUT
    finally:
        for each in opened:
            each.terminate()


# -- Patroni


@pytest_asyncio.fixture
async def patroni(pair: Pair) -> AsyncIterator[FakePatroni]:
    async with FakePatroni() as patroni:
        patroni.members = [member(pair.first, "leader"), member(pair.second, "replica", "streaming")]
        yield patroni


async def test_the_leader_of_patroni(start: Start, pair: Pair, patroni: FakePatroni) -> None:
    """A switchover: it names the next leader before that is one, and sessions wait until it is."""
    gateway = await start(databases={DATABASE: f"patroni={patroni.url}"}, patroni_interval=0.2, **SETTINGS)
    load = Load()
    async with asyncio.TaskGroup() as group:
        for connect in by(gateway, "tcp", "quic", "unix"):
            group.create_task(load.run(connect))
        await load.goes_on()
        patroni.members = [member(pair.second, "leader"), member(pair.first, "replica", "stopped")]
        await asyncio.to_thread(pair.first.stop)
        await asyncio.to_thread(pair.second.promote)
        await load.goes_on()
        load.ended = True
    assert len(load.errors) <= SIZE
    assert set(load.errors) <= CUT
    assert ports(gateway) == {pair.second.port}


async def test_patroni_that_is_gone_is_missed_by_nobody(start: Start, pair: Pair, patroni: FakePatroni) -> None:
    entry = {DATABASE: f"patroni=http://127.0.0.1:1,{patroni.url}"}
    gateway = await start(databases=entry, patroni_interval=0.1, server_lifetime=0.01, **SETTINGS)
    connection = await gateway.connect("tcp")
    assert await connection.fetchval(PORT) == pair.first.port
    patroni.broken = True
    asked = patroni.asked
    await until(lambda: patroni.asked > asked + 2)
    opened = sum(pool.counters.opened for pool in gateway.gateway.pools)
    assert await connection.fetchval(PORT) == pair.first.port
    await until(lambda: sum(pool.counters.closed for pool in gateway.gateway.pools) >= opened)
    assert await connection.fetchval(PORT) == pair.first.port


# -- again and again


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_twenty_switchovers(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry("target_session_attrs=primary"), **SETTINGS)
    load = Load()
    leader, follower = pair.first, pair.second
    async with asyncio.TaskGroup() as group:
        for connect in by(gateway, *("tcp", "quic") * 4):
            group.create_task(load.run(connect))
        for _ in range(20):
            await load.goes_on()
            await asyncio.to_thread(leader.stop)
            await asyncio.to_thread(follower.promote)
            await asyncio.to_thread(leader.follow, follower)
            leader, follower = follower, leader
        await load.goes_on()
        load.ended = True
    assert len(load.errors) <= 20 * SIZE
    assert set(load.errors) <= CUT
    assert ports(gateway) == {leader.port}
