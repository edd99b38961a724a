"""Which worker gets the next connection."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.fleet.acceptor import _AHEAD, Choice


class Workers:
    """What their rows of the board say."""

    def __init__(self, count: int) -> None:
        self.sessions: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        self.choice = Choice(lambda index: self.sessions[index], lambda index: self.taken[index])
        for index in range(count):
            self.choice.join(index)

    def connect(self) -> int:
        """One more connection -> who got it."""
        index = self.choice.order()[0]
        self.choice.passed(index)
        return index

    def take(self, index: int) -> None:
        """It has begun the session."""
        self.sessions[index] += 1
        self.taken[index] += 1


def test_nobody_is_there() -> None:
    assert Workers(0).choice.order() == []


def test_it_goes_round_among_equals() -> None:
    workers = Workers(3)
    assert [workers.connect() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_short_sessions_go_round_too() -> None:
    workers = Workers(3)
    got = []
    for _ in range(6):
        index = workers.connect()
        got.append(index)
        # It has come and gone before the next.
        workers.taken[index] += 1
    assert got == [0, 1, 2, 0, 1, 2]


def test_the_fewest_sessions_come_first_and_those_on_their_way_count() -> None:
    workers = Workers(3)
    workers.sessions.update({0: 5, 1: 2, 2: 4})
    assert workers.choice.order() == [1, 2, 0]
    assert [workers.connect() for _ in range(4)] == [1, 1, 2, 1]
    assert workers.choice.under_way(1) == 3


def test_one_that_takes_nothing_gets_no_more() -> None:
    workers = Workers(2)
    workers.sessions[1] = 1000
    for _ in range(_AHEAD):
        assert workers.connect() == 0
    assert workers.choice.order() == [1]
    workers.take(0)
    assert workers.choice.order() == [0, 1]


def test_one_that_is_gone_is_not_asked_and_begins_anew() -> None:
    workers = Workers(2)
    for _ in range(5):
        workers.connect()
    workers.choice.leave(0)
    workers.choice.leave(0)
    assert workers.choice.order() == [1]
    workers.sessions[0] = workers.taken[0] = 0
    workers.choice.join(0)
    assert workers.choice.under_way(0) == 0
    assert workers.choice.order() == [0, 1]


@pytest.mark.parametrize(("sessions", "count"), [(20, 2), (20, 4), (50, 2), (50, 4), (7, 16)])
def test_the_spread_is_even_however_late_workers_take_them(sessions: int, count: int) -> None:
    workers = Workers(count)
    got = Counter(workers.connect() for _ in range(sessions))
    assert max(got.values()) - min(got[index] for index in range(count)) <= 1


@given(
    count=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(["connect", "take", "end"]), st.integers(0, 4)), max_size=80),
)
def test_whatever_happens_the_next_goes_where_the_fewest_are(count: int, steps: list[tuple[str, int]]) -> None:
    workers = Workers(count)
    there: Counter[int] = Counter()
    for step, number in steps:
        index = number % count
        if step == "connect":
            fewest = min(there[each] for each in range(count))
            chosen = workers.connect()
            assert there[chosen] == fewest
            there[chosen] += 1
        elif step == "take" and workers.choice.under_way(index):
            workers.take(index)
        elif step == "end" and workers.sessions[index]:
            workers.sessions[index] -= 1
            there[index] -= 1
    assert all(there[index] == workers.sessions[index] + workers.choice.under_way(index) for index in range(count))
