"""Who is at a worker's UDP sockets: it, or the caretaker, and never both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from helpers.waiting import until
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.steering import LET_GO, Caretaking, WorkerSockets
from pgtrunk_gateway.quic.forwarding import Forwarded
from pgtrunk_gateway.quic.groups import bind_group, steer
from pgtrunk_gateway.quic.resets import ResetTokens

if TYPE_CHECKING:
    from pgtrunk.quic.sockets import AddressInfo

KEYS = (b"k" * 32,)
ID = b"\x00\x01345678"
"""Of worker 1 of two."""


class House:
    """Two workers' sockets, as a supervisor has them."""

    def __init__(self, hosts: tuple[str, ...] = ("127.0.0.1",)) -> None:
        infos: list[AddressInfo] = []
        for host in hosts:
            infos += socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        groups = bind_group(infos, 2)
        for sock in groups[0]:
            assert steer(sock, 2) is None
        self.ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in groups]
        for pair in self.ends:
            for end in pair:
                end.setblocking(False)
        self.sockets = [WorkerSockets(udp, *pair) for udp, pair in zip(groups, self.ends, strict=True)]
        self.serving = {0, 1}
        self.is_ending = False
        self.caretaking = Caretaking(self.sockets, KEYS, serving=lambda: self.serving, ends=lambda: self.is_ending)
        self.address = groups[0][0].getsockname()

    async def close(self) -> None:
        await self.caretaking.close()
        for each in self.sockets:
            for sock in (*each.udp, each.inlet, each.outlet):
                sock.close()


@contextlib.asynccontextmanager
async def house(*hosts: str) -> AsyncIterator[House]:
    made = House(hosts or ("127.0.0.1",))
    try:
        yield made
    finally:
        await made.close()
        await asyncio.sleep(0.01)


def ask(sender: socket.socket, house: House, packet: bytes) -> None:
    sender.sendto(packet, house.address)


@pytest.fixture
def sender() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


async def answer(sender: socket.socket) -> bytes:
    async with asyncio.timeout(20):
        return await asyncio.get_running_loop().sock_recv(sender, 2048)


PACKET = b"\x41" + ID + bytes(30)


@pytest.mark.both_loops
@pytest.mark.parametrize("hosts", [("127.0.0.1",), ("127.0.0.1", "::1"), ("0.0.0.0",)])
async def test_clients_of_a_worker_that_is_gone_are_told(sender: socket.socket, hosts: tuple[str, ...]) -> None:
    with sender:
        async with house(*hosts) as made:
            if hosts == ("0.0.0.0",):
                made.address = ("127.0.0.1", made.address[1])
            made.serving.remove(1)
            made.caretaking.leaves(1)
            assert made.caretaking.absent == {1}
            ask(sender, made, PACKET)
            assert (await answer(sender)).endswith(ResetTokens(KEYS)(ID))


async def test_what_came_before_it_was_noticed_is_answered_too(sender: socket.socket) -> None:
    with sender:
        async with house() as made:
            ask(sender, made, PACKET)
            made.caretaking.leaves(1)
            assert (await answer(sender)).endswith(ResetTokens(KEYS)(ID))


async def test_so_is_what_another_worker_has_received(sender: socket.socket) -> None:
    with sender:
        async with house() as made:
            sender.bind(("127.0.0.1", 0))
            made.caretaking.leaves(1)
            made.ends[1][1].send(Forwarded(0, sender.getsockname(), b"", PACKET).encode())
            assert (await answer(sender)).endswith(ResetTokens(KEYS)(ID))


async def test_first_packets_go_to_who_is_there(sender: socket.socket) -> None:
    with sender:
        async with house() as made:
            made.serving.remove(1)
            made.caretaking.leaves(1)
            first = (b"\xc0\x00\x00\x00\x01\x08" + ID).ljust(1200, b"\x00")
            ask(sender, made, first)
            async with asyncio.timeout(20):
                frame = await asyncio.get_running_loop().sock_recv(made.ends[0][0], 1 << 16)
            forwarded = Forwarded.decode(frame)
            assert forwarded is not None
            assert (forwarded.data, forwarded.peer[1]) == (first, sender.getsockname()[1])


@pytest.mark.both_loops
async def test_it_lets_go_when_the_next_worker_asks(sender: socket.socket) -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    supervisor, worker = Bus("worker 1"), Bus("the supervisor")
    await loop.create_unix_connection(lambda: supervisor, sock=ours)
    await loop.create_unix_connection(lambda: worker, sock=theirs)
    with sender:
        async with house() as made:
            made.caretaking.leaves(1)
            made.caretaking.enters(1, supervisor)
            # It is still there while the worker starts.
            ask(sender, made, PACKET)
            await answer(sender)
            await worker.ask(LET_GO, timeout=20)
            assert not made.caretaking.absent
            ask(sender, made, PACKET)
            [sock] = made.sockets[1].udp
            async with asyncio.timeout(20):
                assert await loop.sock_recv(sock, 2048) == PACKET
            # Where nobody stands in, there is nothing to let go of.
            await worker.ask(LET_GO, timeout=20)
    for bus in (supervisor, worker):
        bus.close()
        await bus.wait_closed()


async def test_who_asks_at_once_has_the_sockets_to_itself(sender: socket.socket) -> None:
    with sender:
        async with house() as made:
            made.caretaking.leaves(1)
            await made.caretaking.let_go(1)
            ask(sender, made, PACKET)
            [sock] = made.sockets[1].udp
            async with asyncio.timeout(20):
                assert await asyncio.get_running_loop().sock_recv(sock, 2048) == PACKET


async def test_nobody_stands_in_at_the_end_or_without_sockets() -> None:
    async with house() as made:
        made.is_ending = True
        made.caretaking.leaves(0)
        assert not made.caretaking.absent
    async with house() as made:
        made.caretaking._sockets = [WorkerSockets((), each.inlet, each.outlet) for each in made.sockets]
        made.caretaking.leaves(0)
        assert not made.caretaking.absent


async def test_it_leaves_nothing_open() -> None:
    async with house("127.0.0.1", "127.0.0.2") as made:
        made.caretaking.leaves(0)
        made.caretaking.leaves(0)
        made.caretaking.leaves(1)
        await until(lambda: all(care._inlet is not None for care in made.caretaking._cares.values()))
        assert made.caretaking.absent == {0, 1}
