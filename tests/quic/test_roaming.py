"""Clients whose sockets die under them, on loopback: the connection goes on by another socket."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Recorder
from pgtrunk.quic import ClientConnection, QuicLimits, connect
from pgtrunk.quic.client_socket import ClientSocket
from pgtrunk.quic.roaming import MOVES

LARGE = 2_000_000


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Unclosed sockets warn when they are collected, and warnings are errors."""
    yield
    gc.collect()


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is the state of two ends, which set no event
            await asyncio.sleep(0.001)


class Broken:
    """A socket that does with each datagram what ``fate`` does: raise, or nothing."""

    def __init__(self, fate: Callable[[bytes], None]) -> None:
        self.fate = fate
        self.sent = 0

    def send(self, data: bytes) -> int:
        self.sent += 1
        self.fate(data)
        return len(data)


def fails(number: int) -> Callable[[bytes], None]:
    def fate(data: bytes) -> None:
        raise OSError(number, "as the test wants it")

    return fate


def current(connection: ClientConnection) -> ClientSocket:
    return connection._sockets._current


def break_it(connection: ClientConnection, fate: Callable[[bytes], None]) -> Broken:
    """The socket in use sends nothing any more. It goes on receiving, what shall not be taken for health."""
    broken = Broken(fate)
    current(connection)._sock = broken  # type: ignore[assignment]
    return broken


@asynccontextmanager
async def opened(server: LoopbackServer, **limits: Any) -> AsyncIterator[ClientConnection]:
    settings: dict[str, Any] = {"max_streams": 0, **limits}
    config = server.client(limits=QuicLimits(**settings))
    connection = await connect("127.0.0.1", server.port, config=config, timeout=10)
    try:
        yield connection
    finally:
        connection.close()
        async with asyncio.timeout(10):
            await connection.wait_closed()
        assert not connection._sockets._open
        assert connection._sockets._timer is None


def pattern(size: int) -> bytes:
    return bytes(index * 7 % 251 for index in range(size))


@pytest.mark.parametrize("number", sorted(MOVES), ids=lambda number: errno.errorcode[number])
async def test_another_socket_when_sends_fail(number: int) -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        transport.write(b"before")
        await until(lambda: protocol.data == b"before")
        before = current(connection)
        ids = connection.driver.quic._peer_cid.cid
        broken = break_it(connection, fails(number))
        transport.write(b" and after")
        await until(lambda: protocol.data == b"before and after")
        assert broken.sent
        assert connection.driver.quic.moves == server.driver.quic.moves == 1
        assert current(connection) is not before
        assert connection.driver.quic._peer_cid.cid != ids
        assert transport.get_extra_info("sockname") == current(connection).sockname != before.sockname
        assert transport.get_extra_info("peername")[1] == server.port
        assert tuple(server.driver.peername or ()) == current(connection).sockname
        assert not connection._sockets._is_looking


async def midway() -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        sent = pattern(LARGE)
        transport.write(sent)
        for turn in range(4):
            await until(lambda turn=turn: len(protocol.data) > turn * LARGE // 5)  # type: ignore[misc]
            connection._sockets._not_before = 0.0
            break_it(connection, fails(errno.ENETUNREACH))
            await until(lambda turn=turn: connection.driver.quic.moves == turn + 1)  # type: ignore[misc]
        await until(lambda: len(protocol.data) == LARGE)
        assert bytes(protocol.data) == sent


async def test_in_the_middle_of_a_transfer() -> None:
    await midway()


async def silent() -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        transport.write(b"before")
        await until(lambda: protocol.data == b"before")
        break_it(connection, lambda data: None)
        transport.write(b" and after")
        await until(lambda: protocol.data == b"before and after")
        assert connection.driver.quic.moves == 1


async def test_another_socket_when_nothing_is_heard() -> None:
    await silent()


@pytest.mark.parametrize("scenario", [midway, silent])
def test_the_same_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())


async def test_while_there_is_no_network_at_all_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        attempts: list[float] = []
        original = ClientSocket.open
        loop = asyncio.get_running_loop()

        async def cannot(self: ClientSocket, buffer: int) -> None:
            attempts.append(loop.time())
            if len(attempts) <= 3:
                raise OSError(errno.ENETUNREACH, "no route")
            await original(self, buffer)

        monkeypatch.setattr(ClientSocket, "open", cannot)
        break_it(connection, fails(errno.ENETUNREACH))
        transport.write(b"hello")
        await until(lambda: protocol.data == b"hello")
        # None of them cost a connection id, and there were pauses.
        assert len(attempts) == 4
        assert attempts[2] - attempts[1] > 0.2
        assert attempts[3] - attempts[2] > 0.2
        assert connection.driver.quic.moves == 1


