"""Buckets of times: their boundaries, which are part of a format, and what is counted in them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.histogram import BUCKETS, Histogram, bucket_of, lower, middle


def test_the_boundaries_are_those_of_the_format() -> None:
    assert [lower(bucket) for bucket in range(18)] == [*range(16), 16, 18]
    assert [lower(bucket) for bucket in (24, 97, 147, 255)] == [32, 18432, 1441792, 15 << 30]
    assert all(lower(bucket) < lower(bucket + 1) for bucket in range(BUCKETS - 1))


@given(st.integers(0, (1 << 34) - 1))
def test_each_time_has_the_bucket_that_its_bits_say(microseconds: int) -> None:
    shift = max(microseconds.bit_length() - 4, 0)
    expected = 8 * shift + (microseconds >> shift)
    # In the middle of the microsecond, where no rounding of floats decides.
    assert bucket_of((microseconds + 0.5) / 1e6) == expected
    assert lower(expected) <= microseconds


@pytest.mark.parametrize(("seconds", "bucket"), [(-1.0, 0), (0.0, 0), (1e-7, 0), (1e5, 255), (1e300, 255)])
def test_what_is_beyond_the_ends(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket


@given(st.floats(16e-6, 15e3))
def test_a_bucket_stands_for_its_times_within_a_sixteenth(seconds: float) -> None:
    assert middle(bucket_of(seconds)) == pytest.approx(seconds, rel=1 / 16 + 1e-9)


def test_what_is_too_short_to_be_measured_stands_for_nothing() -> None:
    assert middle(0) == 0.0


@given(st.lists(st.floats(0, 1e4)), st.lists(st.floats(0, 1e4)))
def test_counts_of_two_are_those_of_all(mine: list[float], theirs: list[float]) -> None:
    apart, together = Histogram(), Histogram()
    for seconds in mine:
        apart.add(seconds)
    apart.merge(Counter(map(bucket_of, theirs)).items(), sum(theirs))
    for seconds in (*mine, *theirs):
        together.add(seconds)
    assert apart.counts == together.counts
    assert apart.total == pytest.approx(together.total)
    assert apart.count == len(mine) + len(theirs)
    assert sum(count for _, count in apart.pairs()) == apart.count
