"""The arithmetic of one connection's slots."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pgtrunk.link import Link, reserve_for


@dataclass
class Peer:
    stream_credit: int


@dataclass
class OwnLimited(Peer):
    own_limit: str = "tcp_connections=3"


def ready(credit: int, cap: int = 100) -> Link:
    link = Link(1, cap, since=0.0)
    link.ready(Peer(credit), now=0.0)
    return link


@pytest.mark.parametrize(
    ("allowed", "reserve"), [(0, 0), (1, 0), (2, 1), (8, 1), (15, 1), (16, 2), (64, 8), (128, 16), (1000, 16)]
)
def test_an_eighth_is_kept_for_cancels(allowed: int, reserve: int) -> None:
    assert reserve_for(allowed) == reserve


@pytest.mark.parametrize(
    ("credit", "cap", "room", "by_gateway"),
    [
        (1000, 100, 100, False),  # our own cap decides
        (116, 100, 100, False),
        (64, 100, 56, False),  # the gateway's limit, less the reserve
        (1, 100, 1, False),
        (0, 100, 0, True),
    ],
)
def test_room_is_the_smaller_of_the_cap_and_what_the_gateway_allows(
    credit: int, cap: int, room: int, by_gateway: bool
) -> None:
    link = ready(credit, cap)
    assert (link.room, link.is_limited_by_gateway) == (room, by_gateway)


def test_a_limit_of_our_own_needs_no_reserve_and_is_none_for_cancels() -> None:
    link, gateways = Link(1, 100, since=0.0), ready(credit=3)
    assert not link.takes_cancels
    link.ready(OwnLimited(3), now=0.0)
    assert (link.room, link.takes_cancels) == (3, True)
    assert isinstance(link.peer, Peer)
    assert isinstance(gateways.peer, Peer)
    link.peer.stream_credit = gateways.peer.stream_credit = 0
    assert (link.room, link.takes_cancels, link.is_limited_by_gateway) == (0, True, True)
    assert not gateways.takes_cancels


def test_a_link_that_is_being_dialled_has_no_room() -> None:
    link = Link(1, 100, since=0.0)
    assert (link.room, link.credit, link.is_idle) == (0, 0, False)


def test_a_granted_slot_counts_against_the_credit_until_it_is_opened() -> None:
    link = ready(credit=3, cap=10)
    slot = link.grant(1, session=True)
    assert (link.credit, link.room, link.sessions) == (2, 1, 1)
    assert isinstance(link.peer, Peer)
    link.peer.stream_credit = 2  # the stream is open: the gateway's count knows of it now, ours no longer
    link.open(slot)
    assert (link.credit, link.room, link.sessions) == (2, 1, 1)


def test_a_slot_is_given_back_once_however_often_that_is_said() -> None:
    link = ready(credit=100, cap=10)
    first, second = link.grant(1, session=True), link.grant(2, session=True)
    link.open(second)
    for _ in range(2):
        link.give_back(first, now=3.0)
        link.give_back(second, now=4.0)
    assert (link.sessions, link.room, link.is_idle) == (0, 10, True)
    assert link.idle_since == 4.0


def test_cancels_use_the_reserve_and_not_the_cap() -> None:
    link = ready(credit=9, cap=8)
    for number in range(8):
        link.open(link.grant(number, session=True))
    assert isinstance(link.peer, Peer)
    link.peer.stream_credit = 1
    assert (link.room, link.credit) == (0, 1)
    cancel = link.grant(9, session=False)
    assert (link.sessions, link.cancels, link.credit) == (8, 1, 0)
    link.give_back(cancel, now=1.0)
    assert (link.sessions, link.cancels, link.credit) == (8, 0, 1)


def test_repr_says_what_is_used_and_why_it_is_full() -> None:
    assert repr(Link(3, 100, since=0.0)) == "<Link 3 connecting>"
    link = ready(credit=2)
    assert repr(link) == "<Link 1 ready [0 of 100 streams]>"
    link.grant(1, session=True)
    link.grant(2, session=False)
    assert repr(link) == "<Link 1 ready [1 of 100 streams, 1 cancels, limited by the gateway]>"
