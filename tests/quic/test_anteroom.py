"""First packets that wait: their order, their turns, and what becomes of those who wait in vain."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pgtrunk_gateway.quic import anteroom as module
from pgtrunk_gateway.quic.anteroom import (
    MAX_DATAGRAMS,
    MAX_OCTETS,
    MAX_WAITING,
    MAX_WAITING_PER_ADDRESS,
    PATIENCE,
    Anteroom,
    Entry,
)
from pgtrunk_gateway.quic.udp import Path

PATH = Path(("192.0.2.1", 5000), cast("Any", None))


def entry(name: bytes, site: bytes = b"here", since: float = 0.0) -> Entry:
    return Entry(name, site, proved=True, original_id=None, since=since, datagrams=[(name, PATH)])


def all_in_turn(room: Anteroom) -> list[bytes]:
    order = []
    while (first := next(room.firsts(), None)) is not None:
        room.take(first)
        order.append(first.destination_id)
    return order


def test_first_come_first_served() -> None:
    room = Anteroom()
    for name in (b"a", b"b", b"c"):
        assert room.enter(entry(name))
    assert all_in_turn(room) == [b"a", b"b", b"c"]
    assert len(room) == 0


def test_addresses_take_turns() -> None:
    room = Anteroom()
    for name in (b"a1", b"a2", b"a3", b"b1", b"c1", b"c2"):
        room.enter(entry(name, name[:1]))
    assert [first.destination_id for first in room.firsts()] == [b"a1", b"b1", b"c1"]
    assert all_in_turn(room) == [b"a1", b"b1", b"c1", b"a2", b"c2", b"a3"]


def test_one_that_may_not_begin_holds_nobody_up() -> None:
    room = Anteroom()
    for name in (b"a1", b"b1", b"b2"):
        room.enter(entry(name, name[:1]))
    _, second = room.firsts()
    room.take(second)
    assert [first.destination_id for first in room.firsts()] == [b"a1", b"b2"]


def test_its_further_datagrams_are_kept_as_far_as_they_are_new() -> None:
    room = Anteroom()
    waiting = entry(b"a")
    room.enter(waiting)
    for number in range(10):
        assert room.more(b"a", b"%d" % number, PATH)
    assert [data for data, _ in waiting.datagrams] == [b"a", b"0", b"1", b"2"][:MAX_DATAGRAMS]
    assert not room.more(b"b", b"", PATH)
    room.take(waiting)
    assert not room.more(b"a", b"", PATH)


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 5)
    monkeypatch.setattr(module, "MAX_WAITING_PER_ADDRESS", 3)
    room = Anteroom()
    assert [room.enter(entry(b"a%d" % number, b"a")) for number in range(4)] == [True] * 3 + [False]
    assert [room.enter(entry(b"b%d" % number, b"b")) for number in range(3)] == [True] * 2 + [False]
    # Nobody is remembered who was sent away.
    assert all_in_turn(room) == [b"a0", b"b0", b"a1", b"b1", b"a2"]


def test_a_few_addresses_leave_places_for_others() -> None:
    room = Anteroom()
    for site in range(6):
        for number in range(MAX_WAITING_PER_ADDRESS + 1):
            room.enter(entry(b"%d-%d" % (site, number), b"%d" % site))
    assert len(room) < MAX_WAITING
    assert room.enter(entry(b"another", b"another"))


def test_no_datagram_is_kept_that_no_client_sends() -> None:
    room, large = Anteroom(), entry(b"large")
    large.datagrams = [(bytes(MAX_OCTETS + 1), PATH)]
    assert not room.enter(large)
    waiting = entry(b"a")
    assert room.enter(waiting)
    assert room.more(b"a", bytes(MAX_OCTETS + 1), PATH)
    assert room.more(b"a", bytes(MAX_OCTETS), PATH)
    assert [len(data) for data, _ in waiting.datagrams] == [1, MAX_OCTETS]


def test_whose_client_has_given_up_is_forgotten() -> None:
    room = Anteroom()
    for since, name in enumerate((b"a1", b"b1", b"a2", b"b2")):
        room.enter(entry(name, name[:1], float(since)))
    assert room.forget_late(PATIENCE) == 0
    assert room.forget_late(PATIENCE + 1.5) == 2
    assert len(room) == 2
    assert not room.more(b"a1", b"", PATH)
    assert all_in_turn(room) == [b"a2", b"b2"]
    assert room.forget_late(1000.0) == 0
