from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from helpers.waiting import until
from pgtrunk_gateway.fleet.forwarding import Inlet, Outlets


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The reading end and the writing one."""
    reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    yield reading, writing
    reading.close()
    writing.close()


@pytest.mark.both_loops
async def test_frames_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    came: list[bytes] = []
    inlet, outlets = Inlet(pair[0], came.append), Outlets({3: pair[1]})
    frames = [bytes([number]) * (1 + 1100 * number) for number in range(60)]
    for frame in frames:
        outlets.send(3, frame)
    await until(lambda: len(came) == 60)
    assert came == frames
    assert (outlets.sent, outlets.dropped, inlet.received) == (60, 0, 60)
    outlets.close()
    inlet.close()


async def test_more_than_a_handful_may_be_on_their_way(pair: tuple[socket.socket, socket.socket]) -> None:
    outlets = Outlets({0: pair[1]})
    for _ in range(500):
        outlets.send(0, bytes(1200))
    assert (outlets.sent, outlets.dropped) == (500, 0)
    outlets.close()


async def test_what_has_no_room_is_lost_and_counted(pair: tuple[socket.socket, socket.socket]) -> None:
    outlets = Outlets({0: pair[1]})
    while not outlets.dropped:
        outlets.send(0, bytes(60000))
    assert outlets.sent > 3
    came: list[bytes] = []
    inlet = Inlet(pair[0], came.append)
    await until(lambda: len(came) == outlets.sent)
    outlets.send(0, b"again")
    await until(lambda: came[-1] == b"again")
    inlet.close()
    outlets.close()


async def test_a_worker_that_nobody_knows_is_no_error() -> None:
    outlets = Outlets({})
    outlets.send(7, b"anybody there?")
    assert outlets.dropped == 1
    outlets.close()


async def test_nothing_is_read_after_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    came: list[bytes] = []
    kept = pair[0].dup()
    inlet, outlets = Inlet(pair[0], came.append), Outlets({0: pair[1]})
    outlets.send(0, b"frame")
    inlet.close()
    await asyncio.sleep(0.02)
    assert not came
    assert kept.recv(10) == b"frame"
    kept.close()
    outlets.close()
