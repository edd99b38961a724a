"""Who gets which slot, when a connection is opened or closed, and who is refused: decisions, by a clock of our own."""

from __future__ import annotations

import pytest

from helpers.desk import Peer, Waiter, desk, kinds, links, open_desk, refusals
from pgtrunk.decisions import Dial, Full, HangUp, LinkGone, Refuse, Shut, Unreachable, Vacate, WakeAt
from pgtrunk.errors import GatewayUnreachable, SessionLost

REFUSED = GatewayUnreachable("nobody listens")
LOST = SessionLost("idle for 10 s")


# Packing.


def test_the_first_caller_has_a_connection_opened_and_gets_its_first_slot() -> None:
    it = desk()
    waiter, decisions = it.ask()
    assert decisions == (Dial(link=1, waiting=1, ready=0, failures=0), WakeAt(None))
    assert waiter.slot is None
    assert it.connect(1) == (WakeAt(None),)
    assert waiter.slot is not None
    assert waiter.slot.link == 1


def test_a_further_connection_is_dialled_only_for_those_whom_the_dialled_ones_cannot_take() -> None:
    it = desk(connections=4, streams=10)
    assert [links(it.ask()[1]) for _ in range(11)] == [[1], *[[]] * 9, [12 - 10]]
    assert len(it.core.links) == 2


def test_one_that_turned_out_small_makes_the_next_ones_counted_small() -> None:
    it = desk(connections=4, streams=10)
    it.asks(10)
    # The gateway allows 5 streams here, one of them kept for cancels: 4 sessions, so 6 wait, for two connections more.
    assert len(links(it.connect(1, credit=5))) == 2


def test_a_session_goes_to_the_first_connection_with_room() -> None:
    it = open_desk(connections=3, streams=2)
    first, second = it.session(), it.session()
    third, decisions = it.ask()
    (link,) = links(decisions)
    it.connect(link)
    assert third.slot is not None
    assert [first.link, second.link, third.slot.link] == [1, 1, link]
    it.open(third.slot)
    it.close(first)
    assert it.session().link == 1, "a freed slot of an earlier connection is used again"
    assert it.session().link == link


def test_nothing_is_dialled_beyond_connections() -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    waiter, decisions = it.ask()
    assert links(decisions) == []
    assert waiter.slot is None


@pytest.mark.parametrize(("credit", "granted"), [(1, 1), (2, 1), (9, 8), (64, 56), (1000, 100)])
def test_the_gateways_limit_less_the_reserve_is_never_passed(credit: int, granted: int) -> None:
    it = desk(connections=1, streams=100)
    waiters = it.asks(200)
    it.connect(1, credit)
    assert sum(waiter.slot is not None for waiter in waiters) == granted


def test_credit_that_grows_serves_those_who_wait() -> None:
    it = desk(connections=1, streams=100)
    waiters = it.asks(5)
    it.connect(1, credit=2)
    it.peers[1].stream_credit += 2
    it.core.decide(it.now)
    assert [waiter.slot is not None for waiter in waiters] == [True, True, True, False, False]


# Waiting.


def test_callers_are_served_in_order_and_one_who_left_is_passed_over() -> None:
    it = open_desk(connections=1, streams=1)
    slot = it.session()
    first, second, third = it.asks(3)
    first.willing = False
    it.close(slot)
    assert [first.slot, third.slot] == [None, None]
    assert second.slot is not None
    it.core.release(second.slot, it.now)
    assert third.slot is not None
    assert it.core.waiting == 0


def test_nobody_is_overtaken_by_one_who_comes_while_there_is_room() -> None:
    it = open_desk(connections=1, streams=2)
    slot = it.session()
    it.peers[1].stream_credit = 0
    early, _ = it.ask()
    it.close(slot)
    it.peers[1].stream_credit = 18
    late, _ = it.ask()
    assert early.slot is not None
    assert late.slot is not None
    assert early.slot.number < late.slot.number


def test_who_comes_back_with_an_old_number_gets_the_old_place() -> None:
    it = open_desk(connections=1, streams=1)
    slot = it.session()
    first, second = it.asks(2)
    it.core.withdraw(first, it.now)
    it.core.enqueue(first, it.now)
    it.close(slot)
    assert first.slot is not None
    assert second.slot is None


