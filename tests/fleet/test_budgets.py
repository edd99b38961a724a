"""The limits of a fleet on a real Postgres, which is looked at all along by a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from helpers.site import DATABASE, PASSWORD, USER, Site
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.fleets import LocalFleet, StartFleet

COUNT: Final = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = $1 AND usename = $2 AND backend_type = 'client backend'
"""


class Watch:
    """How many backends the tests' user has, looked up without end: the most there ever were."""

    def __init__(self) -> None:
        self.most = 0
        self.looks = 0
        self.now = 0


@contextlib.asynccontextmanager
async def watched(site: Site) -> AsyncIterator[Watch]:
    watch = Watch()
    connection = await asyncpg.connect(site.postgres.dsn(database="postgres"))
    looking = True

    async def look() -> None:
        while looking:
            watch.now = await connection.fetchval(COUNT, DATABASE, USER)
            watch.most = max(watch.most, watch.now)
            watch.looks += 1
            await asyncio.sleep(0.001)

    task = asyncio.create_task(look())
    try:
        yield watch
    finally:
        looking = False
        await task
        await connection.close()


def held(fleet: LocalFleet) -> int:
    """Places of the pool, as the supervisor counts."""
    account = fleet.supervisor.teller.bank.accounts.get(("pool", DATABASE, USER))
    return 0 if account is None else account.total


async def backends(fleet: LocalFleet) -> list[int]:
    return [(await fleet.counters(index))["backends"] for index in range(fleet.supervisor.count)]


def has_changed(fleet: LocalFleet, before: list[int]) -> bool:
    return fleet.spread() != before


async def on_worker(fleet: LocalFleet, index: int, count: int) -> list[asyncpg.Connection]:
    """So many sessions on one worker; those that come to others on the way stay, and ask nothing."""
    found: list[asyncpg.Connection] = []
    while len(found) < count:
        before = fleet.spread()
        connection = await fleet.connect()
        await until(partial(has_changed, fleet, before))
        if fleet.spread()[index] > before[index]:
            found.append(connection)
    return found


async def ask(connection: asyncpg.Connection, times: int, query: str = "SELECT pg_sleep(0.002)") -> None:
    for _ in range(times):
        await connection.execute(query)


async def test_an_uneven_crowd_never_has_one_backend_more_and_is_served(site: Site, start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=4, default_pool_size=5, max_client_conn=300, query_wait_timeout=50)
    connections = await asyncio.gather(*(fleet.connect() for _ in range(200)))
    async with watched(site) as watch:
        # Most of the work is with a quarter of them, that of one worker.
        times = [12 if number % 4 == 0 else 2 for number in range(200)]
        await asyncio.gather(*map(ask, connections, times))
        assert watch.looks > 20
        assert 0 < watch.most <= 5
        assert held(fleet) <= 5
    assert sum(await backends(fleet)) <= 5


async def test_all_load_on_one_worker_uses_the_whole_pool(site: Site, start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=3, default_pool_size=5)
    connections = await on_worker(fleet, 1, 8)
    async with watched(site) as watch:
        await asyncio.gather(*(ask(each, 30) for each in connections))
        assert watch.most == 5
    assert await backends(fleet) == [0, 5, 0]
    # What is idle there gives way to who comes elsewhere.
    others = [*(await on_worker(fleet, 0, 3)), *(await on_worker(fleet, 2, 2))]
    async with watched(site) as watch:
        await asyncio.gather(*(each.execute("SELECT pg_sleep(0.3)") for each in others))
        assert watch.most <= 5
    assert await backends(fleet) == [3, 0, 2]


async def test_who_has_none_gets_one_though_another_worker_has_work_for_all(
    site: Site, start_fleet: StartFleet
) -> None:
    fleet = await start_fleet(workers=2, default_pool_size=3, query_wait_timeout=40)
    busy = await on_worker(fleet, 0, 9)
    (late,) = await on_worker(fleet, 1, 1)
    stop = False

    async def load(connection: asyncpg.Connection) -> None:
        while not stop:
            await connection.execute("SELECT pg_sleep(0.005)")

    async with watched(site) as watch:
        tasks = [asyncio.create_task(load(each)) for each in busy]
        await until(lambda: watch.now == 3)
        for _ in range(20):
            await late.execute("SELECT 1")
        stop = True
        await asyncio.gather(*tasks)
        assert watch.most == 3


