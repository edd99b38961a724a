"""A network between a QUIC client and its gateway that can go silent: datagrams are lost, both ways, without a word."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

__all__ = ["Relay", "relay"]

_MOST: Final = 1 << 16


class Relay:
    """Listens on ``port`` of 127.0.0.1, and carries datagrams to the target and back, from a port for each client."""

    def __init__(self, port: int) -> None:
        self.is_silent = False
        self._target = ("127.0.0.1", port)
        self._loop = asyncio.get_running_loop()
        self._ways: dict[Any, socket.socket] = {}
        self._front = self._socket()
        self._front.bind(("127.0.0.1", 0))
        self._loop.add_reader(self._front, self._there)
        self.port: int = self._front.getsockname()[1]

    @staticmethod
    def _socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setblocking(False)
        return made

    def _there(self) -> None:
        data, client = self._front.recvfrom(_MOST)
        way = self._ways.get(client)
        if way is None:
            way = self._ways[client] = self._socket()
            way.connect(self._target)
            self._loop.add_reader(way, self._back, way, client)
        if not self.is_silent:
            # What the kernel has no room for is lost, as on any network; and where nobody listens, that is told late.
            with contextlib.suppress(OSError):
                way.send(data)

    def _back(self, way: socket.socket, client: Any) -> None:
        with contextlib.suppress(OSError):
            data = way.recv(_MOST)
            if not self.is_silent:
                self._front.sendto(data, client)

    def close(self) -> None:
        for each in (self._front, *self._ways.values()):
            self._loop.remove_reader(each)
            each.close()


@contextlib.asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    """A `Relay` before the gateway at ``port`` of 127.0.0.1, which carries everything at first."""
    made = Relay(port)
    try:
        yield made
    finally:
        made.close()
