"""The fleet's limits on backends: who is granted a place, and who is asked for one."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pgtrunk_gateway.fleet.account import Level, Limit, Name
from pgtrunk_gateway.fleet.bank import Bank, Decision, Grant, Keep, Recall, Release

NEVER: Final = float("inf")
Accounts = list[tuple[Name, Limit]]


def accounts(
    database: str = "shop", user: str = "app", size: int = 0, reserve: int = 0, minimum: int = 0, **limits: int
) -> Accounts:
    """Those of one pool."""
    return [
        (("pool", database, user), Limit(size, reserve, minimum)),
        (("database", database), Limit(limits.get("database_limit", 0))),
        (("user", user), Limit(limits.get("user_limit", 0))),
    ]


def names(pool: Accounts) -> list[Name]:
    return [name for name, _ in pool]


class Desk:
    """A bank, and what it has said last."""

    def __init__(self, **limits: Any) -> None:
        self.bank = Bank()
        self.pool = accounts(**limits)
        self.said: list[Decision] = []
        self.seen: dict[tuple[int, Name], int] = {}

    def want(
        self, worker: int, count: int = 1, *, pool: Accounts | None = None, since: float = 1.0, **level: Any
    ) -> None:
        pool = pool or self.pool
        level = {"pressing": True, **level}
        seen = self.seen.get((worker, pool[0][0]), 0)
        self.hear(self.bank.want(worker, pool, Level(count=count, since=since, **level), seen))

    def back(self, worker: int, count: int = 1, pool: Accounts | None = None) -> None:
        self.hear(self.bank.give_back(worker, names(pool or self.pool), count))

    def answer(self, recall: Recall, *, closing: bool) -> None:
        self.hear(self.bank.answer(recall.number, closing=closing))

    def hear(self, said: list[Decision]) -> None:
        self.said = said
        for grant in self.grants:
            key = grant.worker, grant.names[0]
            self.seen[key] = self.seen.get(key, 0) + grant.count

    @property
    def grants(self) -> list[Grant]:
        return [each for each in self.said if isinstance(each, Grant)]

    @property
    def recalls(self) -> list[Recall]:
        return [each for each in self.said if isinstance(each, Recall)]

    @property
    def granted(self) -> dict[int, int]:
        return {grant.worker: grant.count for grant in self.grants}

    def held(self, name: Name | None = None) -> dict[int, int]:
        account = self.bank.accounts.get(name or self.pool[0][0])
        return {} if account is None else account.held


# -- grants ------------------------------------------------------------------------------------------------------------


def test_what_there_is_room_for_is_granted_at_once_and_nothing_beyond() -> None:
    desk = Desk(size=3)
    desk.want(1, 5)
    assert desk.granted == {1: 3}
    assert not desk.recalls


def test_one_worker_may_have_the_whole_pool() -> None:
    desk = Desk(size=20)
    for count in range(20):
        desk.want(1)
        assert desk.held() == {1: count + 1}
    desk.want(1)
    assert not desk.grants


@pytest.mark.parametrize("limits", [{"database_limit": 2}, {"user_limit": 2}, {"size": 2}])
def test_a_place_is_one_on_all_accounts_or_none(limits: dict[str, int]) -> None:
    desk = Desk(**limits)
    desk.want(1, 2)
    desk.want(2, 1)
    assert not desk.grants
    assert [account.total for account in desk.bank.accounts.values()] == [2, 2, 2]
    desk.back(1)
    assert desk.granted == {2: 1}
    assert [account.total for account in desk.bank.accounts.values()] == [2, 2, 2]


def test_no_limit_is_no_limit() -> None:
    desk = Desk()
    desk.want(1, 1000)
    assert desk.granted == {1: 1000}


def test_who_has_fewest_goes_first_and_of_these_who_waits_longest() -> None:
    desk = Desk(size=4)
    desk.want(1, 4)
    desk.want(2, 3, since=5.0)
    desk.want(3, 3, since=4.0)
    desk.back(1, 1)
    assert desk.granted == {3: 1}
    desk.back(1, 3)
    assert desk.granted == {2: 2, 3: 1}


def test_who_is_younger_leaves_a_place_for_who_is_older_and_needs_another_one_too() -> None:
    """Else it could be that never both of them are free at once."""
    desk = Desk(database_limit=2, user_limit=1)
    other = accounts("other", "app", user_limit=1)
    third = accounts("shop", "somebody", database_limit=2)
    desk.want(1, pool=other)
    desk.want(1, pool=third)
    desk.want(2, since=1.0)
    assert not desk.grants
    desk.want(3, pool=third, since=2.0)
    assert not desk.grants
    desk.back(1, pool=other)
    assert desk.granted == {2: 1}
    desk.back(1, pool=third)
    assert desk.granted == {3: 1}


def test_what_is_on_its_way_is_not_granted_twice() -> None:
    """The worker has not heard of the first two when it says that it wants three."""
    desk = Desk(size=9)
    desk.want(1, 2)
    desk.hear(desk.bank.want(1, desk.pool, Level(count=3, since=1.0), 0))
    assert desk.granted == {1: 1}
    desk.hear(desk.bank.want(1, desk.pool, Level(count=2, since=1.0), 3))
    assert desk.granted == {1: 2}


def test_what_nobody_wants_any_more_is_not_granted() -> None:
    desk = Desk(size=1)
    desk.want(1)
    desk.want(2)
    desk.want(2, 0)
    desk.back(1)
    assert not desk.grants
    assert not desk.bank.accounts


# -- reserve and minimum -----------------------------------------------------------------------------------------------


def test_the_reserve_is_for_who_has_waited_long() -> None:
    desk = Desk(size=2, reserve=1)
    desk.want(1, 2)
    desk.want(2, 1)
    assert not desk.grants
    desk.want(3, 1, late=1, since=9.0)
    assert desk.grants == [Grant(3, tuple(names(desk.pool)), 1, 1)]
    # As long as it is in use, the next place that is free is none.
    desk.back(1)
    assert not desk.grants
    desk.back(1)
    assert desk.granted == {2: 1}


def test_what_is_late_takes_an_ordinary_place_if_there_is_one() -> None:
    desk = Desk(size=2, reserve=1)
    desk.want(1, 3, late=3)
    assert desk.grants == [Grant(1, tuple(names(desk.pool)), 3, 1)]


def test_the_minimum_is_for_all_workers_together() -> None:
    desk = Desk(size=5, minimum=3)
    desk.want(1, 0, short=3, since=NEVER, pressing=False)
    assert desk.granted == {1: 3}
    assert Keep(1, desk.pool[0][0], 3) in desk.said
    desk.want(2, 0, short=3, since=NEVER, pressing=False)
    assert not desk.grants
    # And what is not there any more, another one opens, and keeps.
    desk.back(1)
    assert desk.granted == {2: 1}
    assert {(each.worker, each.count) for each in desk.said if isinstance(each, Keep)} == {(1, 2), (2, 1)}


def test_who_waits_goes_before_the_minimum() -> None:
    desk = Desk(database_limit=2, minimum=2)
    desk.want(1, 0, short=2, since=NEVER, pressing=False)
    other = accounts("shop", "other", database_limit=2)
    desk.want(2, pool=other)
    assert [(each.worker, each.name) for each in desk.recalls] == [(1, ("database", "shop"))]
    desk.back(1)
    assert desk.granted == {2: 1}


def test_a_smaller_minimum_is_kept_by_fewer() -> None:
    desk = Desk(size=5, minimum=3)
    desk.want(1, 2)
    desk.want(2, 2)
    desk.hear(desk.bank.limit({desk.pool[0][0]: Limit(5, 0, 1)}))
    account = desk.bank.accounts[desk.pool[0][0]]
    assert sum(account.kept.values()) == 1


# -- recalls -----------------------------------------------------------------------------------------------------------


def test_holders_are_asked_one_after_the_other_those_with_most_first() -> None:
    desk = Desk(size=6)
    desk.want(1, 1)
    desk.want(2, 3)
    desk.want(3, 2)
    desk.want(4, 1)
    asked = []
    while desk.recalls:
        (recall,) = [each for each in desk.recalls if each.worker not in asked]
        asked.append(recall.worker)
        desk.answer(recall, closing=False)
    assert asked == [2, 3, 1]


def test_no_more_is_asked_for_than_is_needed() -> None:
    desk = Desk(size=4)
    desk.want(1, 2)
    desk.want(2, 2)
    desk.want(3, 1)
    (recall,) = desk.recalls
    desk.answer(recall, closing=True)
    assert not desk.said
    desk.back(recall.worker)
    assert desk.granted == {3: 1}
    assert not desk.recalls


def test_who_is_not_pressed_asks_nobody() -> None:
    desk = Desk(size=1)
    desk.want(1)
    desk.want(2, pressing=False)
    assert not desk.said
    desk.want(2, pressing=True)
    assert [each.worker for each in desk.recalls] == [1]


def test_who_does_not_wait_any_more_leaves_the_others_what_they_have() -> None:
    desk = Desk(size=1)
    desk.want(1)
    desk.want(2)
    (recall,) = desk.recalls
    desk.answer(recall, closing=False)
    desk.want(2, 0)
    assert desk.said == [Release(1, recall.number)]
    # Whatever the worker answers to that.
    desk.answer(recall, closing=True)
    assert not desk.said


@pytest.mark.parametrize(
    ("mine", "theirs", "since"),
    [(0, 5, 7.0), (0, 1, 7.0), (1, 4, 7.0), (2, 4, 7.0), (2, 3, NEVER), (3, 3, NEVER), (3, 2, NEVER)],
)
def test_what_is_in_use_goes_to_who_has_none_or_two_less(mine: int, theirs: int, since: float) -> None:
    desk = Desk(size=mine + theirs)
    desk.want(1, theirs)
    if mine:
        desk.want(2, mine)
    desk.want(2, since=7.0)
    assert [(each.worker, each.since) for each in desk.recalls] == [(1, since)]


def test_of_several_holders_only_the_largest_gives_to_one_that_has_some() -> None:
    desk = Desk(size=8)
    desk.want(1, 3)
    desk.want(2, 4)
    desk.want(3, 1)
    desk.want(3, since=7.0)
    (first,) = desk.recalls
    desk.answer(first, closing=False)
    (second,) = desk.recalls
    assert [(each.worker, each.since) for each in (first, second)] == [(2, 7.0), (1, NEVER)]


def test_to_one_that_has_none_anybody_gives() -> None:
    desk = Desk(size=3)
    desk.want(1, 1)
    desk.want(2, 2)
    desk.want(3, since=7.0)
    (first,) = desk.recalls
    desk.answer(first, closing=False)
    assert [(each.worker, each.since) for each in (first, *desk.recalls)] == [(2, 7.0), (1, 7.0)]


def test_another_pool_in_the_same_worker_gives_way_too() -> None:
    desk = Desk(database_limit=1)
    other = accounts("shop", "other", database_limit=1)
    desk.want(1)
    desk.want(1, pool=other, since=7.0)
    assert [(each.worker, each.name, each.since) for each in desk.recalls] == [(1, ("database", "shop"), 7.0)]


def test_who_needs_two_places_gets_only_what_is_idle() -> None:
    """Two such pools could go on closing each other's backends."""
    desk = Desk(database_limit=1, user_limit=1)
    desk.want(1, pool=accounts("shop", "other", database_limit=1))
    desk.want(1, pool=accounts("other", "app", user_limit=1))
    desk.want(2, since=7.0)
    assert {(each.name, each.since) for each in desk.recalls} == {
        (("database", "shop"), NEVER),
        (("user", "app"), NEVER),
    }


