"""Saying that nothing more is written, to whoever is still there, and to whoever is not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop

from helpers.waiting import until
from pgtrunk.half_close import half_close


class Ended(asyncio.Protocol):
    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.read = b""

    def data_received(self, data: bytes) -> None:
        self.read += data

    def connection_lost(self, exc: BaseException | None) -> None:
        self.ended.set_result(exc)


async def _pair() -> tuple[asyncio.Transport, Ended, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    transport, protocol = await asyncio.get_running_loop().create_connection(Ended, sock=near)
    return transport, protocol, far


async def test_the_other_end_may_go_on() -> None:
    transport, protocol, far = await _pair()
    with far:
        transport.write(b"the last")
        half_close(transport)
        await until(lambda: transport.get_write_buffer_size() == 0)
        assert far.recv(100) == b"the last"
        assert far.recv(100) == b""
        far.sendall(b"more")
        await until(lambda: protocol.read == b"more")
    transport.close()
    assert await protocol.ended is None


async def test_a_socket_that_was_reset_is_given_up() -> None:
    transport, protocol, far = await _pair()
    # So that nobody hears of the reset but by the call itself: ENOTCONN.
    transport.pause_reading()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    half_close(transport)
    assert transport.is_closing()
    async with asyncio.timeout(10):
        await protocol.ended


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_closed_is_left_alone(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def close_first() -> None:
        transport, protocol, far = await _pair()
        transport.close()
        await protocol.ended
        await asyncio.sleep(0)
        half_close(transport)
        far.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(close_first())
