"""How many clients the fleet may have: places in store, and those counted one by one."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.fleet.credits import Credits, Population

SHOP, OTHER, APP, BOSS = ("database", "shop"), ("database", "other"), ("user", "app"), ("user", "boss")


def test_a_worker_gets_a_part_of_what_is_left_and_at_least_what_it_wants() -> None:
    store = Credits()
    assert store.draw(1, 100, 1) == 12
    assert store.draw(2, 100, 1) == 11
    assert store.draw(1, 100, 30) == 30
    assert store.held == {1: 42, 2: 11}


@pytest.mark.parametrize("wanted", [1, 3])
def test_the_last_place_can_be_had_and_no_more(wanted: int) -> None:
    store = Credits()
    store.draw(1, 4, 3)
    assert store.draw(2, 4, wanted) == 1
    assert store.draw(1, 4, wanted) == 0
    store.give_back(1, 2)
    assert store.draw(2, 4, 1) == 1
    assert store.held == {1: 1, 2: 2}


def test_a_store_is_filled_only_while_there_is_plenty() -> None:
    store = Credits()
    store.draw(1, 10, 3)
    assert store.draw(2, 10, 0) == 0
    assert store.draw(2, 100, 0) == 12


def test_a_limit_that_has_become_smaller_than_what_is_there_admits_nobody() -> None:
    store = Credits()
    store.draw(1, 10, 8)
    assert store.draw(2, 5, 1) == 0


def test_the_places_of_a_dead_worker_are_free() -> None:
    store, population = Credits(), Population()
    store.draw(1, 1, 1)
    population.enter(1, [(SHOP, 1), (APP, 0)])
    assert store.draw(2, 1, 1) == 0
    assert population.enter(2, [(SHOP, 1)]) == SHOP
    store.died(1)
    population.died(1)
    population.died(3)
    assert store.draw(2, 1, 1) == 1
    assert population.enter(2, [(SHOP, 1)]) is None
    assert population.counts == {SHOP: 1}


def test_under_several_names_or_none() -> None:
    population = Population()
    assert population.enter(1, [(SHOP, 2), (APP, 1)]) is None
    assert population.enter(2, [(SHOP, 2), (APP, 1)]) == APP
    assert population.counts == {SHOP: 1, APP: 1}
    assert population.enter(2, [(SHOP, 2), (BOSS, 1)]) is None
    assert population.enter(3, [(SHOP, 2), (("user", "third"), 0)]) == SHOP
    assert population.enter(3, [(OTHER, 0), (APP, 0)]) is None
    population.leave(1, [SHOP, APP])
    assert population.counts == {SHOP: 1, BOSS: 1, OTHER: 1, APP: 1}