def test_who_withdraws_waits_no_longer() -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    waiter, _ = it.ask()
    it.core.withdraw(waiter, it.now)
    assert it.core.waiting == 0
    assert it.core.expire(waiter, it.now) == ()


def test_a_slot_that_nobody_took_is_not_lost() -> None:
    it = open_desk(connections=1, streams=1)
    it.ask(willing=False)
    assert it.core.links[1].is_idle
    assert it.session().link == 1


def test_who_has_waited_too_long_is_told_how_many_wait_and_what_decided() -> None:
    it = open_desk(connections=2, streams=1)
    it.session()
    it.now = 5.0
    first, (dial, _) = it.ask()
    it.core.failed(dial.link, REFUSED, it.now, 0.0)
    it.now = 7.0
    second, _ = it.ask()
    it.now = 9.0
    ((refused, why),) = refusals(it.core.expire(second, it.now))
    assert refused is second
    assert why == Full(
        waited=2.0, waiting=2, oldest=4.0, ready=1, connections=2, sessions=1, streams_per_connection=1,
        limited_by_gateway=0, cause=REFUSED,
    )  # fmt: skip
    assert first.slot is None
    assert it.core.waiting == 1


# Cancels.


def test_a_cancel_goes_to_its_own_link_outside_the_cap_and_before_the_sessions() -> None:
    it = open_desk(connections=1, streams=2, credit=3)
    it.session(), it.session()
    session, _ = it.ask()
    cancel, _ = it.ask(link=1)
    assert session.slot is None
    assert cancel.slot is not None
    assert not cancel.slot.session
    it.open(cancel.slot)
    second, _ = it.ask(link=1)
    assert second.slot is None, "the reserve is used up"
    it.close(cancel.slot)
    assert second.slot is not None


def test_where_one_stream_is_left_a_cancel_gets_it() -> None:
    it = open_desk(connections=1, streams=2, credit=1)
    it.session()
    session, _ = it.ask()
    cancel, _ = it.ask(link=1)
    it.peers[1].stream_credit = 1
    it.core.decide(it.now)
    assert session.slot is None
    assert cancel.slot is not None


def test_a_cancel_whose_session_is_gone_is_refused() -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    it.peers[1].stream_credit = 0
    waiting, _ = it.ask(link=1)
    assert refusals(it.core.lost(1, LOST, it.now, 0.0)) == [(waiting, LinkGone())]
    late, decisions = it.ask(link=1)
    assert refusals(decisions) == [(late, LinkGone())]


# Idle connections, and the end.


def test_a_connection_without_streams_is_closed_after_a_while() -> None:
    it = open_desk(max_idle=5.0)
    it.now = 2.0
    slot = it.session()
    it.now = 3.0
    assert it.close(slot) == (WakeAt(8.0),)
    it.now = 7.9
    assert it.core.decide(it.now) == (WakeAt(8.0),)
    it.now = 8.0
    assert it.core.decide(it.now) == (HangUp(1, 5.0), WakeAt(None))
    assert it.core.links == {}


def test_one_that_is_opened_but_not_wanted_any_more_is_closed_too() -> None:
    it = desk(max_idle=5.0)
    waiter, _ = it.ask()
    it.core.withdraw(waiter, it.now)
    assert it.connect(1) == (WakeAt(5.0),)


def test_after_shut_everybody_is_refused_and_nothing_is_dialled() -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    waiter, _ = it.ask()
    cancel = Waiter(99, link=1, willing=False)
    it.core.enqueue(cancel, it.now)
    assert refusals(it.core.shut(it.now)) == [(waiter, Shut())]
    late, decisions = it.ask()
    assert decisions == (Refuse(late, Shut()), WakeAt(None))
    late_cancel, decisions = it.ask(link=1)
    assert decisions == (Refuse(late_cancel, Shut()), WakeAt(None))
    assert it.core.connected(5, Peer(), it.now, 0.0) == ()


def test_repr_is_what_a_log_needs() -> None:
    it = open_desk(connections=2, streams=2)
    it.session(), it.session()
    it.ask()
    assert repr(it.core) == "[connections: 1 ready, 1 connecting, of 2 | streams: 2 in use, of 4 | 1 waiting]"
    assert repr(desk().core) == "[connections: 0 ready, of 2 | streams: 0 in use, of 4 | 0 waiting]"


