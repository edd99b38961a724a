"""The fronts of a worker: connections that were accepted elsewhere become sessions, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from typing import TYPE_CHECKING, cast

import pytest

from helpers.waiting import until
from pgtrunk_gateway.config import Config
from pgtrunk_gateway.fleet.hand import Hand, Handed
from pgtrunk_gateway.fronts.handed import HandedFront, Receiver
from pgtrunk_gateway.fronts.tcp import tcp_tuner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgtrunk_gateway.config import Loaded
    from pgtrunk_gateway.relay.session import Session

pytestmark = pytest.mark.both_loops


class Echo(asyncio.Protocol):
    """A session that says back what it hears."""

    def __init__(self, made: list[tuple[str, asyncio.Transport]], front: str) -> None:
        self._made = made
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._made.append((self._front, self.transport))

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Worker:
    """The channel, the fronts, and what became of it."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.made: list[tuple[str, asyncio.Transport]] = []
        self.taken = 0
        self.sessions_when_taken: list[int] = []
        self.config = Config(tcp_keepidle=61)

        def session(front: str) -> Session:
            return cast("Session", Echo(self.made, front))

        self.tcp = HandedFront("tcp", ["127.0.0.1:1"], 1, session, tcp_tuner(lambda: self.config))
        self.unix = HandedFront("unix", ["/tmp/.s.PGSQL.1"], 1, session)
        self.receiver = Receiver(socket.socket(fileno=os.dup(self.hand.descriptor)), [self.tcp, self.unix], self._count)

    def _count(self) -> None:
        self.taken += 1
        self.sessions_when_taken.append(len(self.made))

    async def close(self) -> None:
        for front in (self.tcp, self.unix):
            front.stop_accepting()
        await self.receiver.close()
        for front in (self.tcp, self.unix):
            await front.close()
        for _, transport in self.made:
            transport.abort()
        self.hand.close()
        await asyncio.sleep(0.01)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    return client, accepted


@contextlib.contextmanager
def no_more_descriptors(*, but: int = 0) -> Iterator[None]:
    """This process may open no more files than it has, and ``but`` so many."""
    taken = [os.dup(0) for _ in range(but + 1)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1], before[1]))
    for descriptor in taken:
        os.close(descriptor)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_each_front_serves_its_own() -> None:
    worker = Worker()
    loop = asyncio.get_running_loop()
    for name, (client, accepted) in {"tcp": tcp_pair(), "unix": socket.socketpair()}.items():
        client.setblocking(False)
        worker.hand.give(Handed(name, accepted))
        await loop.sock_sendall(client, name.encode())
        assert await asyncio.wait_for(loop.sock_recv(client, 100), 20) == name.encode()
        client.close()
    assert [front for front, _ in worker.made] == ["tcp", "unix"]
    assert worker.taken == 2
    # A session is there before it counts as taken, or the supervisor would miss it for a moment.
    assert worker.sessions_when_taken == [1, 2]
    await worker.close()


async def test_options_are_those_of_the_moment() -> None:
    worker = Worker()
    for idle in (61, 62):
        worker.config = Config(tcp_keepidle=idle)
        client, accepted = tcp_pair()
        worker.hand.give(Handed("tcp", accepted))
        await until(lambda idle=idle: worker.taken == idle - 60)  # type: ignore[misc]
        sock = worker.made[-1][1].get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert worker.made[-1][1].get_extra_info("peername") == client.getsockname()
        client.close()
    worker.tcp.prepare(cast("Loaded", None))()
    await worker.close()


async def test_who_has_hung_up_already_is_no_fault() -> None:
    worker = Worker()
    client, accepted = tcp_pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    worker.hand.give(Handed("tcp", accepted))
    await until(lambda: worker.taken == 1)
    await worker.close()


async def test_what_may_not_be_opened_any_more_is_told_as_taken() -> None:
    worker = Worker()
    client, accepted = tcp_pair()
    with no_more_descriptors():
        worker.hand.give(Handed("tcp", accepted))
        # Or it would be on its way for ever, and after some of them the supervisor would give this worker no more.
        await until(lambda: worker.taken == 1)
    client.settimeout(20)
    assert await asyncio.to_thread(client.recv, 1) == b""
    client.close()
    assert worker.made == []
    client, accepted = tcp_pair()
    worker.hand.give(Handed("tcp", accepted))
    await until(lambda: worker.taken == 2 and len(worker.made) == 1)
    client.close()
    await worker.close()


async def test_what_cannot_be_taken_back_is_lost_and_the_rest_is_not() -> None:
    worker = Worker()
    await worker.receiver.close()
    clients = []
    for _ in range(2):
        client, ours = socket.socketpair()
        clients.append(client)
        worker.hand.give(Handed("unix", ours))
    with no_more_descriptors(but=1):
        (handed,), lost = worker.hand.take_back()
    assert lost == 1
    handed.sock.close()
    for client in clients:
        client.close()
    worker.hand.close()


async def test_what_comes_too_late_or_for_nobody_is_closed() -> None:
    worker = Worker()
    worker.tcp.stop_accepting()
    for name in ("tcp", "other"):
        client, ours = socket.socketpair()
        worker.hand.give(Handed(name, ours))
        client.settimeout(20)
        assert await asyncio.to_thread(client.recv, 1) == b""
        client.close()
    await until(lambda: worker.taken == 2)
    assert worker.made == []
    await worker.close()


async def test_what_was_not_received_is_still_there() -> None:
    worker = Worker()
    await worker.receiver.close()
    client, ours = socket.socketpair()
    worker.hand.give(Handed("unix", ours))
    (handed,), lost = worker.hand.take_back()
    assert lost == 0
    handed.sock.close()
    client.close()
    for front in (worker.tcp, worker.unix):
        await front.close()
    worker.hand.close()


async def test_the_end_of_the_supervisor_is_no_fault_here() -> None:
    worker = Worker()
    worker.hand.close()
    await asyncio.sleep(0.02)
    await worker.receiver.close()