async def test_a_limit_of_the_database_over_several_pools_and_workers(site: Site, start_fleet: StartFleet) -> None:
    entry = site.target(f"dbname={DATABASE}")
    fleet = await start_fleet(workers=3, max_user_connections=3, databases={"one": entry, "two": entry, "three": entry})
    connections = [await fleet.connect(database=name) for name in ("one", "two", "three") * 4]
    async with watched(site) as watch:
        await asyncio.gather(*(ask(each, 5) for each in connections))
        assert watch.most <= 3


@pytest.mark.parametrize("minimum", [3])
async def test_the_minimum_is_for_all_workers_together(site: Site, start_fleet: StartFleet, minimum: int) -> None:
    entry = site.target(f"user={USER} password='{PASSWORD.replace(chr(39), chr(39) * 2)}' min_pool_size={minimum}")
    fleet = await start_fleet(workers=3, databases={DATABASE: entry}, server_idle_timeout=1)
    async with watched(site) as watch:
        await until(lambda: watch.now == minimum)
        connections = [await fleet.connect() for _ in range(8)]
        await asyncio.gather(*(ask(each, 3) for each in connections))
        await until(lambda: watch.now == minimum)
        await asyncio.sleep(1.5)
        assert watch.now == minimum


async def test_the_share_of_a_worker_that_is_killed_in_mid_query_returns_when_its_queries_have_ended(
    site: Site, start_fleet: StartFleet
) -> None:
    fleet = await start_fleet(workers=2, default_pool_size=4, query_wait_timeout=40)
    doomed = await on_worker(fleet, 0, 4)
    others = await on_worker(fleet, 1, 4)
    async with watched(site) as watch:
        tasks = [asyncio.create_task(each.execute("SELECT pg_sleep(60)")) for each in doomed]
        await until(lambda: len(site.admin.running("pg_sleep(60)")) == 4)
        waiting = [asyncio.create_task(each.fetchval("SELECT 1 FROM pg_sleep(0.05)")) for each in others]
        await fleet.kill(0)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, (asyncpg.PostgresConnectionError, ConnectionError))
        # Nobody waits for an hour's query of somebody who has gone.
        assert await asyncio.gather(*waiting) == [1] * 4
        assert not site.admin.running("pg_sleep(60)")
        assert watch.most == 4
        await fleet.until_served()
        assert held(fleet) == watch.now == sum(await backends(fleet))
        # And the one that has come again has its part.
        late = await on_worker(fleet, 0, 4)
        await asyncio.gather(*(ask(each, 10) for each in (*late, *others)))
        assert watch.most == 4
    await until(lambda: held(fleet) <= 4)


async def test_max_client_conn_is_exact_from_all_workers(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=4, max_client_conn=10)

    async def is_full() -> None:
        for _ in range(2):
            with pytest.raises(asyncpg.TooManyConnectionsError, match=r"\(max_client_conn\)"):
                await fleet.connect()
        # Those who were refused are gone.
        await until(lambda: sum(fleet.spread()) == 10)

    connections = [await fleet.connect() for _ in range(10)]
    await is_full()
    for leaves in connections[::3]:
        await leaves.close()
        await until(lambda: sum(fleet.spread()) == 9)
        await fleet.connect()
        await is_full()
    # The sessions of a worker that dies are gone with it.
    lost = fleet.spread()[2]
    await fleet.kill(2)
    await fleet.until_served()
    for _ in range(lost):
        await fleet.connect()
    await is_full()


@pytest.mark.parametrize("key", ["max_db_client_connections", "max_user_client_connections"])
async def test_limits_on_the_clients_of_databases_and_users(start_fleet: StartFleet, key: str) -> None:
    settings: dict[str, Any] = {key: 5}
    fleet = await start_fleet(workers=3, **settings)
    connections = [await fleet.connect() for _ in range(5)]
    for _ in range(3):
        with pytest.raises(asyncpg.TooManyConnectionsError, match=key):
            await fleet.connect()
    await connections[0].close()
    await until(lambda: sum(fleet.spread()) == 4)
    await fleet.connect()


async def test_a_reload_that_changes_limits_holds_for_all(site: Site, start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2, default_pool_size=4, max_client_conn=20, query_wait_timeout=40)
    connections = [await fleet.connect() for _ in range(12)]
    async with watched(site) as watch:
        await asyncio.gather(*(ask(each, 5) for each in connections))
        assert watch.most == 4
    site.write_ini(fleet.place, workers=2, logfile=fleet.place / "log", default_pool_size=2, max_client_conn=12)
    await fleet.supervisor.operations.reload()
    with pytest.raises(asyncpg.TooManyConnectionsError):
        await fleet.connect()
    await until(lambda: held(fleet) <= 2)
    async with watched(site) as watch:
        await asyncio.gather(*(ask(each, 5) for each in connections))
        assert watch.most <= 2
