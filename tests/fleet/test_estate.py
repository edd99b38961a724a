"""What one supervisor leaves to the next: descriptors, an inventory of them, and what its bank knows."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from pgtrunk_gateway.fleet.account import Level, Limit
from pgtrunk_gateway.fleet.bank import Bank, Grant
from pgtrunk_gateway.fleet.charter import Secrets
from pgtrunk_gateway.fleet.estate import inherit, leave
from pgtrunk_gateway.fleet.inventory import Inventory
from pgtrunk_gateway.fleet.outgoing import Outgoing
from pgtrunk_gateway.fleet.passing import peer, receive, send
from pgtrunk_gateway.fleet.steering import next_generation

POOL = ("pool", "shop", "app")
LIMITS: list[tuple[tuple[str, ...], Limit]] = [(POOL, Limit(3, 1, 0)), (("database", "shop"), Limit(4))]


def wants(bank: Bank, worker: int, count: int, since: float, seen: int = 0) -> list[Any]:
    return bank.want(worker, LIMITS, Level(count=count, since=since, pressing=True), seen)


# -- places ------------------------------------------------------------------------------------------------------------


def test_who_holds_and_who_waits() -> None:
    """The new bank grants what the old one would have granted."""
    grants: list[list[tuple[int, int]]] = []
    for moves in (False, True):
        bank, numbers = Bank(), {1: 1, 2: 2}
        assert [each.count for each in wants(bank, 1, 2, 1.0) if isinstance(each, Grant)] == [2]
        assert [each.count for each in wants(bank, 2, 2, 2.0) if isinstance(each, Grant)] == [1]
        if moves:
            _, estate = leave(bank)
            bank, numbers = Bank(), {1: 11, 2: 12}
            assert not [each for each in inherit(bank, estate, numbers) if isinstance(each, Grant)]
            assert bank.accounts[POOL].held == {11: 2, 12: 1}
            assert bank.accounts["database", "shop"].total == 3
        names = {number: index for index, number in numbers.items()} | {3: 3}
        # One more waits, of the new fleet, and has come later.
        decided = wants(bank, 3, 1, 3.0)
        for _ in range(2):
            decided += bank.give_back(numbers[1], [POOL, ("database", "shop")])
        grants.append([(names[each.worker], each.count) for each in decided if isinstance(each, Grant)])
        assert bank.accounts[POOL].total == 3
    assert grants[0] == grants[1] and len(grants[0]) == 2


def test_both_together_stay_within_a_limit_that_has_become_smaller() -> None:
    old = Bank()
    wants(old, 1, 3, 1.0)
    new = Bank()
    inherit(new, leave(old)[1], {1: 11})
    new.limit({POOL: Limit(2, 0, 0)})
    assert not [each for each in wants(new, 1, 1, 2.0) if isinstance(each, Grant)]
    new.give_back(11, [POOL, ("database", "shop")])
    assert new.accounts[POOL].total == 2


def test_late_answers_meet_no_question_of_the_new_bank() -> None:
    old = Bank()
    wants(old, 1, 3, 1.0)
    asked = [each for each in wants(old, 2, 1, 2.0) if not isinstance(each, Grant)]
    assert asked
    released, estate = leave(old)
    assert {each.number for each in released} == {each.number for each in asked}  # type: ignore[union-attr]
    new = Bank()
    again = inherit(new, estate, {1: 11, 2: 12})
    numbers = {each.number for each in again if hasattr(each, "number")}
    assert numbers and not numbers & {each.number for each in asked}
    assert new.answer(next(each.number for each in asked), closing=True) == []


def test_generations_that_are_told_apart() -> None:
    leaving = [Outgoing(each, 2, {}) for each in (8, 9)]
    assert next_generation(9, leaving) == 10
    # 12 would be 8, and 13 be 9.
    assert next_generation(11, leaving) == 14
    assert next_generation(3, []) == 4


# -- descriptors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 200, 203])
def test_descriptors_arrive_in_their_order(count: int) -> None:
    ours, theirs = socket.socketpair()
    pipes = [os.pipe() for _ in range(count)]
    received: list[int] = []
    try:
        send(ours, [end for _, end in pipes])
        assert peer(theirs)[0] == os.getpid()
        received = receive(theirs, 10.0)
        assert len(received) == count
        for number, descriptor in enumerate(received):
            os.write(descriptor, bytes([number % 256]))
            assert os.read(pipes[number][0], 2) == bytes([number % 256])
            assert not os.get_inheritable(descriptor)
    finally:
        for descriptor in (*received, *(end for ends in pipes for end in ends)):
            os.close(descriptor)
        ours.close()
        theirs.close()


def test_who_hangs_up_in_between_leaves_nothing_open() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with theirs:
        ours.sendall((2).to_bytes(4, "big"))
        socket.send_fds(ours, [b"+"], [writing])
        ours.close()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(EOFError):
            receive(theirs, 10.0)
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(reading)
    os.close(writing)


def test_an_inventory_travels_and_has_the_takers_numbers() -> None:
    inventory = Inventory(
        generation=4,
        places={"listen_port": 6432},
        secrets=Secrets(quic_keys=(b"a" * 32, b"b" * 32), mock_key=b"m" * 32),
        tcp=(3, 4),
        unix=5,
        path="/run/.s.PGSQL.6432",
        port=6432,
        udp=((6, 7), (8, 9)),
        elders=(Outgoing(3, 2, {0: 10}), Outgoing(4, 2, {0: 11, 1: 12})),
    )
    assert Inventory.from_body(inventory.as_body()) == inventory
    assert inventory.descriptors == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    taken = inventory.with_descriptors([each + 100 for each in inventory.descriptors])
    assert (taken.tcp, taken.unix, taken.udp) == ((103, 104), 105, ((106, 107), (108, 109)))
    assert [each.outlets for each in taken.elders] == [{0: 110}, {0: 111, 1: 112}]
