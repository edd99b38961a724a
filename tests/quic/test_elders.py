"""Which worker of an earlier generation a datagram belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from pgtrunk_gateway.quic.connection_id import ConnectionIds
from pgtrunk_gateway.quic.elders import MOST_ELDERS, Elder, Elders

SHORT, INITIAL, HANDSHAKE = 0x40, 0xC0, 0xE0


class Road:
    """A path as far as is looked at here."""

    class endpoint:
        number = 0

    local = b""

    def __iter__(self) -> Any:
        return iter(("127.0.0.1", 5))


def identity(generation: int, bucket: int) -> bytes:
    return ConnectionIds(lambda size: bytes(size), buckets=[bucket], generation=generation)()


def datagram(first: int, connection_id: bytes) -> bytes:
    if first & 0x80:
        return bytes([first]) + b"\0\0\0\1" + bytes([len(connection_id)]) + connection_id + bytes(30)
    return bytes([first]) + connection_id + bytes(30)


@pytest.mark.parametrize("first", [SHORT, HANDSHAKE])
@pytest.mark.parametrize(
    ("generation", "bucket", "owner"),
    [(5, 0, (5, 0)), (5, 7, (5, 1)), (6, 7, (6, 3)), (7, 255, (7, 0)), (8, 7, None)],
)
def test_by_generation_and_as_many_workers_as_there_were(
    first: int, generation: int, bucket: int, owner: tuple[int, int] | None
) -> None:
    elders = Elders([Elder(5, 3), Elder(6, 4), Elder(7, 1)], lambda *_: True)
    connection_id = identity(generation, bucket)
    assert elders.owner(connection_id, datagram(first, connection_id)) == owner


def test_first_packets_have_ids_that_mean_nothing_but_those_of_connections_that_have_just_begun() -> None:
    elders = Elders([Elder(5, 3)], lambda *_: True)
    made_up = identity(5, 7)
    assert elders.owner(made_up, datagram(INITIAL, made_up)) is None
    elders.begins({made_up: (5, 2)})
    assert elders.owner(made_up, datagram(INITIAL, made_up)) == (5, 2)


def test_an_id_of_another_length_is_none_of_theirs() -> None:
    assert Elders([Elder(0, 3)], lambda *_: True).owner(bytes(5), datagram(SHORT, bytes(5))) is None


def test_what_nobody_takes_is_not_theirs_any_more() -> None:
    sent: list[tuple[int, int]] = []

    def send(generation: int, worker: int, frame: bytes) -> bool:
        sent.append((generation, worker))
        return worker == 1

    elders = Elders([Elder(5, 3)], send)
    for bucket, taken in ((0, False), (1, True)):
        connection_id = identity(5, bucket)
        road: Any = Road()
        assert elders.take(connection_id, datagram(SHORT, connection_id), road) is taken
    assert (sent, elders.passed_on) == ([(5, 0), (5, 1)], 1)


def test_so_many_can_be_told_apart() -> None:
    elders = [Elder(10 - each, 1) for each in range(MOST_ELDERS)]
    found = Elders(elders, lambda *_: True)
    for elder in elders:
        connection_id = identity(elder.generation, 0)
        assert found.owner(connection_id, datagram(SHORT, connection_id)) == (elder.generation, 0)
    own = identity(11, 0)
    assert found.owner(own, datagram(SHORT, own)) is None
