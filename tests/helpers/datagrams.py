"""A network between a QUIC client and its gateway: far, or lossy, or silent. What it loses it loses without a word."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

__all__ = ["Relay", "relay"]

_MOST: Final = 1 << 16


class Relay:
    """Listens on ``port`` of 127.0.0.1, and carries datagrams to the target and back, from a port for each client.

    Each takes ``delay`` seconds, one way; whatever the timers do, none overtakes another. An ``own_port`` that is
    taken is an OSError.
    """

    def __init__(self, port: int, *, delay: float = 0.0, own_port: int = 0) -> None:
        self.is_silent = False
        self.one_in = 0
        """Of so many datagrams one is lost, each way; 0: none."""
        self.carries = _MOST
        """Octets of the largest datagram that is not lost."""
        self.largest = 0
        """Octets of the largest that came this far and was not lost."""
        self.on_carried: Callable[[bytes], object] = len
        """Called with each datagram that a client has sent."""
        self._target = ("127.0.0.1", port)
        self._delay = delay
        self._under_way: deque[tuple[Callable[[bytes], object], bytes]] = deque()
        self._counts = {True: itertools.count(1), False: itertools.count(1)}
        self._loop = asyncio.get_running_loop()
        self._ways: dict[Any, socket.socket] = {}
        self._cut: set[Any] = set()
        self._front = self._socket()
        try:
            self._front.bind(("127.0.0.1", own_port))
        except OSError:
            self._front.close()
            raise
        self._loop.add_reader(self._front, self._there)
        self.port: int = self._front.getsockname()[1]

    @staticmethod
    def _socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setblocking(False)
        return made

    def _there(self) -> None:
        data, client = self._front.recvfrom(_MOST)
        self.on_carried(data)
        way = self._ways.get(client)
        if way is None:
            way = self._ways[client] = self._socket()
            way.connect(self._target)
            self._loop.add_reader(way, self._back, way, client)
            if self._cut and not data[0] & 0x80:
                # A connection that there was, which tries another port: its packets have short headers.
                self._cut.add(client)
        if not self._loses(data, client, there=True):
            self._carry(way.send, data)

    def _back(self, way: socket.socket, client: Any) -> None:
        try:
            data = way.recv(_MOST)
        except OSError:
            # Nobody listens there, for now. uvloop does not look at a socket any more that has had an error.
            self._loop.remove_reader(way)
            self._loop.add_reader(way, self._back, way, client)
            return
        if not self._loses(data, client, there=False):
            self._carry(lambda data: self._front.sendto(data, client), data)

    def _loses(self, data: bytes, client: Any, *, there: bool) -> bool:
        if self.is_silent or client in self._cut or len(data) > self.carries:
            return True
        if self.one_in > 0 and next(self._counts[there]) % self.one_in == 0:
            return True
        self.largest = max(self.largest, len(data))
        return False

    def _carry(self, forward: Callable[[bytes], object], data: bytes) -> None:
        self._under_way.append((forward, data))
        if self._delay:
            self._loop.call_later(self._delay, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        if self._under_way:
            forward, data = self._under_way.popleft()
            # What the kernel has no room for is lost, as on any network; and where nobody listens, that is told late.
            with contextlib.suppress(OSError):
                forward(data)

    def cut(self) -> None:
        """Nothing of the connections that there are gets through any more, by whatever port; others may come."""
        self._cut |= self._ways.keys()

    def mend(self) -> None:
        """All of them get through again."""
        self._cut.clear()

    def rebind(self) -> None:
        """All clients are at other addresses from now on, as behind a NAT that has forgotten them."""
        for client, way in list(self._ways.items()):
            self._loop.remove_reader(way)
            way.close()
            new = self._ways[client] = self._socket()
            new.connect(self._target)
            self._loop.add_reader(new, self._back, new, client)

    def lead_to(self, port: int) -> None:
        """Clients that come from now on are carried to another port, as by a load balancer."""
        self._target = ("127.0.0.1", port)

    def close(self) -> None:
        self._under_way.clear()
        for each in (self._front, *self._ways.values()):
            self._loop.remove_reader(each)
            each.close()


@contextlib.asynccontextmanager
async def relay(port: int, *, delay: float = 0.0) -> AsyncIterator[Relay]:
    """A `Relay` before the gateway at ``port`` of 127.0.0.1, which carries everything at first."""
    made = Relay(port, delay=delay)
    try:
        yield made
    finally:
        made.close()
