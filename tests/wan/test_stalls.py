"""Whom a lost packet costs how much, from drops and late answers alone."""

from __future__ import annotations

from netem.stalls import ANY_FLOW, Drop, Late, Stalls, stalls


def late(session: int, sent: float, answered: float, flow: int = ANY_FLOW) -> Late:
    return Late(session=session, flow=flow, sent=sent, answered=answered)


def test_a_drop_that_nobody_waited_for_is_harmless() -> None:
    found = stalls([Drop(1.0, ANY_FLOW), Drop(5.0, ANY_FLOW)], [late(1, 4.99, 5.2)])
    assert (found.drops, found.harmless) == (2, 1)
    assert (found.waiting_mean, found.waiting_max) == (0.5, 1)


def test_one_whose_answer_had_come_was_not_stalled() -> None:
    assert stalls([Drop(2.0, ANY_FLOW)], [late(1, 1.0, 1.99), late(2, 2.5, 3.0)]).stalled_max == 0


def test_the_flows_of_others_are_not_asked() -> None:
    found = stalls([Drop(1.0, flow=7)], [late(1, 0.99, 1.3, flow=7), late(2, 0.99, 1.3, flow=8)])
    assert (found.waiting_max, found.stalled_max) == (1, 1)


def test_a_session_counts_once_however_many_answers_it_waits_for() -> None:
    assert stalls([Drop(1.0, ANY_FLOW)], [late(1, 0.98, 1.3), late(1, 0.99, 1.3)]).waiting_max == 1


def test_on_one_connection_all_stall_who_ask_before_the_repair() -> None:
    """The lost packet has session 0's request; those of 1 to 9 follow it, and are held up until it is sent again."""
    held = [late(session, 1.0 + session / 50, 1.25 + session / 1000) for session in range(10)]
    after = late(99, 1.4, 1.5)
    found = stalls([Drop(1.0005, ANY_FLOW)], [*held, after])
    assert (found.waiting_max, found.stalled_max) == (1, 10)


def test_a_link_that_looks_a_little_early_is_forgiven() -> None:
    assert stalls([Drop(0.9998, ANY_FLOW)], [late(1, 1.0, 1.3)]).stalled_max == 1


def test_an_answer_that_outlasts_others_is_still_found() -> None:
    """One waits very long; the search by time of sending must reach back that far."""
    found = stalls([Drop(5.0, ANY_FLOW)], [late(1, 1.0, 9.0), *(late(2, at / 10, at / 10 + 0.1) for at in range(49))])
    assert found.waiting_max == 1


def test_without_drops_there_is_nothing_to_say() -> None:
    nothing = Stalls(drops=0, harmless=0, waiting_mean=0, waiting_max=0, stalled_mean=0, stalled_max=0)
    assert stalls([], [late(1, 1.0, 2.0)]) == nothing
    assert nothing.figures()["stalled_sessions"] == 0
