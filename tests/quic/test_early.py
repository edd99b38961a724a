from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.quic.early import FRESHNESS, Terms, UsedTickets

LIMITS = (1000, 10, 10, 10, 100, 1, 8)


def test_terms_come_back_whole() -> None:
    terms = Terms("pgtrunk/1", LIMITS)
    assert Terms.decode(terms.encode()) == terms


@given(changes=st.lists(st.integers(-2, 2), min_size=7, max_size=7), other=st.booleans())
def test_terms_hold_as_long_as_nothing_is_less(changes: list[int], other: bool) -> None:
    now = Terms(
        "postgresql" if other else "pgtrunk/1", tuple(each + by for each, by in zip(LIMITS, changes, strict=True))
    )
    assert Terms("pgtrunk/1", LIMITS).hold_under(now) is (not other and min(changes) >= 0)


def test_a_handshake_without_transport_parameters_has_no_terms() -> None:
    assert Terms.of("pgtrunk/1", []) is None


def test_a_ticket_is_used_once_while_it_is_fresh() -> None:
    used = UsedTickets(window=20)
    assert used.take(b"a", 100)
    assert not used.take(b"a", 100)
    assert used.take(b"b", 119)
    assert not used.take(b"a", 119.9)
    assert not used.take(b"b", 138.9)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 30)), max_size=60))
def test_it_is_never_taken_twice_within_the_window_and_never_remembered_for_long(
    uses: list[tuple[int, float]],
) -> None:
    used, now, taken = UsedTickets(window=20), 1000.0, dict[int, float]()
    for ticket, pause in uses:
        now += pause
        is_taken = used.take(bytes([ticket]), now)
        if is_taken:
            assert now - taken.get(ticket, -1e9) >= 20
            taken[ticket] = now
        else:
            assert now - taken[ticket] < 60


def test_when_there_is_no_room_early_data_is_not_taken() -> None:
    used = UsedTickets(window=20, most=3)
    assert [used.take(bytes([each]), 0) for each in range(5)] == [True, True, True, False, False]
    assert len(used) == 3
    assert not used.take(b"x", 30), "the older half is still fresh enough"
    assert used.take(b"x", 60)
    assert len(used) == 1


def test_the_window_is_as_long_as_a_ticket_of_one_age_is_fresh() -> None:
    used = UsedTickets()
    assert used.take(b"a", 0)
    assert not used.take(b"a", 2 * FRESHNESS - 0.001)
