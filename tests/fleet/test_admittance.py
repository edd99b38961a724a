"""Clients of several workers under the limits of all: teller and turnstiles, with real buses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from helpers.budgets import Branch, Budgets, budgets
from helpers.waiting import until


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Budgets]:
    async with budgets(3) as fleet:
        yield fleet


async def entered(branch: Branch, limit: int, count: int = 1) -> int:
    """How many of so many that come at once get in."""
    return sum(await asyncio.gather(*(branch.turnstile.enter(limit) for _ in range(count))))


async def test_max_client_conn_is_exact_at_the_border_from_all_workers(fleet: Budgets) -> None:
    for limit in (1, 2, 7, 50):
        here = dict.fromkeys(fleet.branches, 0)
        for branch in [*fleet.branches] * limit:
            here[branch] += await entered(branch, limit)
        assert sum(here.values()) == limit
        # One leaves, here or there; then there is a place for one, wherever that comes.
        for leaves in [branch for branch in fleet.branches if here[branch]]:
            for comes in fleet.branches:
                leaves.turnstile.left()
                assert await entered(comes, limit, 2) == 1
                comes.turnstile.left()
                assert await entered(leaves, limit) == 1
        for branch, count in here.items():
            for _ in range(count):
                branch.turnstile.left()
            branch.turnstile.empty()
        await fleet.said()
        assert fleet.teller.admittance.credits.total == 0


async def test_many_at_once_in_all_workers(fleet: Budgets) -> None:
    counts = await asyncio.gather(*(entered(branch, 20, 30) for branch in fleet.branches))
    assert sum(counts) == 20
    await fleet.said()
    assert fleet.teller.admittance.credits.total == 20
    assert not any(branch.turnstile.store for branch in fleet.branches)


async def test_who_is_cancelled_while_it_asks_takes_no_place(fleet: Budgets) -> None:
    one, other, _ = fleet.branches
    tasks = [asyncio.create_task(one.turnstile.enter(3)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await entered(other, 3, 5) == 3


async def test_places_in_store_are_taken_without_asking(fleet: Budgets) -> None:
    one = fleet.branches[0]
    assert await one.turnstile.enter(1000)
    await fleet.said()
    store = one.turnstile.store
    assert store > 50
    for _ in range(store):
        entering = one.turnstile.enter(1000)
        with pytest.raises(StopIteration):
            entering.send(None)
    await fleet.said()
    # And there are more before anybody needs them.
    assert one.turnstile.store


async def test_limits_of_databases_and_users_are_for_all_workers(fleet: Budgets) -> None:
    one, other, third = (branch.turnstile for branch in fleet.branches)
    shop, app = ("database", "shop"), ("user", "app")
    assert await one.settle([(shop, 3), (app, 2)]) is None
    assert await other.settle([(shop, 3), (app, 2)]) is None
    assert await third.settle([(shop, 3), (app, 2)]) == 1
    assert await third.settle([(shop, 2), (app, 9)]) == 0
    other.unsettle([shop, app])
    await fleet.said()
    assert await third.settle([(shop, 3), (app, 2)]) is None
    await fleet.kill(fleet.branches[0])
    assert fleet.teller.admittance.population.counts == {shop: 1, app: 1}


async def test_a_login_that_is_cancelled_while_it_asks_counts_no_more(fleet: Budgets) -> None:
    one = fleet.branches[0].turnstile
    task = asyncio.create_task(one.settle([(("user", "app"), 1)]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not fleet.teller.admittance.population.counts)
    assert await one.settle([(("user", "app"), 1)]) is None


async def test_a_worker_that_does_not_answer_is_not_waited_for(fleet: Budgets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk_gateway.fleet.admittance._COLLECT", 0.1)
    one, other, _ = fleet.branches
    one.theirs.on("spare", lambda _: asyncio.sleep(60))
    assert await entered(one, 2) == 1
    assert await entered(other, 2, 3) == 1


async def test_a_place_that_becomes_free_after_many_were_refused_is_for_the_next_who_comes(fleet: Budgets) -> None:
    one, other, third = fleet.branches
    assert await entered(one, 1) == 1
    asked = [asyncio.create_task(entered(branch, 1)) for branch in (other, third) * 3]
    await until(lambda: all(task.done() for task in asked))
    one.turnstile.left()
    assert sum(task.result() for task in asked) == 0
    assert await entered(other, 1) == 1
