"""Connections on their way from the supervisor to its workers, over real sockets; the workers are played."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio

from helpers.waiting import until
from pgtrunk_gateway.fleet import acceptor as module
from pgtrunk_gateway.fleet.acceptor import Acceptor, Choice
from pgtrunk_gateway.fleet.hand import Hand, Handed, take

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.both_loops


def connected() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


# -- the channel -------------------------------------------------------------------------------------------------------


def worker_end(hand: Hand) -> socket.socket:
    """As the worker would have it."""
    channel = socket.socket(fileno=os.dup(hand.descriptor))
    channel.setblocking(False)
    return channel


async def test_a_connection_is_handed_over_and_goes_on() -> None:
    hand = Hand()
    theirs, ours = connected()
    assert take_all(hand) == []
    theirs.sendall(b"before")
    assert hand.give(Handed("tcp", ours))
    assert ours.fileno() == -1
    with worker_end(hand) as channel:
        handed = take(channel)
        assert take(channel) is None
    assert handed is not None
    assert handed.front == "tcp"
    with theirs, handed.sock as sock:
        assert not sock.get_inheritable()
        theirs.sendall(b" and behind")
        assert sock.recv(100) == b"before and behind"
    hand.close()


async def test_a_socket_that_was_handed_over_is_known_for_what_it_is() -> None:
    hand = Hand()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        hand.give(Handed("tcp", accepted))
        (handed,) = take_all(hand)
        # Or asyncio would leave Nagle's algorithm on.
        assert (handed.sock.family, handed.sock.type, handed.sock.proto) == (
            socket.AF_INET,
            socket.SOCK_STREAM,
            socket.IPPROTO_TCP,
        )
        handed.sock.close()
    hand.close()


async def test_a_full_channel_takes_nothing_and_loses_nothing() -> None:
    hand = Hand()
    clients: list[socket.socket] = []
    while True:
        theirs, ours = connected()
        clients.append(theirs)
        if not hand.give(Handed("unix", ours)):
            break
    ours.close()
    assert len(clients) > module._AHEAD
    handed = take_all(hand)
    assert len(handed) == len(clients) - 1
    for each in handed:
        each.sock.close()
    assert all(client.recv(1) == b"" for client in clients)
    for client in clients:
        client.close()
    hand.close()


async def test_the_end_of_the_channel_ends_what_is_on_its_way() -> None:
    hand = Hand()
    theirs, ours = connected()
    channel = worker_end(hand)
    hand.give(Handed("tcp", ours))
    hand.close()
    handed = take(channel)
    assert handed is not None
    handed.sock.close()
    with pytest.raises(EOFError):
        take(channel)
    channel.close()
    with theirs:
        assert theirs.recv(1) == b""


def take_all(hand: Hand) -> list[Handed]:
    with worker_end(hand) as channel:
        found = []
        while (handed := take(channel)) is not None:
            found.append(handed)
        return found


# -- the loop of accept() ----------------------------------------------------------------------------------------------


class Stage:
    """An acceptor with its listening socket, and workers that do as they are told."""

    def __init__(self, count: int) -> None:
        self.hands = [Hand() for _ in range(count)]
        self.sessions: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        self.patience = 30.0
        choice = Choice(lambda index: self.sessions[index], lambda index: self.taken[index])
        self.acceptor = Acceptor(choice, dict(enumerate(self.hands)), lambda: self.patience)
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.listening.setblocking(False)
        self.acceptor.listen("tcp", self.listening)
        self.clients: list[socket.socket] = []
        self.served: list[socket.socket] = []

    def connect(self, times: int = 1) -> None:
        for _ in range(times):
            self.clients.append(socket.create_connection(self.listening.getsockname()))

    def take(self, index: int) -> int:
        """What came to a worker, which serves it from now on -> how many."""
        found = take_all(self.hands[index])
        self.served += [handed.sock for handed in found]
        self.sessions[index] += len(found)
        self.taken[index] += len(found)
        return len(found)

    async def counts(self, *expected: int) -> None:
        """Waits until the workers have got this many."""
        got = [0] * len(expected)

        def arrived() -> list[int] | None:
            for index in range(len(expected)):
                got[index] += self.take(index)
            return got if sum(got) >= sum(expected) else None

        await until(arrived)
        assert got == list(expected)

    def close(self) -> None:
        self.acceptor.close()
        self.listening.close()
        for hand in self.hands:
            hand.close()
        for sock in (*self.clients, *self.served):
            sock.close()


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Callable[[int], Stage]]:
    stages: list[Stage] = []

    def make(count: int) -> Stage:
        stages.append(Stage(count))
        return stages[-1]

    yield make
    for each in stages:
        each.close()


async def test_connections_are_spread(stage: Callable[[int], Stage]) -> None:
    scene = stage(4)
    for index in range(4):
        scene.acceptor.join(index)
    scene.connect(20)
    await scene.counts(5, 5, 5, 5)
    scene.sessions[2] = 0
    scene.connect(4)
    await scene.counts(0, 0, 4, 0)


async def test_what_a_dead_worker_had_not_taken_goes_to_the_others(stage: Callable[[int], Stage]) -> None:
    scene = stage(2)
    for index in range(2):
        scene.acceptor.join(index)
    scene.connect(10)
    await until(lambda: all(scene.acceptor._choice.under_way(index) == 5 for index in range(2)))
    scene.acceptor.leave(0)
    await scene.counts(0, 10)
    assert scene.acceptor.waiting == 0


async def test_while_nobody_is_there_connections_wait(stage: Callable[[int], Stage]) -> None:
    scene = stage(1)
    scene.connect(3)
    await until(lambda: scene.acceptor.waiting == 3)
    scene.acceptor.join(0)
    await scene.counts(3)
    scene.acceptor.leave(0)
    scene.connect(2)
    await until(lambda: scene.acceptor.waiting == 2)
    scene.acceptor.join(0)
    await scene.counts(2)


async def test_they_do_not_wait_for_ever(stage: Callable[[int], Stage], caplog: pytest.LogCaptureFixture) -> None:
    scene = stage(1)
    scene.patience = 0.01
    scene.connect(2)
    await until(lambda: "closed" in caplog.text and scene.acceptor.waiting == 0)
    for client in scene.clients:
        client.setblocking(True)
        assert client.recv(1) == b""
    assert "client_login_timeout" in caplog.text


async def test_a_full_room_leaves_the_rest_to_the_kernel(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROOM", 4)
    scene = stage(1)
    scene.connect(10)
    await until(lambda: scene.acceptor.waiting == 4)
    await asyncio.sleep(3 * module._LOOK)
    assert scene.acceptor.waiting == 4
    scene.acceptor.join(0)
    await scene.counts(10)


async def test_who_waits_leaves_descriptors_for_workers(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Or no worker could be started, and nobody would ever take what waits.
    monkeypatch.setattr(module, "spare_files", lambda: 8)
    scene = stage(1)
    scene.connect(10)
    await until(lambda: scene.acceptor.waiting == 4)
    await asyncio.sleep(3 * module._LOOK)
    assert scene.acceptor.waiting == 4
    scene.acceptor.join(0)
    await until(lambda: scene.acceptor._choice.under_way(0) == 10)
    # What comes back from one that has died is no exception.
    scene.acceptor.leave(0)
    assert scene.acceptor.waiting == 4
    assert "6 too many wait" in caplog.text


def test_how_many_files_may_still_be_opened() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    try:
        assert module.spare_files() <= 500 - len(os.listdir("/proc/self/fd")) + 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_stuck_workers_get_no_more_than_a_few(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AHEAD", 2)
    scene = stage(2)
    for index in range(2):
        scene.acceptor.join(index)
    scene.connect(7)
    await until(lambda: scene.acceptor.waiting == 3)
    await scene.counts(4, 3)


async def test_who_is_held_gets_none_and_what_it_has_not_taken_goes_to_the_others(
    stage: Callable[[int], Stage],
) -> None:
    scene = stage(2)
    for index in range(2):
        scene.acceptor.join(index)
    scene.connect(4)
    await until(lambda: sum(scene.acceptor._choice.under_way(index) for index in range(2)) == 4)
    assert scene.take(0) == 2
    scene.acceptor.hold(1)
    scene.connect(1)
    await scene.counts(3, 0)
    assert scene.acceptor.is_idle
    scene.acceptor.release(1)
    scene.connect(3)
    await scene.counts(0, 3)
    assert scene.acceptor.is_idle


async def test_while_all_are_held_connections_wait(stage: Callable[[int], Stage]) -> None:
    scene = stage(1)
    scene.acceptor.join(0)
    scene.acceptor.hold(0)
    scene.connect(2)
    await until(lambda: scene.acceptor.waiting == 2)
    scene.acceptor.release(0)
    await scene.counts(2)
    scene.acceptor.hold(0)
    # Another one is in its place.
    scene.acceptor.leave(0)
    scene.acceptor.join(0)
    scene.connect(1)
    await scene.counts(1)


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.EPERM])
async def test_what_keeps_it_from_accepting_is_waited_for(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: int
) -> None:
    monkeypatch.setattr(module, "_HOLD_OFF", 0.02)
    scene = stage(1)
    scene.acceptor.join(0)
    scene.acceptor.stop("tcp")
    attempts: list[int] = []

    class Poor:
        """A listening socket that gives nothing for the first two times."""

        def fileno(self) -> int:
            return scene.listening.fileno()

        def accept(self) -> tuple[socket.socket, object]:
            attempts.append(1)
            if len(attempts) < 3:
                raise OSError(fault, os.strerror(fault))
            return scene.listening.accept()

    scene.acceptor.listen("tcp", cast("socket.socket", Poor()))
    with caplog.at_level(logging.ERROR):
        scene.connect(3)
        await scene.counts(3)
    assert caplog.text.count(f"cannot accept: {os.strerror(fault)}") == 2


async def test_a_front_that_stops_accepts_nothing(stage: Callable[[int], Stage]) -> None:
    scene = stage(1)
    scene.acceptor.join(0)
    scene.acceptor.stop("tcp")
    scene.connect()
    await asyncio.sleep(0.02)
    assert scene.take(0) == 0
    scene.acceptor.listen("tcp", scene.listening)
    await scene.counts(1)


async def test_who_waits_at_the_end_is_closed(stage: Callable[[int], Stage]) -> None:
    scene = stage(1)
    scene.connect(2)
    await until(lambda: scene.acceptor.waiting == 2)
    scene.acceptor.close()
    for client in scene.clients:
        assert client.recv(1) == b""
