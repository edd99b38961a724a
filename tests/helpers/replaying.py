"""Somebody on the way who keeps what a client sends first, and sends it again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from helpers.datagrams import relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from helpers.datagrams import Relay

__all__ = ["Replay", "first_flight", "recording_relay", "replay"]

LONG_HEADER = 0x80
TYPE, INITIAL, ZERO_RTT = 0x30, 0x00, 0x10


@contextlib.asynccontextmanager
async def recording_relay(port: int, *, delay: float = 0.0) -> AsyncIterator[tuple[Relay, list[bytes]]]:
    """A relay to a gateway, and what it has carried there."""
    async with relay(port, delay=delay) as between:
        carried: list[bytes] = []
        between.on_carried = carried.append
        yield between, carried


def first_flight(carried: Iterable[bytes]) -> list[bytes]:
    """Of what one client has sent, the datagrams that begin with an Initial or a 0-RTT packet."""
    flight = [data for data in carried if data[0] & LONG_HEADER and data[0] & TYPE in (INITIAL, ZERO_RTT)]
    assert any(data[0] & TYPE == ZERO_RTT for data in flight), "no early data"
    return flight


class Replay:
    """A client's datagrams, sent from another port."""

    def __init__(self, port: int) -> None:
        self.answers: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect(("127.0.0.1", port))
        self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self.answers.append(self._socket.recv(1 << 16))

    def send(self, datagrams: Iterable[bytes]) -> None:
        for data in datagrams:
            self._socket.send(data)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()


@contextlib.asynccontextmanager
async def replay(port: int) -> AsyncIterator[Replay]:
    """A `Replay` to a port of 127.0.0.1."""
    made = Replay(port)
    try:
        yield made
    finally:
        made.close()
