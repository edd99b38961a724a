"""Handshakes that begin one in each turn of the loop, and who waits for that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.demuxing import Client, Connection, World, long_packet, retried

if TYPE_CHECKING:
    from pgtrunk_gateway.quic.admission import RetryMode


class Turning(World):
    """Where handshakes begin one in each turn of the loop."""

    def __init__(self, retry: RetryMode = "never", **limits: int) -> None:
        super().__init__(retry, **limits)
        self.asked = 0
        reception = self.demux.reception
        reception._world = replace(self.demux._world, later=self.later)

    def later(self) -> None:
        self.asked += 1

    def turn(self) -> None:
        assert self.asked == 1, "one turn is asked for at a time"
        self.asked = 0
        self.demux.reception.next_turn()

    def end(self, connection: Connection) -> None:
        assert connection.opening is not None
        self.admission.end(connection.opening.half_open)
        self.demux.reception.is_over()


def test_one_handshake_begins_in_each_turn_in_order() -> None:
    world, clients = Turning(), [Client() for _ in range(4)]
    for client in clients:
        world.hears(client.says())
    for number in range(4):
        assert len(world.opened) == number + 1
        assert world.demux.reception.waiting == 3 - number
        world.turn()
    assert world.asked == 0
    ids = [client.quic.original_destination_connection_id for client in clients]
    assert [each.opening.destination_id for each in world.opened if each.opening] == ids
    assert world.demux.counters.opened == 4
    # And the next one at once.
    world.hears(Client().says())
    assert len(world.opened) == 5


def test_who_waits_is_not_let_in_twice_and_has_all_its_datagrams() -> None:
    world, client = Turning(), Client()
    world.hears(Client().says())
    first = client.says()
    name = client.quic.original_destination_connection_id
    early = long_packet(1, first=0xD0, destination=name, size=100)
    for data in (first, early, first, first, first, first):
        world.hears(data)
    world.turn()
    assert [data for data, _ in world.opened[1].heard] == [first, early, first, first]
    world.turn()
    world.hears(first)
    assert len(world.opened) == 2
    assert len(world.opened[1].heard) == 5


def test_who_is_one_too_many_waits_for_others_to_be_done() -> None:
    world = Turning("always", max_half_open=2)
    for _ in range(4):
        world.hears(retried(world, Client()))
        if world.asked:
            world.turn()
    assert (len(world.opened), world.demux.reception.waiting, world.asked) == (2, 2, 0)
    world.end(world.opened[0])
    world.turn()
    assert (len(world.opened), world.demux.reception.waiting) == (3, 1)
    world.turn()
    world.end(world.opened[1])
    world.end(world.opened[2])
    world.turn()
    assert (len(world.opened), world.demux.reception.waiting) == (4, 0)
    assert world.demux.counters.over_limit == 0


def test_who_has_waited_for_memory_and_sends_again_is_let_in() -> None:
    world, client = Turning(), Client()
    world.hears(Client().says())
    first = client.says()
    world.hears(first)
    world.room = False
    world.turn()
    assert (len(world.opened), world.asked) == (1, 0)
    world.room = True
    world.hears(first)
    world.turn()
    assert len(world.opened) == 2


def test_who_waits_in_vain_is_counted() -> None:
    world = Turning("always", max_half_open=1)
    for _ in range(2):
        world.hears(retried(world, Client()))
        if world.asked:
            world.turn()
    world.now += 60
    world.end(world.opened[0])
    world.turn()
    assert (len(world.opened), world.demux.reception.waiting, world.demux.counters.over_limit) == (1, 0, 1)


def test_who_waits_while_the_listener_closes_is_told_when_it_asks_again() -> None:
    world, client = Turning(), Client()
    world.hears(Client().says())
    first = client.says()
    world.hears(first)
    world.demux.reception.is_accepting = False
    world.turn()
    assert world.hears(first) is not None
    assert len(world.opened) == 1


def test_in_a_crowd_of_those_who_wait_the_next_are_asked_for_their_address() -> None:
    world = Turning("auto", max_half_open=40, max_half_open_per_address=1000)
    answers = [world.hears(Client().says()) for _ in range(12)]
    assert [answer is not None for answer in answers] == [False] * 10 + [True] * 2
    assert (len(world.opened), world.demux.reception.waiting) == (1, 9)


def test_whom_others_hear_now_is_forgotten() -> None:
    world = Turning()
    world.hears(Client().says())
    world.hears(Client().says())
    world.demux.reception.forget_all()
    world.turn()
    assert len(world.opened) == 1
