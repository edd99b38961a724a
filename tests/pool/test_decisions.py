"""What a pool decides, by the rules in prose above the code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.pool.decisions import (
    Close,
    Connect,
    Idle,
    Situation,
    Wake,
    decide,
    expires_at,
    pause_after,
)
from pgtrunk_gateway.pool.limits import PoolLimits

NOW = 1000.0
NEVER = 1e9


def situation(limits: dict[str, Any] | None = None, **values: Any) -> Situation:
    return Situation(**{"now": NOW, "limits": PoolLimits(**(limits or {})), **values})


def idle(number: int, *, since: float = NOW, expires: float = NEVER) -> Idle:
    return Idle(number, since, expires)


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