# Leaving.


def test_a_connection_that_is_to_be_left_is_replaced_before_its_sessions_move() -> None:
    it = open_desk(connections=1)
    slot = it.session()
    assert it.core.leave(slot.link, it.now, 0.25) == (WakeAt(0.25),)
    assert not it.core.may_leave(slot.link)
    assert repr(it.core).startswith("[connections: 0 ready, 1 leaving, of 1")
    it.now = 0.25
    (dial,) = kinds(it.core.decide(it.now))
    assert isinstance(dial, Dial)
    assert (dial.waiting, dial.ready) == (0, 0)
    assert kinds(it.connect(dial.link)) == [Vacate(slot.link)]
    assert it.core.may_leave(slot.link)
    assert not it.core.may_leave(dial.link)
    assert kinds(it.core.decide(it.now)) == [], "told once"
    assert it.session().link == dial.link
    assert kinds(it.close(slot)) == [HangUp(slot.link, 0.0)], "at once"


def test_whoever_waits_needs_another_connection_at_once() -> None:
    it = open_desk(connections=1, streams=5)
    slot = it.session()
    it.core.leave(slot.link, it.now, 0.25)
    waiter, decisions = it.ask()
    (link,) = links(decisions)
    it.connect(link)
    assert waiter.slot is not None
    assert waiter.slot.link == link


def test_where_another_connection_is_open_none_is_dialled() -> None:
    it = open_desk(connections=3, streams=1)
    first = it.session()
    _, decisions = it.ask()
    it.connect(*links(decisions))
    assert kinds(it.core.leave(first.link, it.now, 0.0)) == [Vacate(first.link)]


def test_one_without_sessions_is_closed_and_not_replaced() -> None:
    it = open_desk()
    (link,) = it.core.links
    assert it.core.leave(link, it.now, 0.0) == (HangUp(link, 0.0), WakeAt(None))
    assert it.core.leave(link, it.now, 0.0) == ()


def test_cancels_go_to_a_connection_that_is_left_and_sessions_do_not() -> None:
    it = open_desk(connections=1, streams=5)
    slot = it.session()
    it.core.leave(slot.link, it.now, 9.0)
    cancel, _ = it.ask(link=slot.link)
    assert cancel.slot is not None
    session, _ = it.ask()
    assert session.slot is None
    assert kinds(it.close(slot)) == [], "its cancel is not sent yet"


def test_while_no_other_can_be_had_sessions_stay_and_new_ones_wait_and_then_are_told() -> None:
    it = open_desk(connections=1, streams=5, patience=10.0)
    slot = it.session()
    it.core.leave(slot.link, it.now, 0.0)
    (link,) = [link for link in it.core.links if link != slot.link]
    waits: list[float] = []
    for _ in range(4):
        decisions = it.core.failed(link, REFUSED, it.now, 0.0)
        assert not links(decisions)
        wake = decisions[-1]
        assert isinstance(wake, WakeAt)
        when = wake.when
        assert when is not None
        waits.append(when - it.now)
        it.now = when
        (link,) = links(it.core.decide(it.now))
    assert waits == sorted(waits)
    assert waits[0] < waits[-1], "ever more rarely, though there is a connection that is old and fine"
    waiter, decisions = it.ask()
    assert not refusals(decisions), "one is being tried"
    assert [who for who, why in refusals(it.core.failed(link, REFUSED, 20.0, 0.0)) if isinstance(why, Unreachable)] == [
        waiter
    ]
    assert slot.link in it.core.links


def test_the_end_of_a_connection_that_was_to_be_left_is_no_failure() -> None:
    it = open_desk(connections=1)
    slot = it.session()
    it.core.leave(slot.link, it.now, 9.0)
    it.core.lost(slot.link, LOST, it.now, 0.0)
    assert it.core.reach.failures == 0
    _, decisions = it.ask()
    assert len(links(decisions)) == 1


def test_with_no_sessions_left_nothing_is_dialled_any_more() -> None:
    it = open_desk(connections=1)
    slot = it.session()
    it.core.leave(slot.link, it.now, 0.25)
    assert it.close(slot) == (HangUp(slot.link, 0.0), WakeAt(None))
    it.now = 1.0
    assert it.core.decide(it.now) == (WakeAt(None),)