def test_a_full_pool_is_asked_alone() -> None:
    desk = Desk(size=2, database_limit=2, user_limit=2)
    desk.want(1, 2)
    desk.want(2)
    assert [each.name for each in desk.recalls] == [desk.pool[0][0]]


def test_its_own_pool_is_asked_for_who_has_no_use_for_what_is_idle_there() -> None:
    desk = Desk(size=1)
    desk.want(1)
    desk.want(1, since=7.0)
    assert not desk.recalls
    desk.want(1, since=7.0, own=True)
    assert [(each.worker, each.since) for each in desk.recalls] == [(1, 7.0)]


def test_a_pool_that_becomes_smaller_takes_back_what_is_too_much() -> None:
    desk = Desk(size=4)
    desk.want(1, 3)
    desk.want(2, 1)
    desk.hear(desk.bank.limit({desk.pool[0][0]: Limit(2)}))
    assert [(each.worker, each.since) for each in desk.recalls] == [(1, -NEVER)] * 2
    desk.hear(desk.bank.limit({desk.pool[0][0]: Limit(2)}))
    assert not desk.said
    first, second = desk.bank.accounts[desk.pool[0][0]].recalled.values()
    for recalled in (first, second):
        desk.hear(desk.bank.answer(recalled.number, closing=True))
        desk.back(1)
        assert not desk.said
    desk.want(2)
    assert not desk.grants


