"""In which order the servers of a list are tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.pool.candidates import Candidate, in_order

FITS, UNKNOWN, OTHER = Candidate(True), Candidate(None), Candidate(False)
DOWN = Candidate(None, is_down=True)

candidates = st.lists(st.builds(Candidate, st.sampled_from([True, False, None]), st.booleans()), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("known", "first", "several", "order"),
    [
        ([UNKNOWN, UNKNOWN, UNKNOWN], 0, False, [0, 1, 2]),
        ([UNKNOWN, UNKNOWN, UNKNOWN], 1, True, [1, 2, 0]),
        ([UNKNOWN, UNKNOWN, UNKNOWN], 5, True, [2, 0, 1]),
        ([OTHER, UNKNOWN, FITS], 0, False, [2, 1, 0]),
        ([OTHER, UNKNOWN, FITS], 0, True, [1, 2, 0]),
        ([DOWN, OTHER, UNKNOWN], 0, False, [2, 1, 0]),
        # The one that has failed is not tried first for being the one that served.
        ([FITS, DOWN], 1, False, [0, 1]),
        ([FITS, FITS], 1, False, [1, 0]),
    ],
)
def test_order(known: list[Candidate], first: int, several: bool, order: list[int]) -> None:
    assert in_order(known, first=first, several=several) == order


@given(candidates, st.integers(0, 100), st.booleans())
def test_each_is_tried_once_and_what_is_down_last(known: list[Candidate], first: int, several: bool) -> None:
    order = in_order(known, first=first, several=several)
    assert sorted(order) == list(range(len(known)))
    down = [known[at].is_down for at in order]
    assert down == sorted(down)


@given(st.integers(1, 6), st.integers(0, 100))
def test_equals_take_turns(count: int, turn: int) -> None:
    firsts = {in_order([FITS] * count, first=turn + each, several=True)[0] for each in range(count)}
    assert firsts == set(range(count))
