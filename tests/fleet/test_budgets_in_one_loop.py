"""Pools of several workers under the limits of all: teller and purses with real buses, and servers of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from helpers.budgets import Budgets, budgets
from helpers.pools import NoteTaker, Server
from helpers.waiting import until
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, ShuttingDown
from pgtrunk_gateway.fleet import purse
from pgtrunk_gateway.fleet.account import Limit
from pgtrunk_gateway.pool import parting
from pgtrunk_gateway.pool.walsender import Replication

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.pool import Pool

POOL: Final = ("pool", "shop", "app")


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    async def told(*_: Any) -> None:
        """Nobody is there to be told of cancels."""

    monkeypatch.setattr(parting.Parting, "_cancel", told)
    monkeypatch.setattr(parting, "EXIT", 0.01)
    monkeypatch.setattr(purse, "_TENURE", 0.0)
    return Server(monkeypatch)


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Budgets]:
    async with budgets(3) as fleet:
        yield fleet


def asker(pool: Pool) -> NoteTaker:
    """A session that has a backend, or waits."""
    taker = NoteTaker(pool)
    if not taker.take():
        taker.wait()
    return taker


def log_in(server: Server) -> None:
    """All logins that are under way succeed."""
    for login in server.logins:
        if not login.done():
            login.set_result(None)


def hang_up(server: Server) -> None:
    """Postgres ends what has said Terminate, or was cut off."""
    for transport in list(server.transports):
        closing = b"X\0\0\0\4" in b"".join(transport._written) or transport.closing
        if closing and transport.protocol is not None:
            server.transports.remove(transport)
            transport.get_protocol().connection_lost(None)


async def served(server: Server, *takers: NoteTaker) -> None:
    """Until all of them have backends, while Postgres does its part."""

    def step() -> bool:
        log_in(server)
        hang_up(server)
        return all(taker.backend is not None for taker in takers)

    await until(step)


async def settled(server: Server, fleet: Budgets, held: int) -> None:
    """Until so many places are held, and as many backends are there."""

    def step() -> bool:
        log_in(server)
        hang_up(server)
        there = sum(len(pool.backends) for branch in fleet.branches for pool in branch.pools)
        return (fleet.held(*POOL), there) == (held, held)

    await until(step)


async def test_all_load_on_one_worker_uses_the_whole_pool_and_not_one_more(server: Server, fleet: Budgets) -> None:
    pools = [branch.pool(server, size=3) for branch in fleet.branches]
    takers = [asker(pools[0]) for _ in range(5)]
    await served(server, *takers[:3])
    others = [asker(pools[1]), asker(pools[2])]
    await asyncio.sleep(0.2)
    log_in(server)
    assert server.begun == 3
    assert fleet.held(*POOL) == 3
    takers[0].give_back()
    # To its own first, who have waited longer.
    assert takers[3].backend is not None
    for taker in (*takers[1:4],):
        taker.give_back()
    await served(server, takers[4], *others)
    assert fleet.held(*POOL) <= 3


async def test_idle_backends_give_way_to_who_waits_elsewhere(server: Server, fleet: Budgets) -> None:
    one, other, _ = [branch.pool(server, size=2) for branch in fleet.branches]
    await asyncio.gather(served(server, *(mine := [asker(one), asker(one)])))
    for taker in mine:
        taker.give_back()
    takers = [asker(other), asker(other)]
    await served(server, *takers)
    assert (len(one.backends), len(other.backends)) == (0, 2)
    assert server.begun == 4


async def test_who_comes_while_less_is_about_to_be_told_is_not_forgotten(server: Server, fleet: Budgets) -> None:
    one, other, _ = [branch.pool(server, size=1) for branch in fleet.branches]
    mine = asker(one)
    await served(server, mine)
    gone = asker(other)
    other.leave(gone)
    other.maintain()
    late = asker(other)
    await asyncio.sleep(0.2)
    mine.give_back()
    await served(server, late)


async def test_a_place_is_free_when_postgres_has_ended_the_connection(server: Server, fleet: Budgets) -> None:
    one, other, _ = [branch.pool(server, size=1) for branch in fleet.branches]
    mine = asker(one)
    await served(server, mine)
    mine.give_back()
    taker = asker(other)
    await until(lambda: not one.backends)
    await asyncio.sleep(0.1)
    # Terminate is said, and nobody has hung up.
    assert (server.begun, fleet.held(*POOL)) == (1, 1)
    (transport,) = server.transports
    assert not transport.closing
    await served(server, taker)
    assert transport.closing


async def test_what_is_cut_off_is_cancelled_before_its_place_is_free(
    server: Server, fleet: Budgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()
    cancelled: list[int] = []

    async def cancel(_: object, backend: Backend, __: object) -> None:
        cancelled.append(backend.id)
        await told.wait()

    monkeypatch.setattr(parting.Parting, "_cancel", cancel)
    one, other, _ = [branch.pool(server, size=1) for branch in fleet.branches]
    mine = asker(one)
    await served(server, mine)
    assert mine.backend is not None
    backend = mine.backend
    backend.drop("client vanished")
    taker = asker(other)
    await until(lambda: cancelled)
    await asyncio.sleep(0.1)
    assert server.begun == 1
    told.set()
    await served(server, taker)
    assert cancelled == [backend.id]


async def test_a_worker_without_any_gets_one_that_is_in_use_when_it_is_free(server: Server, fleet: Budgets) -> None:
    one, other, _ = [branch.pool(server, size=2) for branch in fleet.branches]
    mine = [asker(one), asker(one)]
    await served(server, *mine)
    theirs = asker(other)
    await until(lambda: one.allowance is not None and one.allowance.recalled)
    late = asker(one)
    mine[0].give_back()
    assert late.backend is None
    await served(server, theirs)
    # As many as each is as even as it gets.
    mine[1].give_back()
    assert late.backend is not None


async def test_what_was_just_opened_serves_its_own_for_a_while(
    server: Server, fleet: Budgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purse, "_TENURE", 0.2)
    one, other, _ = [branch.pool(server, size=1) for branch in fleet.branches]
    mine = asker(one)
    await served(server, mine)
    loop = asyncio.get_running_loop()
    began = loop.time()
    theirs = asker(other)
    await until(lambda: one.allowance is not None and one.allowance.recalled)
    own = [asker(one) for _ in range(500)]

    def turn() -> bool:
        nonlocal mine
        log_in(server)
        hang_up(server)
        if mine.backend is not None:
            mine.give_back()
            mine = own.pop(0)
        return theirs.backend is not None

    await until(turn)
    assert loop.time() - began >= 0.15
    assert server.begun == 2


async def test_counts_even_out_between_workers_where_sessions_wait_all_the_time(server: Server, fleet: Budgets) -> None:
    pools = [branch.pool(server, size=6) for branch in fleet.branches]
    waiting = [asker(pools[0]) for _ in range(12)]
    await served(server, *waiting[:6])
    waiting += [asker(pool) for pool in pools[1:] for _ in range(12)]

    async def turn() -> list[int]:
        """A query of each that has a backend; then it waits for its next one."""
        log_in(server)
        hang_up(server)
        for taker in [each for each in waiting if each.backend is not None]:
            waiting.remove(taker)
            taker.give_back()
            waiting.append(asker(taker.pool))
        await asyncio.sleep(0.02)
        assert fleet.held(*POOL) <= 6
        return [len(pool.backends) for pool in pools]

    async with asyncio.timeout(20):
        while await turn() != [2, 2, 2]:
            pass
    before = server.begun
    assert before < 30
    for _ in range(30):
        assert await turn() == [2, 2, 2]
    assert server.begun == before


async def test_what_nobody_wants_any_more_goes_back(server: Server, fleet: Budgets) -> None:
    one, other, _ = [branch.pool(server, size=1) for branch in fleet.branches]
    mine = asker(one)
    await served(server, mine)
    theirs = asker(other)
    await until(lambda: one.allowance is not None and one.allowance.recalled)
    other.leave(theirs)
    # Nobody says so; it is looked at.
    await until(lambda: one.allowance is not None and not one.allowance.recalled)
    mine.give_back()
    await fleet.said()
    assert (len(one.backends), other.wanted) == (1, 0)


@pytest.mark.parametrize("error", [BackendUnavailable("connection refused"), BackendRefused("no", sqlstate="28P01")])
async def test_a_connection_that_fails_gives_its_place_back(
    server: Server, fleet: Budgets, error: BackendRefused | BackendUnavailable
) -> None:
    pool = fleet.branches[0].pool(server, size=1, retry=0.05)
    taker = asker(pool)
    await until(lambda: server.logins)
    server.logins[0].set_result(error)
    await until(lambda: not fleet.held(*POOL))
    if taker.refused is None:
        await served(server, taker)
        assert fleet.held(*POOL) == 1


@pytest.mark.parametrize("verb", ["pause", "kill", "reconnect", "shut"])
async def test_nothing_leaks_whatever_is_done_while_places_are_wanted_or_on_their_way(
    server: Server, fleet: Budgets, verb: str
) -> None:
    one, other, _ = [branch.pool(server, size=2) for branch in fleet.branches]
    mine = asker(one)
    await served(server, mine)

    def half(other: Pool) -> bool:
        return len(server.logins) == 1 and other.wanted == 1

    def act(other: Pool) -> None:
        match verb:
            case "pause":
                other.pause()
            case "kill":
                other.kill(ShuttingDown())
            case "reconnect":
                other.reconnect()
            case _:
                other.shut(ShuttingDown(), gently=True)

    # It is asked for; it is granted, and the worker does not know; a login is under way; and one waits for a place.
    for moment in range(4):
        takers = [asker(other) for _ in range(2)]
        if moment == 1:
            await until(lambda: fleet.held(*POOL) == 2)
        elif moment == 2:
            await until(lambda: server.logins)
        elif moment == 3:
            await until(partial(half, other))
        act(other)
        for taker in takers:
            other.leave(taker)
            if taker.backend is not None:
                taker.give_back()
        other.resume()
        await settled(server, fleet, 1)
        if verb == "shut":
            other = fleet.branches[1].pool(server, size=2)
    share = fleet.branches[1].purse.shares.get(POOL)
    assert share is None or (share.held, share.spare) == (0, 0)


async def test_the_minimum_is_for_all_together_and_stays(server: Server, fleet: Budgets) -> None:
    pools = [branch.pool(server, size=9, minimum=4, idle_timeout=0.05) for branch in fleet.branches]
    for pool in pools:
        pool.maintain()
    await settled(server, fleet, 4)
    # More for a while, and those that are too many end when they have been idle.
    takers = [asker(pools[2]) for _ in range(6)]
    await served(server, *takers)
    for taker in takers:
        taker.give_back()
    await settled(server, fleet, 4)
    await asyncio.sleep(0.2)
    assert fleet.held(*POOL) == 4
    begun = server.begun
    await asyncio.sleep(0.2)
    assert server.begun == begun


async def test_the_reserve_is_for_who_has_waited_long_in_whichever_worker(server: Server, fleet: Budgets) -> None:
    one, other, _ = [branch.pool(server, size=1, reserve=1, reserve_timeout=0.3) for branch in fleet.branches]
    mine = asker(one)
    await served(server, mine)
    loop = asyncio.get_running_loop()
    began = loop.time()
    theirs = [asker(other), asker(other)]
    await served(server, theirs[0])
    assert loop.time() - began >= 0.3
    await asyncio.sleep(0.1)
    assert theirs[1].backend is None
    assert fleet.held(*POOL) == 2
    mine.give_back()
    await asyncio.sleep(0.1)


async def test_a_limit_over_pools_holds_for_all_workers(server: Server, fleet: Budgets) -> None:
    first = fleet.branches[0].pool(server, "shop", "one", in_database=2)
    second = fleet.branches[0].pool(server, "shop", "two", in_database=2)
    third = fleet.branches[1].pool(server, "shop", "one", in_database=2)
    takers = [asker(first), asker(second)]
    await served(server, *takers)
    late = asker(third)
    await until(lambda: fleet.held("database", "shop") == 2 and third.wanted == 1)
    await asyncio.sleep(0.05)
    assert server.begun == 2
    takers[1].give_back()
    await served(server, late)
    assert (len(first.backends), len(second.backends), len(third.backends)) == (1, 0, 1)
    # In the same worker, too.
    again = asker(second)
    takers[0].give_back()
    await served(server, again)


async def test_a_replication_client_takes_the_place_of_what_is_idle_in_its_own_pool(
    server: Server, fleet: Budgets
) -> None:
    pool = fleet.branches[0].pool(server, size=1)
    taker = asker(pool)
    await served(server, taker)
    taker.give_back()
    task = asyncio.create_task(pool.replicate(Replication.LOGICAL, {"replication": "database"}))

    def step() -> bool:
        log_in(server)
        hang_up(server)
        return task.done()

    await until(step)
    walsender = task.result()
    assert list(pool.backends.values()) == [walsender]
    assert fleet.held(*POOL) == 1
    walsender.leave("done")
    await settled(server, fleet, 0)


async def test_a_smaller_limit_is_told_by_whoever_has_it_and_holds_for_all(server: Server, fleet: Budgets) -> None:
    pools = [branch.pool(server, size=4) for branch in fleet.branches]
    takers = [asker(pools[0]) for _ in range(4)]
    await served(server, *takers)
    for branch in fleet.branches[:2]:
        branch.purse.allowance(("shop", "app"), size=1, reserve=0, minimum=0, in_database=0, of_user=0)
        branch.purse.reconfigured()
    waits = [asker(pool) for pool in pools]
    for taker in takers:
        taker.give_back()
    await settled(server, fleet, 1)
    assert fleet.teller.bank.accounts[POOL].limit == Limit(1)
    assert sum(taker.backend is not None for taker in waits) == 1


# -- workers that die --------------------------------------------------------------------------------------------------


async def test_the_share_of_a_dead_worker_returns_when_its_queries_are_cancelled(
    server: Server, fleet: Budgets
) -> None:
    told = asyncio.Event()
    orphans: list[dict[str, Any]] = []

    async def cancel(body: dict[str, Any]) -> None:
        orphans.extend(body["opened"])
        await told.wait()

    dead, other, third = fleet.branches
    for branch in (other, third):
        branch.theirs.on("orphans", cancel)
    taker = asker(dead.pool(server, size=2))
    await served(server, taker)
    pool = other.pool(server, size=2)
    waits = [asker(pool) for _ in range(2)]
    await served(server, waits[0])
    await fleet.kill(dead)
    await until(lambda: orphans)
    assert [(each["pool"], each["pid"]) for each in orphans] == [(["shop", "app"], 101)]
    assert bytes.fromhex(orphans[0]["secret"]) == b"1234"
    assert (fleet.held(*POOL), waits[1].backend) == (2, None)
    told.set()
    await served(server, waits[1])


async def test_without_a_sibling_it_returns_after_a_while(server: Server) -> None:
    async with budgets(1, patience=0.2) as fleet:
        (only,) = fleet.branches
        await served(server, asker(only.pool(server, size=1)))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await fleet.kill(only)
        again = await fleet.hire(0)
        await served(server, asker(again.pool(server, size=1)))
        assert loop.time() - began >= 0.2


async def test_a_worker_that_comes_again_begins_with_nothing(server: Server, fleet: Budgets) -> None:
    dead = fleet.branches[0]
    asker(dead.pool(server, size=5))
    await until(lambda: fleet.held(*POOL) == 1)
    await fleet.kill(dead)
    again = await fleet.hire(0)
    assert not again.purse.shares
    await served(server, *(asker(again.pool(server, size=5)) for _ in range(1)))
    await until(lambda: fleet.held(*POOL) == 1)