def test_a_larger_limit_lets_in_who_waits() -> None:
    desk = Desk(size=1)
    desk.want(1)
    desk.want(2)
    desk.hear(desk.bank.limit({desk.pool[0][0]: Limit(2)}))
    assert desk.granted == {2: 1}


# -- the end of workers ------------------------------------------------------------------------------------------------


def test_what_a_dead_worker_held_is_held_until_nothing_is_left_of_it() -> None:
    desk = Desk(size=2, minimum=2)
    desk.want(1, 2)
    desk.want(2, 2)
    desk.hear(desk.bank.died(1))
    assert not desk.grants
    assert not desk.recalls
    desk.hear(desk.bank.bury(1))
    assert desk.granted == {2: 2}
    assert desk.held() == {2: 2}


def test_a_worker_that_died_waits_no_more() -> None:
    desk = Desk(size=1)
    desk.want(1)
    desk.want(2, since=1.0)
    desk.want(3, since=2.0)
    desk.hear(desk.bank.died(2))
    desk.hear(desk.bank.bury(2))
    desk.back(1)
    assert desk.granted == {3: 1}


def test_whom_it_asked_is_another_one_then() -> None:
    desk = Desk(size=2)
    desk.want(1)
    desk.want(2)
    desk.want(3)
    (first,) = desk.recalls
    desk.hear(desk.bank.died(first.worker))
    assert [each.worker for each in desk.recalls] == [3 - first.worker]
