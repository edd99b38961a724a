"""Workers that are killed in turn, under load over TCP and QUIC: only their own sessions fail, and the fleet's accounts
are exact when it is over."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.crowd import Crowd
from helpers.site import DATABASE, USER
from helpers.waiting import until
from pgtrunk import SessionLost
from pgtrunk_gateway.fleet import post
from pgtrunk_gateway.fleet.board import Field
from pgtrunk_gateway.fleet.dues import POOL

if TYPE_CHECKING:
    from helpers.crowd import Failure
    from helpers.fleets import LocalFleet, StartFleet
    from helpers.gateways import Way

WORKERS = 3
PLACES = 5
"""Backends that Postgres may see (max_db_connections), for more sessions than that."""
WAYS: tuple[Way, ...] = ("tcp", "quic") * 6
GAUGES = ("sessions", "admitted", "cancel_keys", "cancels", "leased", "connecting", "waiting", "quic_streams")
"""What each worker has none of when nobody is there."""


def is_clear(failure: Failure) -> bool:
    """Whether the client is told that its connection has gone, and no puzzle."""
    error = failure.error
    if isinstance(error, asyncpg.InterfaceError):
        # It was not asking anything at that moment: asyncpg's own words for who asks later.
        return "connection is closed" in str(error)
    if failure.client.way == "quic":
        return isinstance(error, asyncpg.ConnectionDoesNotExistError) and isinstance(error.__cause__, SessionLost)
    return isinstance(error, (ConnectionError, asyncpg.PostgresConnectionError))


async def watch(fleet: LocalFleet, seen: list[int]) -> None:
    """Looks again and again how many connections Postgres has."""
    while True:
        seen.append(len(await asyncio.to_thread(fleet.site.admin.backends)))
        await asyncio.sleep(0.02)


async def kill(fleet: LocalFleet, crowd: Crowd, index: int) -> int:
    """Kills a worker under load -> how many sessions it has taken with it."""
    await crowd.all_here()
    await crowd.progress()
    # Who is in the middle of a login belongs to a worker, too, and nobody knows to which.
    crowd.door.clear()
    await until(lambda: crowd.settled)
    theirs = (await crowd.locate())[index]
    lost = [client.session for client in theirs]
    before = len(crowd.failures)
    others = [client for client in crowd.clients if client not in theirs]
    answers = {client: client.answers for client in others}
    await fleet.kill(index)
    # Each of them hears of it, though it may be busy, and the others go on.
    await until(lambda: not [client for client, was in zip(theirs, lost, strict=True) if client.session is was])
    await until(lambda: all(client.answers > answers[client] for client in others))
    failed = crowd.failures[before:]
    assert {id(each.client) for each in failed} == {id(client) for client in theirs}, failed
    assert all(each.worker == index for each in failed), failed
    assert all(map(is_clear, failed)), [repr(each.error) for each in failed]
    crowd.door.set()
    await fleet.until_served()
    return len(failed)


async def killed_in_turn(start_fleet: StartFleet, seconds: float) -> None:
    fleet = await start_fleet(workers=WORKERS, default_pool_size=20, max_db_connections=PLACES, max_client_conn=100)
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    watching = asyncio.create_task(watch(fleet, seen))
    try:
        async with Crowd(fleet, WAYS) as crowd:
            end, lost, kills = loop.time() + seconds, 0, 0
            for index in itertools.cycle(range(WORKERS)):
                if loop.time() > end and kills >= WORKERS:
                    break
                lost += await kill(fleet, crowd, index)
                kills += 1
            await crowd.all_here()
            await crowd.progress()
            assert lost and all(client.answers for client in crowd.clients)
            assert len(crowd.failures) == lost
        await accounts_are_exact(fleet, kills)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert 0 < max(seen) <= PLACES


async def accounts_are_exact(fleet: LocalFleet, kills: int) -> None:
    """Nobody is there any more: neither workers nor the supervisor count anybody, and places are as many as
    connections."""
    supervisor = fleet.supervisor
    assert sum(supervisor.board.read(index, Field.RESTARTS) for index in range(WORKERS)) == kills
    bank, account = supervisor.teller.bank, (POOL, DATABASE, USER)

    for index in range(WORKERS):
        await settled(fleet, index)
    assert fleet.spread() == [0] * WORKERS
    await until(lambda: not supervisor.teller.admittance.population.counts)
    # Orphans are buried by now, or soon.
    held = [(await fleet.counters(index))["backends"] for index in range(WORKERS)]
    await until(lambda: bank.accounts[account].total == sum(held) if sum(held) else account not in bank.accounts)
    if sum(held):
        assert bank.accounts["database", DATABASE].total == bank.accounts["user", USER].total == sum(held)
    await until(lambda: len(fleet.site.admin.backends()) == sum(held))
    assert not fleet.site.admin.running("SELECT")
    # Places for clients: what workers have in store, and no more.
    assert supervisor.teller.admittance.credits.total <= 100


async def settled(fleet: LocalFleet, index: int) -> None:
    """Returns when a worker has nobody."""
    left: dict[str, int] = {"?": 1}
    deadline = asyncio.get_running_loop().time() + 30
    while left and asyncio.get_running_loop().time() < deadline:
        counters = await fleet.counters(index)
        left = {name: counters[name] for name in GAUGES if counters[name]}
        await asyncio.sleep(0.02)
    assert not left


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has died young is followed at once."""
    monkeypatch.setattr(post, "_SHORTEST", 0.1)
    monkeypatch.setattr(post, "_LONGEST", 0.1)


@pytest.mark.timeout(180)
async def test_each_worker_is_killed_in_turn(start_fleet: StartFleet) -> None:
    await killed_in_turn(start_fleet, 20.0)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_workers_are_killed_in_turn_for_five_minutes(start_fleet: StartFleet) -> None:
    await killed_in_turn(start_fleet, 300.0)


async def test_two_workers_at_once(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=WORKERS, max_db_connections=PLACES)
    async with Crowd(fleet, WAYS) as crowd:
        await crowd.progress()
        crowd.door.clear()
        await until(lambda: crowd.settled)
        found = await crowd.locate()
        for index in (0, 1):
            os.kill(fleet.pid(index), signal.SIGKILL)
        await until(lambda: len(crowd.failures) == len(found[0]) + len(found[1]))
        crowd.door.set()
        await fleet.until_served()
        await crowd.all_here()
        await crowd.progress()
        assert {each.worker for each in crowd.failures} <= {0, 1}
    await until(lambda: fleet.spread() == [0, 0, 0])
