"""How long a lost gateway is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "jitter", "expected"),
    [(1, 0.0, 0.1), (2, 0.0, 0.2), (3, 0.0, 0.4), (4, 0.0, 0.8), (7, 0.0, 5.0), (5000, 0.0, 5.0), (1, 0.5, 0.075)],
)
def test_it_doubles_up_to_a_ceiling(failures: int, jitter: float, expected: float) -> None:
    assert Backoff().delay(failures, jitter) == pytest.approx(expected)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_off_at_most_half(failures: int, jitter: float) -> None:
    full = Backoff().delay(failures, 0.0)
    assert full / 2 <= Backoff().delay(failures, jitter) <= full <= 5.0


@pytest.mark.parametrize(
    ("failures", "jitter", "expected"), [(1, 0.0, 5.0), (1, 0.5, 2.5), (2, 0.0, 10.0), (2, 0.5, 7.5), (9, 0.0, 30.0)]
)
def test_where_nobody_waits_the_first_attempts_are_spread_and_later_ones_are_rare(
    failures: int, jitter: float, expected: float
) -> None:
    assert Backoff().calm(failures, jitter) == pytest.approx(expected)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_it_is_never_less_than_for_those_who_wait(failures: int, jitter: float) -> None:
    assert Backoff().delay(failures, jitter) <= Backoff().calm(failures, jitter) <= 30.0


def test_a_thousand_clients_that_lost_a_gateway_at_once_do_not_come_at_once() -> None:
    jitters = [number / 1000 for number in range(1000)]
    calm = sorted(Backoff().calm(1, jitter) for jitter in jitters)
    waited_for = sorted(Backoff().delay(1, jitter) for jitter in jitters)
    assert max(_in_any(calm, 0.1)) <= 40
    assert max(_in_any(waited_for, 0.01)) <= 250


def _in_any(times: list[float], window: float) -> list[int]:
    return [sum(first <= time < first + window for time in times) for first in times]
