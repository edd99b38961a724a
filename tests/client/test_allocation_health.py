"""Links that do not answer, that are kept, and whose time is over: decisions, by a clock of our own."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.desk import Desk, desk, kinds, links, open_desk, refusals
from pgtrunk.decisions import Dial, HangUp, Keep, Replaced, Unreachable, Vacate, WakeAt
from pgtrunk.errors import GatewayUnreachable, SessionLost

REFUSED = GatewayUnreachable("nobody listens")
LOST = SessionLost("idle for 10 s")


def wake(decisions: tuple[Any, ...]) -> float | None:
    when: float | None = decisions[-1].when
    return when


# Suspect.


def test_a_suspect_connection_gets_no_more_sessions_and_another_is_dialled_for_who_waits() -> None:
    it = open_desk(connections=2, streams=5)
    silent = it.session().link
    assert kinds(it.core.suspect(silent, it.now, 0.5)) == []
    waiter, decisions = it.ask()
    (other,) = links(decisions)
    it.connect(other)
    assert waiter.slot is not None
    assert waiter.slot.link == other


def test_where_another_has_room_nothing_is_dialled_and_idle_sessions_move_there() -> None:
    it = open_desk(connections=2, streams=1)
    first = it.session()
    _, decisions = it.ask()
    it.connect(*links(decisions))
    assert kinds(it.core.suspect(first.link, it.now, 0.5)) == [Vacate(first.link)]
    assert it.core.may_leave(first.link)


def test_where_nobody_waits_another_is_dialled_after_a_pause_and_sessions_move_when_it_is_ready() -> None:
    it = open_desk(connections=2, streams=5)
    slot = it.session()
    assert it.core.suspect(slot.link, it.now, 0.5) == (WakeAt(0.5),)
    assert not it.core.may_leave(slot.link), "there is nowhere to go"
    it.now = 0.5
    (dial,) = kinds(it.core.decide(it.now))
    assert isinstance(dial, Dial)
    assert kinds(it.connect(dial.link)) == [Vacate(slot.link)]


def test_it_counts_again_when_it_is_heard_from() -> None:
    it = open_desk(connections=2, streams=5)
    slot = it.session()
    it.core.suspect(slot.link, it.now, 0.5)
    assert it.core.suspect(slot.link, it.now, 0.5) == ()
    waiter, decisions = it.ask()
    (other,) = links(decisions)
    it.core.heard(slot.link, it.now)
    assert waiter.slot is not None
    assert waiter.slot.link == slot.link, "before the other is ready"
    assert it.core.heard(slot.link, it.now) == ()
    it.connect(other)
    assert not it.core.may_leave(slot.link)
    assert it.session().link == slot.link


def test_each_time_it_is_suspect_its_sessions_are_told() -> None:
    it = open_desk(connections=2, streams=1)
    first = it.session()
    _, decisions = it.ask()
    it.connect(*links(decisions))
    for _ in range(3):
        assert kinds(it.core.suspect(first.link, it.now, 0.0)) == [Vacate(first.link)]
        assert kinds(it.core.heard(first.link, it.now)) == []


def test_a_single_connection_at_a_time_is_dialled_while_one_is_suspect() -> None:
    it = open_desk(connections=3, streams=1)
    it.session()
    first = 1
    it.core.suspect(first, it.now, 0.0)
    (probe,) = [link.number for link in it.core.links.values() if not link.is_ready]
    waiters = it.asks(3)
    assert len(it.core.links) == 2
    (second,) = links(it.connect(probe))
    assert waiters[0].slot is not None
    it.connect(second)
    assert len(it.core.links) == 4, "the suspect one does not count"


def test_there_are_never_more_than_twice_as_many() -> None:
    it = open_desk(connections=1, streams=1)
    slot = it.session()
    it.core.suspect(slot.link, it.now, 0.0)
    waiter, _ = it.ask()
    (other,) = [link.number for link in it.core.links.values() if not link.is_ready]
    it.connect(other)
    assert waiter.slot is not None
    it.open(waiter.slot)
    it.core.suspect(other, it.now, 0.0)
    late, decisions = it.ask()
    assert links(decisions) == []
    assert links(it.core.lost(slot.link, LOST, it.now, 0.0)) == [], "a probe is due after a pause"
    it.now += 1.0
    (third,) = links(it.core.decide(it.now))
    it.connect(third)
    assert late.slot is not None


def test_those_that_are_too_many_when_they_are_back_are_closed_with_their_last_stream() -> None:
    it = open_desk(connections=1, streams=1)
    slot = it.session()
    it.core.suspect(slot.link, it.now, 0.0)
    waiter, _ = it.ask()
    (other,) = [link.number for link in it.core.links.values() if not link.is_ready]
    it.connect(other)
    assert waiter.slot is not None
    it.open(waiter.slot)
    assert kinds(it.core.heard(slot.link, it.now)) == []
    assert kinds(it.close(waiter.slot)) == [HangUp(other, 0.0)]
    assert it.core.links.keys() == {slot.link}


def test_one_that_is_suspect_and_idle_is_closed_where_another_is_ready_and_otherwise_waited_for() -> None:
    it = open_desk(connections=2, streams=1)
    first = it.session()
    it.core.suspect(first.link, it.now, 9.0)
    assert kinds(it.close(first)) == []
    _, decisions = it.ask()
    assert kinds(it.connect(*links(decisions))) == [HangUp(first.link, 0.0)]


def test_a_suspect_one_that_is_lost_is_no_failure_where_another_stands_in_for_it() -> None:
    it = open_desk(connections=2, streams=1)
    first = it.session()
    it.core.suspect(first.link, it.now, 0.0)
    (other,) = [link.number for link in it.core.links.values() if not link.is_ready]
    it.connect(other)
    it.core.lost(first.link, LOST, it.now, 0.0)
    assert it.core.reach.failures == 0


def test_a_suspect_one_that_is_lost_alone_is_a_failure_like_any() -> None:
    it = open_desk(connections=1, streams=1)
    slot = it.session()
    it.core.suspect(slot.link, it.now, 9.0)
    it.core.lost(slot.link, LOST, it.now, 0.0)
    assert it.core.reach.failures == 1


def test_with_nothing_but_a_suspect_one_the_refusal_is_that_the_gateway_cannot_be_reached() -> None:
    it = open_desk(connections=1, streams=5)
    slot = it.session()
    it.now = 10.0
    it.core.suspect(slot.link, it.now, 0.0)
    it.now = 12.0
    waiter, _ = it.ask()
    it.now = 14.0
    ((refused, why),) = refusals(it.core.expire(waiter, it.now))
    assert refused is waiter
    assert why == Unreachable(waited=2.0, failures=0, down=4.0, retry_in=None, cause=None)


def test_attempts_beside_a_suspect_one_become_rarer_and_are_forgotten_when_it_is_heard_from() -> None:
    it = open_desk(connections=2, streams=5)
    slot = it.session()
    it.core.suspect(slot.link, it.now, 0.0)
    waiter, _ = it.ask()
    for expected in (1.0, 2.0, 4.0):
        (probe,) = [link.number for link in it.core.links.values() if not link.is_ready]
        when = wake(it.core.failed(probe, REFUSED, it.now, 0.0))
        assert when is not None
        assert when - it.now == expected
        it.now = when
        it.core.decide(it.now)
    it.core.heard(slot.link, it.now)
    assert waiter.slot is not None
    assert it.core.reach.outage is None


def test_cancels_go_to_a_suspect_connection() -> None:
    it = open_desk(connections=1, streams=5)
    slot = it.session()
    it.core.suspect(slot.link, it.now, 9.0)
    cancel, _ = it.ask(link=slot.link)
    assert cancel.slot is not None


def test_one_that_is_to_be_left_and_suspect_stays_to_be_left() -> None:
    it = open_desk(connections=2, streams=1)
    first = it.session()
    _, decisions = it.ask()
    it.connect(*links(decisions))
    it.core.leave(first.link, it.now, 0.0)
    assert kinds(it.core.suspect(first.link, it.now, 0.0)) == []
    assert kinds(it.core.heard(first.link, it.now)) == [], "told already"
    assert it.core.links[first.link].is_leaving
    assert it.core.suspect(99, it.now, 0.0) == it.core.heard(99, it.now) == ()


def test_repr_tells_of_suspects() -> None:
    it = open_desk(connections=2, streams=2)
    slot = it.session()
    it.core.suspect(slot.link, it.now, 9.0)
    assert repr(it.core).startswith("[connections: 0 ready, 1 suspect, of 2 |")
    assert "suspect" in repr(it.core.links[slot.link])


# Kept.


def test_connections_to_be_kept_are_dialled_one_after_the_other_before_anybody_asks() -> None:
    it = desk(connections=4, min_connections=2)
    decisions = it.core.decide(it.now)
    assert links(decisions) == [1]
    decisions = it.connect(1)
    assert [decision for decision in decisions if isinstance(decision, Keep)] == [Keep(1, kept=True)]
    (second,) = links(decisions)
    assert kinds(it.connect(second)) == [Keep(second, kept=True)]
    it.now = 1000.0
    assert it.core.decide(it.now) == (WakeAt(None),), "they stay"


def kept_desk(connections: int = 3, kept: int = 1, **rules: Any) -> Desk:
    it = desk(connections=connections, streams=1, min_connections=kept, **rules)
    it.core.decide(it.now)
    while dialling := [link.number for link in it.core.links.values() if not link.is_ready]:
        it.connect(dialling[0])
    return it


def test_others_are_closed_when_idle_as_ever() -> None:
    it = kept_desk(max_idle=5.0)
    first = it.session()
    waiter, decisions = it.ask()
    (surplus,) = links(decisions)
    it.connect(surplus)
    assert waiter.slot is not None
    it.open(waiter.slot)
    it.close(first), it.close(waiter.slot)
    it.now = 5.0
    assert kinds(it.core.decide(it.now)) == [HangUp(surplus, 5.0)]


def test_one_that_is_lost_is_replaced_calmly_where_nobody_waits() -> None:
    it = kept_desk()
    assert wake(it.core.lost(1, LOST, it.now, 0.5)) == 2.5, "at random within backoff.spread"
    it.now = 2.5
    (link,) = links(it.core.decide(it.now))
    when = wake(it.core.failed(link, REFUSED, it.now, 0.0))
    assert when == 2.5 + 10.0
    it.now = when
    (link,) = links(it.core.decide(it.now))
    assert kinds(it.connect(link)) == [Keep(link, kept=True)]


def test_and_almost_at_once_for_one_who_does() -> None:
    it = kept_desk()
    it.core.lost(1, LOST, it.now, 0.5)
    waiter, decisions = it.ask()
    assert wake(decisions) == 0.75
    it.now = 0.75
    (link,) = links(it.core.decide(it.now))
    it.connect(link)
    assert waiter.slot is not None


def test_a_gateway_that_takes_connections_and_drops_them_is_not_hammered() -> None:
    it = kept_desk()
    pauses = []
    for _ in range(5):
        (link,) = it.core.links
        lost_at = it.now
        it.core.lost(link, LOST, it.now, 0.0)
        when = wake(it.core.decide(it.now))
        assert when is not None
        pauses.append(when - lost_at)
        it.now = when
        (link,) = links(it.core.decide(it.now))
        it.connect(link)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0


def test_where_there_is_another_gateway_only_those_who_wait_go_there_at_once() -> None:
    it = kept_desk()
    decisions = it.core.lost(1, LOST, it.now, 0.5, elsewhere=True)
    assert (links(decisions), wake(decisions)) == ([], 2.5)
    _, decisions = it.ask()
    assert len(links(decisions)) == 1


def test_another_becomes_one_to_be_kept_when_the_first_is_gone() -> None:
    it = kept_desk()
    it.session()
    _, decisions = it.ask()
    (second,) = links(decisions)
    it.connect(second)
    assert Keep(second, kept=True) in it.core.lost(1, LOST, it.now, 0.0)


def test_one_to_be_kept_that_is_suspect_and_idle_lives_until_another_is_there() -> None:
    it = kept_desk()
    assert kinds(it.core.suspect(1, it.now, 0.5)) == []
    it.now = 0.5
    (link,) = links(it.core.decide(it.now))
    assert kinds(it.connect(link)) == [HangUp(1, 0.5), Keep(link, kept=True)]


def test_one_to_be_kept_that_is_to_be_left_is_replaced() -> None:
    it = kept_desk()
    assert it.core.leave(1, it.now, 0.25) == (HangUp(1, 0.0), WakeAt(0.25))
    it.now = 0.25
    assert len(links(it.core.decide(it.now))) == 1


# Replaced for its age.


def test_another_is_dialled_before_one_is_left_for_its_age() -> None:
    it = open_desk(connections=1, streams=2, max_lifetime=100.0)
    slot = it.session()
    it.now = 100.0
    dial: Any
    (dial,) = kinds(it.core.decide(it.now))
    assert (dial.replaces, str(dial)) == (slot.link, f"in place of connection {slot.link}, whose max_lifetime is over")
    assert it.session().link == slot.link, "it is used until then"
    assert kinds(it.connect(dial.link)) == [Replaced(slot.link, dial.link, 100.0), Vacate(slot.link)]
    assert it.session().link == dial.link
    assert it.core.may_leave(slot.link)


@pytest.mark.parametrize(("jitter", "lifetime"), [(0.0, 100.0), (0.5, 95.0), (1.0, 90.0)])
def test_jitter_takes_off_up_to_a_tenth(jitter: float, lifetime: float) -> None:
    it = desk(max_lifetime=100.0, max_idle=1000.0)
    it.ask()
    it.connect(1, jitter=jitter)
    assert it.core.links[1].expires_at == pytest.approx(lifetime)


def test_one_without_streams_is_closed_and_nothing_dialled() -> None:
    it = open_desk(max_lifetime=3.0, max_idle=1000.0)
    it.now = 3.0
    assert it.core.decide(it.now) == (HangUp(1, 3.0), WakeAt(None))


def test_one_to_be_kept_is_replaced_though_it_is_idle() -> None:
    it = kept_desk(max_lifetime=100.0)
    it.now = 100.0
    (dial,) = links(it.core.decide(it.now))
    assert kinds(it.connect(dial)) == [Replaced(1, dial, 100.0), HangUp(1, 100.0), Keep(dial, kept=True)]


def test_they_are_replaced_one_by_one() -> None:
    it = desk(connections=2, streams=1, max_lifetime=100.0)
    it.asks(2)
    old = list(it.core.links)
    for link in old:
        it.connect(link)
    it.now = 100.0
    decisions = it.core.decide(it.now)
    for left in old:
        (new,) = links(decisions)
        decisions = it.connect(new)
        assert Replaced(left, new, 100.0) in decisions
    assert links(decisions) == []


def test_where_no_other_can_be_had_it_stays_and_is_used_and_attempts_become_rarer() -> None:
    it = open_desk(connections=1, streams=5, max_lifetime=100.0)
    slot = it.session()
    it.now = 100.0
    (link,) = links(it.core.decide(it.now))
    pauses = []
    for _ in range(4):
        when = wake(it.core.failed(link, REFUSED, it.now, 0.0))
        assert when is not None
        pauses.append(when - it.now)
        assert it.session().link == slot.link
        it.now = when
        (link,) = links(it.core.decide(it.now))
    assert pauses == sorted(pauses)


def test_one_that_is_suspect_when_its_time_is_over_is_not_replaced_twice() -> None:
    it = open_desk(connections=1, streams=5, max_lifetime=100.0)
    slot = it.session()
    it.now = 99.0
    it.core.suspect(slot.link, it.now, 0.0)
    assert len(it.core.links) == 2
    it.now = 100.0
    assert links(it.core.decide(it.now)) == []


def test_what_is_too_many_already_is_not_replaced() -> None:
    """A connection was silent, another took its place, and it has answered: it is old, and there is the other."""
    it = open_desk(connections=1, streams=1, max_lifetime=12.0)
    it.session()
    (link,) = links(it.core.suspect(1, it.now, 0.0))
    it.connect(link)
    slot = it.session()
    it.core.heard(1, it.now)
    it.now = 100.0
    assert links(it.core.decide(it.now)) == []
    assert len(links(it.close(slot))) == 1
