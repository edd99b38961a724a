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
