"""Several listeners that share a port, as the workers of a fleet do, in one process and on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

from helpers.listening import PATIENCE, Echo
from pgtrunk_gateway.quic.caretaker import Caretaker
from pgtrunk_gateway.quic.connection_id import bucket_of
from pgtrunk_gateway.quic.groups import steer
from pgtrunk_gateway.quic.server import Listener, ServerConfig, bind, listen_on
from pgtrunk_gateway.quic.steering import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgtrunk.quic.transport import StreamTransport


class EchoFleet:
    """``workers`` listeners that echo. The sockets of those that are gone stay open, and others follow on them."""

    def __init__(self, config: ServerConfig, sockets: list[list[socket.socket]]) -> None:
        self.config = config
        self.count = len(sockets)
        self.living: dict[int, Listener] = {}
        self.caretakers: dict[int, Caretaker] = {}
        self.accepted: list[tuple[int, StreamTransport]] = []
        self.passed_on: Counter[int] = Counter()
        """Frames, by the worker that they were for."""
        self._sockets = sockets
        self._queues: list[list[bytes]] = [[] for _ in sockets]
        self._loop = asyncio.get_running_loop()

    @property
    def port(self) -> int:
        port: int = self._sockets[0][0].getsockname()[1]
        return port

    def owner(self, client: Any) -> int:
        """The worker that a client's connection leads to; ``client`` has it as ``quic``."""
        return self.owner_of(client.quic._peer_cid.cid)

    def owner_of(self, connection_id: bytes) -> int:
        """The worker that an id leads to."""
        return bucket_of(connection_id) % self.count

    def spread(self) -> list[int]:
        """How many connections each worker has."""
        return [self.living[index].connections if index in self.living else 0 for index in range(self.count)]

    @property
    def half_open(self) -> int:
        return sum(listener.half_open for listener in self.living.values())

    async def start(self, index: int) -> None:
        """A worker begins to serve; frames that have come for it meanwhile are there."""
        caretaker = self.caretakers.pop(index, None)
        if caretaker is not None:
            caretaker.close()
        self.living[index] = await listen_on(
            [sock.dup() for sock in self._sockets[index]],
            config=self.config,
            accept=lambda transport: self._accept(index, transport),
            place=Place(index, self.count),
            forward=self._forward,
        )
        self._deliver(index)

    def kill(self, index: int) -> None:
        """A worker vanishes without a word."""
        self.living.pop(index)._finish()

    async def care_for(self, index: int) -> None:
        """A caretaker stands in for a worker that is gone."""
        caretaker = Caretaker(
            Place(index, self.count), self.config.keys, forward=self._forward, living=lambda: sorted(self.living)
        )
        for sock in self._sockets[index]:
            await caretaker.attach(sock.dup())
        self.caretakers[index] = caretaker
        self._deliver(index)

    async def close(self) -> None:
        for caretaker in self.caretakers.values():
            caretaker.close()
        for listener in self.living.values():
            listener.close()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(listener.wait_closed() for listener in self.living.values()))
        for sockets in self._sockets:
            for sock in sockets:
                sock.close()

    def _accept(self, index: int, transport: StreamTransport) -> asyncio.Protocol:
        self.accepted.append((index, transport))
        return Echo(transport)

    def _forward(self, worker: int, frame: bytes) -> None:
        self.passed_on[worker] += 1
        self._queues[worker].append(frame)
        self._loop.call_soon(self._deliver, worker)

    def _deliver(self, index: int) -> None:
        taker = self.living.get(index) or self.caretakers.get(index)
        if taker is not None:
            while self._queues[index]:
                taker.take(self._queues[index].pop(0))


@contextlib.asynccontextmanager
async def echo_fleet(
    config: ServerConfig, workers: int = 4, *, host: str = "127.0.0.1", steered: bool = True
) -> AsyncIterator[EchoFleet]:
    """Runs all workers, and sees to it that nothing is left of them. ``steered``: the kernel does it."""
    groups = await bind([host], 0, workers)
    if steered:
        assert [steer(sock, workers) for sock in groups[0]] == [None] * len(groups[0])
    fleet = EchoFleet(config, groups)
    try:
        for index in range(workers):
            await fleet.start(index)
        yield fleet
    finally:
        await fleet.close()
    for listener in fleet.living.values():
        assert (listener.connections, listener.half_open, listener.connection_ids, listener.streams) == (0, 0, 0, 0)
    assert config.budget.committed == 0
    await asyncio.sleep(0)
