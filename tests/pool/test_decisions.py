"""What a pool decides, by the rules in prose above the code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.pool.decisions import (
    Check,
    Close,
    Connect,
    Idle,
    Situation,
    Stale,
    Wake,
    decide,
    expires_at,
    gives_way,
    pause_after,
    to_evict,
)
from pgtrunk_gateway.pool.limits import PoolLimits

NOW = 1000.0
NEVER = 1e9


def situation(limits: dict[str, Any] | None = None, **values: Any) -> Situation:
    return Situation(**{"now": NOW, "limits": PoolLimits(**(limits or {})), **values})


def idle(number: int, *, since: float = NOW, expires: float = NEVER, stale: bool = False) -> Idle:
    return Idle(number, since, expires, stale)


def ids(decisions: list[Any], kind: type[Any]) -> list[int]:
    return [decision.id for decision in decisions if isinstance(decision, kind)]


def connects(decisions: list[Any]) -> int:
    return sum(decision.count for decision in decisions if isinstance(decision, Connect))


@pytest.mark.parametrize(
    ("values", "opened"),
    [
        ({}, 0),
        ({"waiting": 1}, 1),
        ({"waiting": 7}, 7),
        ({"waiting": 30}, 20),
        ({"waiting": 7, "connecting": 3}, 4),
        ({"waiting": 3, "connecting": 3}, 0),
        ({"waiting": 5, "busy": 18}, 2),
        ({"waiting": 5, "busy": 20}, 0),
        ({"waiting": 5, "busy": 17, "connecting": 3}, 0),
        ({"waiting": 2, "idle": [idle(1), idle(2)]}, 0),
        ({"waiting": 3, "idle": [idle(1), idle(2)]}, 1),
    ],
)
def test_as_many_are_opened_at_once_as_wait_and_have_room(values: dict[str, Any], opened: int) -> None:
    assert connects(decide(situation(**values))) == opened


@pytest.mark.parametrize(("waiting", "opened"), [(0, 0), (1, 1), (500, 500)])
def test_without_a_limit_there_is_room_for_all_who_wait(waiting: int, opened: int) -> None:
    assert connects(decide(situation({"size": 0}, waiting=waiting, busy=300))) == opened


@pytest.mark.parametrize(
    ("values", "opened"),
    [({}, 5), ({"busy": 2}, 3), ({"busy": 5}, 0), ({"connecting": 4}, 1), ({"waiting": 1}, 5), ({"waiting": 9}, 9)],
)
def test_below_the_minimum_connections_are_opened_unasked(values: dict[str, Any], opened: int) -> None:
    assert connects(decide(situation({"minimum": 5}, **values))) == opened


def test_the_reason_says_what_decided() -> None:
    assert decide(situation(waiting=3)) == [Connect(3, "3 sessions wait")]
    assert decide(situation({"minimum": 2})) == [Connect(2, "min_pool_size = 2", waited_for=False)]


def test_after_a_failure_nothing_is_opened_until_the_pause_is_over() -> None:
    assert decide(situation(waiting=3, retry_at=NOW + 5)) == [Wake(NOW + 5)]
    assert connects(decide(situation(waiting=3, retry_at=NOW))) == 3


def test_pauses_double_up_to_the_limit() -> None:
    assert [pause_after(failures, 15) for failures in range(10)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15]
    assert pause_after(10_000, 15) == 15


def test_an_idle_backend_is_closed_when_its_time_is_up() -> None:
    long_idle = idle(1, since=NOW - 600)
    assert decide(situation(idle=[long_idle, idle(2)]))[0] == Close(1, "server idle timeout")
    assert not any(isinstance(each, Close) for each in decide(situation({"idle_timeout": 0}, idle=[long_idle])))


def test_the_minimum_is_kept_whatever_its_idleness() -> None:
    backends = [idle(number, since=NOW - 700) for number in range(1, 6)]
    closed = [each.id for each in decide(situation({"minimum": 3}, idle=backends)) if isinstance(each, Close)]
    assert closed == [1, 2]


def test_the_longest_idle_is_the_first_to_go() -> None:
    backends = [idle(4, since=NOW - 900), idle(2, since=NOW - 800), idle(9, since=NOW - 1)]
    closed = [each.id for each in decide(situation(idle=backends)) if isinstance(each, Close)]
    assert closed == [4, 2]


def test_an_old_backend_is_closed_and_replaced_where_the_minimum_asks_for_it() -> None:
    decisions = decide(situation({"minimum": 1}, idle=[idle(1, expires=NOW)]))
    assert decisions == [Close(1, "server lifetime over"), Connect(1, "min_pool_size = 1", waited_for=False)]


def test_it_wakes_at_the_next_moment_that_matters() -> None:
    backends = [idle(1, since=NOW - 100, expires=NOW + 700), idle(2, since=NOW, expires=NOW + 300)]
    assert decide(situation(idle=backends)) == [Wake(NOW + 300)]
    assert decide(situation({"idle_timeout": 200}, idle=backends)) == [Wake(NOW + 100)]
    # At the minimum nothing is closed for being idle, so there is nothing to wake for.
    assert decide(situation({"idle_timeout": 200, "minimum": 2}, idle=backends)) == [Wake(NOW + 300)]


@pytest.mark.parametrize("luck", [0.0, 0.5, 0.999])
def test_lifetimes_are_spread_over_the_last_fifth(luck: float) -> None:
    assert 100 + 80 <= expires_at(100, PoolLimits(lifetime=100), luck) <= 100 + 100


@given(
    size=st.integers(0, 30),
    minimum=st.integers(0, 30),
    busy=st.integers(0, 30),
    connecting=st.integers(0, 30),
    waiting=st.integers(0, 100),
    ages=st.lists(st.tuples(st.floats(0, 2000), st.floats(-100, 4000)), max_size=20),
)
def test_whatever_the_situation(
    size: int, minimum: int, busy: int, connecting: int, waiting: int, ages: list[tuple[float, float]]
) -> None:
    backends = [idle(number, since=NOW - age, expires=NOW + left) for number, (age, left) in enumerate(ages, 1)]
    decisions = decide(
        situation(
            {"size": size, "minimum": min(minimum, size) if size else minimum},
            busy=busy,
            connecting=connecting,
            waiting=waiting,
            idle=backends,
        )
    )
    closed = [each.id for each in decisions if isinstance(each, Close)]
    kept = len(backends) - len(closed)
    assert len(set(closed)) == len(closed)
    if size and connects(decisions):
        assert kept + busy + connecting + connects(decisions) <= size
    assert sum(isinstance(each, Wake) for each in decisions) <= 1
    for each in decisions:
        if isinstance(each, Wake):
            assert each.at >= NOW
            assert decisions[-1] is each


@pytest.mark.parametrize(
    ("values", "opened", "reserve"),
    [
        ({"waiting": 9, "busy": 5}, 0, 0),
        ({"waiting": 9, "busy": 5, "overdue": 1}, 1, 1),
        ({"waiting": 9, "busy": 5, "overdue": 9}, 3, 3),
        ({"waiting": 9, "busy": 8, "overdue": 9}, 0, 0),
        ({"waiting": 9, "busy": 7, "overdue": 9}, 1, 1),
        # Those who are overdue are served first by what is under way.
        ({"waiting": 9, "busy": 3, "connecting": 2, "overdue": 2}, 0, 0),
        ({"waiting": 9, "busy": 3, "connecting": 2, "overdue": 4}, 2, 2),
        ({"waiting": 9, "busy": 3, "overdue": 4}, 4, 2),
        ({"waiting": 0, "busy": 5, "overdue": 0}, 0, 0),
    ],
)
def test_the_reserve_is_for_those_who_have_waited_long(values: dict[str, Any], opened: int, reserve: int) -> None:
    decisions = decide(situation({"size": 5, "reserve": 3, "reserve_timeout": 5}, **values))
    assert connects(decisions) == opened
    assert sum(each.reserve for each in decisions if isinstance(each, Connect)) == reserve


def test_without_its_timeout_there_is_no_reserve() -> None:
    limits = {"size": 5, "reserve": 3, "reserve_timeout": 0}
    assert not connects(decide(situation(limits, waiting=9, busy=5, overdue=9)))


CHECKED = {"check_query": "select 1", "check_delay": 30}


def test_a_backend_grows_stale_and_the_next_to_do_so_is_looked_at_in_time() -> None:
    backends = [idle(1, since=NOW - 31), idle(2, since=NOW - 30), idle(3, since=NOW - 12)]
    assert decide(situation(CHECKED, idle=backends)) == [Stale(1), Stale(2), Wake(NOW + 18)]


@pytest.mark.parametrize("limits", [{"check_query": None}, {"check_query": None, "check_delay": 0}])
def test_without_a_check_query_none_grows_stale(limits: dict[str, Any]) -> None:
    assert not ids(decide(situation(limits, idle=[idle(1, since=NOW - 100)])), Stale)


@pytest.mark.parametrize(
    ("values", "checked", "opened"),
    [
        ({"waiting": 0}, [], 0),
        ({"waiting": 1}, [3], 0),
        ({"waiting": 2}, [3, 2], 0),
        ({"waiting": 5}, [3, 2, 1], 2),
        ({"waiting": 2, "checking": 1}, [3], 0),
        ({"waiting": 2, "checking": 2}, [], 0),
        ({"waiting": 2, "connecting": 1}, [3], 0),
    ],
)
def test_who_waits_has_stale_backends_checked_the_last_used_first(
    values: dict[str, Any], checked: list[int], opened: int
) -> None:
    backends = [idle(number, since=NOW - 100 + number, stale=True) for number in (1, 2, 3)]
    decisions = decide(situation(CHECKED, idle=backends, **values))
    assert (ids(decisions, Check), connects(decisions)) == (checked, opened)


def test_a_stale_backend_is_closed_when_its_time_is_up_like_any_other() -> None:
    decisions = decide(situation(CHECKED, idle=[idle(1, since=NOW - 600, stale=True)], waiting=1))
    assert (ids(decisions, Close), ids(decisions, Check), connects(decisions)) == ([1], [], 1)


def test_a_paused_pool_closes_what_is_idle_and_opens_nothing() -> None:
    paused = situation({"minimum": 3}, idle=[idle(1), idle(2, stale=True)], waiting=5, paused=True)
    assert decide(paused) == [Close(1, "pause mode"), Close(2, "pause mode")]


@pytest.mark.parametrize(("admits", "opened"), [(None, 7), (1, 1), (0, 0)])
def test_a_server_that_is_suspect_is_tried_by_one(admits: int | None, opened: int) -> None:
    assert connects(decide(situation(waiting=7, admits=admits))) == opened


def test_a_pool_that_nobody_uses_does_not_open_its_minimum_but_keeps_it() -> None:
    limits = {"minimum": 2}
    assert not connects(decide(situation(limits, used=False)))
    long_idle = [idle(1, since=NOW - 700), idle(2, since=NOW - 700)]
    assert not ids(decide(situation(limits, used=False, idle=long_idle)), Close)


def test_a_pool_that_has_become_smaller_closes_the_rest() -> None:
    backends = [idle(1), idle(2), idle(3)]
    decisions = decide(situation({"size": 3, "reserve": 1}, idle=backends, busy=3))
    assert [each for each in decisions if isinstance(each, Close)] == [
        Close(1, "too many servers in the pool"),
        Close(2, "too many servers in the pool"),
    ]


@pytest.mark.parametrize(
    ("needs", "chosen"),
    [
        ([], []),
        ([(1, [])], None),
        ([(1, [Idle(1, 5.0), Idle(2, 3.0)])], [2]),
        ([(2, [Idle(1, 5.0), Idle(2, 3.0)])], [2, 1]),
        ([(3, [Idle(1, 5.0), Idle(2, 3.0)])], None),
        ([(1, [Idle(1, 5.0)]), (1, [Idle(2, 3.0)])], [1, 2]),
        # Nobody loses a backend for nothing.
        ([(1, [Idle(1, 5.0)]), (1, [])], None),
    ],
)
def test_who_is_evicted(needs: list[tuple[int, list[Idle]]], chosen: list[int] | None) -> None:
    assert to_evict(needs) == chosen


NOBODY = float("inf")


@pytest.mark.parametrize(
    ("own_oldest", "others", "gives"),
    [
        (10.0, [], False),
        (10.0, [(5.0, 0)], True),
        (10.0, [(15.0, 0)], False),
        (10.0, [(5.0, 1)], False),
        (10.0, [(5.0, 1), (7.0, 0)], True),
        (NOBODY, [(5.0, 0)], True),
        (NOBODY, [(5.0, 1)], False),
    ],
)
def test_who_gives_way(own_oldest: float, others: list[tuple[float, int]], gives: bool) -> None:
    assert gives_way(own_oldest, others) == gives


@pytest.mark.parametrize(
    ("limits", "values", "late", "short"),
    [
        ({}, {"waiting": 3}, 0, 0),
        ({"reserve": 2}, {"waiting": 3, "overdue": 2}, 2, 0),
        ({"reserve": 2}, {"waiting": 3, "overdue": 3, "connecting": 2}, 1, 0),
        ({"reserve": 2, "reserve_timeout": 0.0}, {"waiting": 3, "overdue": 3}, 0, 0),
        ({"size": 2, "reserve": 2}, {"waiting": 9, "overdue": 5, "busy": 2}, 2, 0),
        ({"minimum": 5}, {"waiting": 2}, 0, 3),
        ({"minimum": 5}, {}, 0, 5),
        ({"minimum": 5}, {"waiting": 9}, 0, 0),
        ({"minimum": 5}, {"waiting": 2, "admits": 1}, 0, 0),
        ({"minimum": 5}, {"waiting": 1, "admits": 3}, 0, 2),
    ],
)
def test_whom_connections_are_for(limits: dict[str, Any], values: dict[str, Any], late: int, short: int) -> None:
    (connect,) = [each for each in decide(situation(limits, **values)) if isinstance(each, Connect)]
    assert (connect.late, connect.short) == (late, short)


@pytest.mark.parametrize(("floor", "closed"), [(None, [1]), (0, [1, 2, 3]), (1, [1, 2]), (3, [])])
def test_a_part_of_the_minimum_is_what_is_kept_where_others_keep_the_rest(floor: int | None, closed: list[int]) -> None:
    backends = [idle(number, since=NOW - 100) for number in (1, 2, 3)]
    decisions = decide(situation({"minimum": 2, "idle_timeout": 50.0}, idle=backends, shared_floor=floor))
    assert ids(decisions, Close) == closed
