"""Connections that are lost, and gateways that are away: when they are tried again, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.desk import desk, links, open_desk, refusals
from pgtrunk.decisions import Dial, Unreachable, WakeAt
from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost

REFUSED = GatewayUnreachable("nobody listens")
LOST = SessionLost("idle for 10 s")


def test_a_lost_connection_is_replaced_after_a_pause_when_somebody_needs_it() -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    waiter, _ = it.ask()
    assert it.core.lost(1, LOST, it.now, 0.5) == (WakeAt(0.75),)
    it.now = 0.75
    dial: Any
    (dial, _) = it.core.decide(it.now)
    assert dial == Dial(dial.link, waiting=1, ready=0, failures=1)
    it.connect(dial.link)
    assert waiter.slot is not None


def test_nobody_waiting_nothing_is_dialled() -> None:
    it = open_desk()
    it.session()
    assert it.core.lost(1, LOST, it.now, 0.0) == (WakeAt(None),)
    it.now = 100.0
    assert it.core.decide(it.now) == (WakeAt(None),)


def test_an_idle_connection_that_ends_is_no_failure() -> None:
    it = open_desk()
    it.core.lost(1, LOST, it.now, 0.0)
    _, decisions = it.ask()
    assert len(links(decisions)) == 1, "dialled at once"


def test_several_lost_at_once_are_one_failure() -> None:
    it = desk(connections=3, streams=1)
    it.asks(3)
    for link in (1, *[link for link in it.core.links if link != 1]):
        it.connect(link)
    for link in list(it.core.links):
        it.core.lost(link, LOST, it.now, 0.0)
    assert it.core.reach.failures == 1


def test_a_slot_of_a_lost_connection_is_gone_with_it() -> None:
    it = open_desk(connections=1, streams=1)
    slot = it.session()
    it.core.lost(1, LOST, it.now, 0.0)
    assert it.core.release(slot, it.now) == ()
    assert it.core.lost(1, LOST, it.now, 0.0) == ()
    it.core.opened(slot)


def test_a_gateway_never_reached_is_given_up_at_once() -> None:
    it = desk()
    waiter, (dial, _) = it.ask()
    ((refused, why),) = refusals(it.core.failed(dial.link, REFUSED, it.now, 0.0))
    assert refused is waiter
    assert why == Unreachable(waited=0.0, failures=1, down=0.0, retry_in=1.0, cause=REFUSED)
    _, decisions = it.ask()
    assert len(refusals(decisions)) == 1, "no attempt is due yet"
    it.now = 1.0
    _, decisions = it.ask()
    assert len(links(decisions)) == 1


def test_a_gateway_that_was_there_is_waited_for_until_patience_ends() -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    it.core.lost(1, LOST, it.now, 0.0)
    waiter, decisions = it.ask()
    assert decisions == (WakeAt(1.0),)
    attempts = []
    while it.now < 10.0:
        decided: tuple[Any, ...] = it.core.decide(it.now)
        for link in links(decided):
            attempts.append(it.now)
            decided = it.core.failed(link, REFUSED, it.now, 0.0)
        it.now = decided[-1].when
    assert attempts == [1.0, 3.0, 7.0]
    ((refused, why),) = refusals(it.core.decide(it.now))
    assert refused is waiter
    assert why == Unreachable(waited=10.0, failures=4, down=10.0, retry_in=5.0, cause=REFUSED)


def test_what_was_known_long_ago_does_not_count() -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    it.core.lost(1, LOST, it.now, 0.0)
    it.now = 1000.0
    _, (dial, _) = it.ask()
    assert dial == Dial(dial.link, waiting=1, ready=0, failures=0)
    assert refusals(it.core.failed(dial.link, REFUSED, it.now, 0.0)) == []


@pytest.mark.parametrize("cause", [CertificateError("expired"), RuntimeError("a mistake of ours")])
def test_what_waiting_does_not_cure_is_not_waited_for(cause: Exception) -> None:
    it = open_desk(connections=1, streams=1)
    it.session()
    it.core.lost(1, LOST, it.now, 0.0)
    it.now = 1.0
    waiter, (dial, _) = it.ask()
    assert [who for who, _ in refusals(it.core.failed(dial.link, cause, it.now, 0.0))] == [waiter]


def test_one_probe_at_a_time_while_the_gateway_is_away() -> None:
    it = open_desk(connections=4, streams=1)
    it.session()
    it.core.lost(1, LOST, it.now, 0.0)
    it.asks(4)
    it.now = 1.0
    (probe,) = links(it.core.decide(it.now))
    assert len(links(it.connect(probe))) == 3, "the rest follow when it is back"


def test_failures_add_up_until_a_connection_proves_stable() -> None:
    it = desk(connections=1, streams=1, stable=5.0)
    failures = []
    for lived in (1.0, 1.0, 5.0, 0.0):
        it.ask()
        it.now += 8.0
        it.core.decide(it.now)
        (link,) = it.core.links
        it.connect(link)
        it.now += lived
        it.core.lost(link, LOST, it.now, 0.0)
        failures.append(it.core.reach.failures)
    assert failures == [1, 2, 1, 2]


def test_failures_before_a_gateway_was_started_again_do_not_count() -> None:
    """It says so by a reset: the connection is unknown to the process that is there now."""
    it = desk(connections=1, streams=1, stable=5.0)
    failures = []
    for cause in (LOST, LOST, LOST, SessionLost("a reset", forgotten=True), LOST):
        it.ask()
        it.now += 8.0
        it.core.decide(it.now)
        (link,) = it.core.links
        it.connect(link)
        it.core.lost(link, cause, it.now, 0.0)
        failures.append(it.core.reach.failures)
    assert failures == [1, 2, 3, 1, 2]


def test_a_gateway_that_was_started_again_is_not_waited_for() -> None:
    it = open_desk(connections=2, streams=1, stable=100.0)
    it.session()
    waiter, (dial, _) = it.ask()
    it.connect(dial.link)
    assert waiter.slot is not None
    it.open(waiter.slot)
    it.core.lost(1, LOST, it.now, 0.0)
    it.ask()
    for _ in range(3):
        it.now = it.core.reach.next_try(calm=False)
        (link,) = links(it.core.decide(it.now))
        it.core.failed(link, REFUSED, it.now, 0.0)
    assert it.core.reach.next_try(calm=False) > it.now + 4.0
    it.core.lost(dial.link, SessionLost("a reset", forgotten=True), it.now, 0.0)
    assert it.core.reach.next_try(calm=False) == it.now + 1.0


@pytest.mark.parametrize("cause", [REFUSED, CertificateError("expired")])
def test_a_failed_extra_connection_does_not_disturb_those_who_wait(cause: Exception) -> None:
    it = open_desk(connections=2, streams=1)
    slot = it.session()
    waiter, (dial, _) = it.ask()
    assert refusals(it.core.failed(dial.link, cause, it.now, 0.0)) == []
    it.close(slot)
    assert waiter.slot is not None


def test_an_outage_begins_when_the_last_connection_is_gone_not_when_an_extra_one_failed() -> None:
    it = open_desk(connections=2, streams=1)
    it.session()
    it.ask()
    for it.now in (0.0, 6.0, 12.0):
        it.core.decide(it.now)
        (extra,) = [number for number, link in it.core.links.items() if not link.is_ready]
        it.core.failed(extra, REFUSED, it.now, 0.0)
    it.now = 12.5
    assert refusals(it.core.lost(1, LOST, it.now, 0.0)) == []


def test_with_no_answer_yet_the_refusal_says_so() -> None:
    it = desk()
    waiter, _ = it.ask()
    it.now = 4.0
    assert refusals(it.core.expire(waiter, it.now)) == [
        (waiter, Unreachable(waited=4.0, failures=0, down=4.0, retry_in=None, cause=None))
    ]