async def test_a_new_socket_that_fails_too_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        original = ClientSocket.open
        made: list[ClientSocket] = []

        async def fails_at_first(self: ClientSocket, buffer: int) -> None:
            await original(self, buffer)
            made.append(self)
            if len(made) <= 2:
                self._sock = Broken(fails(errno.EPERM))  # type: ignore[assignment]

        monkeypatch.setattr(ClientSocket, "open", fails_at_first)
        break_it(connection, fails(errno.EPERM))
        transport.write(b"hello")
        await until(lambda: protocol.data == b"hello")
        assert len(made) == 3
        assert current(connection) is made[2]
        await until(lambda: len(connection._sockets._open) == 1)


async def test_the_old_socket_stays_where_it_answers_first() -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        before = current(connection)
        transport.write(b"x")
        await until(lambda: protocol.data == b"x")
        server.answers = False
        transport.write(b"y")
        await until(lambda: connection._sockets._next is not None)
        server.answers = True
        await until(lambda: protocol.data == b"xy")
        await until(lambda: not connection._sockets._is_looking)
        # Either may have been the first, as both were asked; then all is quiet.
        assert (connection.driver.quic.moves == 0) is (current(connection) is before)
        assert len(connection._sockets._open) <= 2
        await until(lambda: len(connection._sockets._open) == 1)


async def test_a_socket_that_nobody_answers_is_dropped_and_another_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk.quic.roaming.PATIENCE", 0.2)
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        transport.write(b"x")
        await until(lambda: protocol.data == b"x")
        made: list[ClientSocket] = []
        server.answers = False
        transport.write(b"y")

        def look() -> bool:
            sock = connection._sockets._next
            if sock is not None and sock not in made:
                made.append(sock)
            return len(made) == 3

        await until(look)
        assert len(connection._sockets._open) <= 3
        server.answers = True
        await until(lambda: protocol.data == b"xy")
        await until(lambda: len(connection._sockets._open) == 1)


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.EIO])
async def test_errors_that_pass_are_losses(number: int) -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        sock = current(connection)
        real = sock._sock
        broken = break_it(connection, fails(number))
        transport.write(b"x")
        await until(lambda: broken.sent)
        sock._sock = real
        await until(lambda: protocol.data == b"x")
        assert (connection.driver.quic.moves, connection._sockets._is_looking) == (0, False)


async def test_what_is_too_large_for_the_interface() -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        sock = current(connection)
        real = sock._sock
        assert real is not None

        def fate(data: bytes) -> None:
            if len(data) > 1300:
                raise OSError(errno.EMSGSIZE, "message too long")
            real.send(data)

        break_it(connection, fate)
        sent = pattern(LARGE)
        transport.write(sent)
        await until(lambda: len(protocol.data) == LARGE)
        assert bytes(protocol.data) == sent
        assert connection.driver.quic.search.size == 1292
        assert server.driver.quic.search.size == 1472
        assert connection.driver.quic.moves == 0
        sock._sock = real


async def test_closing_while_another_socket_is_tried_leaves_nothing() -> None:
    for turns in range(6):
        async with LoopbackServer() as server, opened(server) as connection:
            transport, _ = connection.open_stream(Recorder)
            break_it(connection, fails(errno.ENETUNREACH))
            transport.write(b"x")
            for _ in range(turns):
                await asyncio.sleep(0)


async def test_a_gateway_that_is_gone_is_told_by_refusals_as_ever() -> None:
    async with LoopbackServer() as server, opened(server) as connection:
        lost: list[BaseException] = []
        connection.on_lost = lost.append
        transport, _ = connection.open_stream(Recorder)
        server.vanish()
        transport.write(b"x")
        await until(lambda: lost, 8.0)
        assert "nothing listens there any more" in str(lost[0])


async def test_a_socket_that_may_fragment_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk.quic.client_socket.forbids_fragments", lambda sock: False)
    async with LoopbackServer() as server, opened(server) as connection:
        transport, protocol = connection.open_stream(Recorder)
        transport.write(bytes(LARGE))
        await until(lambda: len(protocol.data) == LARGE)
        assert connection.driver.quic.search.size == 1200


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_no_fragments(family: socket.AddressFamily) -> None:
    from pgtrunk.quic.sockets import forbids_fragments, tune

    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        assert not forbids_fragments(sock)
        tune(sock, 1 << 16)
        assert forbids_fragments(sock)
