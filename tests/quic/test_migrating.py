"""Addresses that change under a connection, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from helpers.quic_pair import CLIENT_ADDR, SERVER_ADDR, Echo, Pair, Recorder
from pgtrunk.quic.pmtu import BASE
from pgtrunk_gateway.quic.udp import Path as UdpPath

if TYPE_CHECKING:
    from pgtrunk.quic.connection import Connection

LARGE = 1_000_000
OTHER_PORT = (CLIENT_ADDR[0], 50000)
OTHER_HOST = ("198.51.100.7", 40000)


class Network:
    """A client that is at one address at a time, seen from its server; what is sent to another one is lost."""

    def __init__(self, **link: Any) -> None:
        self.pair = Pair(accept=Echo, **link)
        self.at: tuple[str, int] = CLIENT_ADDR
        self.old_is_there = False
        self.to: list[tuple[int, Any]] = []
        """Size and address of all that the server has sent."""
        server = self.pair.server.driver
        original = server._send

        def up(data: bytes) -> None:
            server.receive(data, self.at)

        def down(data: bytes, addr: Any) -> None:
            self.to.append((len(data), addr))
            if addr == self.at or (self.old_is_there and addr == CLIENT_ADDR):
                original(data, addr)

        self.pair.up.deliver = up
        server._send = down
        self.pair.connect()
        self.pair.run(0.5)

    @property
    def client(self) -> Connection:
        return self.pair.client.driver.quic

    @property
    def server(self) -> Connection:
        return self.pair.server.driver.quic

    def transfer(self, size: int = LARGE) -> Recorder:
        stream: Recorder = self.pair.open(Recorder)
        stream.transport.write(bytes(range(250)) * (size // 250))
        return stream

    def finish(self, stream: Recorder, size: int = LARGE) -> None:
        self.pair.until(lambda: len(stream.data) == size // 250 * 250)
        assert bytes(stream.data) == bytes(range(250)) * (size // 250)
        assert not self.pair.loop.failures


@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("address", [OTHER_PORT, OTHER_HOST])
def test_a_transfer_goes_on_from_another_address(address: tuple[str, int], loss: float) -> None:
    network = Network()
    network.pair.up.loss = network.pair.down.loss = loss
    stream = network.transfer()
    for turn in range(6):
        network.pair.run(0.15)
        network.at = (address[0], address[1] + turn)
    network.finish(stream)
    network.pair.run(3.0)
    assert network.server.get_peer_address() == network.at
    assert network.server.moves >= 1
    # The others are forgotten, and the short ways are open again.
    assert len(network.server._network_paths) == 1
    assert network.server._chores_at == float("inf")


def test_what_a_port_changes_is_nothing_but_the_port() -> None:
    network = Network()
    network.finish(network.transfer())
    window, rtt, size = network.server._loss.congestion_window, network.server._loss._rtt_smoothed, 1472
    assert network.server._max_datagram_size == size
    network.at = OTHER_PORT
    stream = network.pair.open(Recorder)
    stream.transport.write(b"x")
    network.pair.run(1.0)
    assert stream.data == b"x"
    assert network.server.moves == 1
    assert network.server._loss.congestion_window >= window
    assert network.server._loss._rtt_smoothed == pytest.approx(rtt, rel=0.5)
    assert network.server._max_datagram_size == size


def test_another_host_is_another_path_of_which_nothing_is_known() -> None:
    network = Network()
    network.finish(network.transfer())
    reno = network.server._loss._cc
    assert network.server._loss.congestion_window > 20 * BASE
    told: list[Any] = []
    network.server.on_moved = lambda: told.append(network.server.get_peer_address())
    network.at = OTHER_HOST
    network.pair.up.delay = network.pair.down.delay = 0.1
    stream = network.pair.open(Recorder)
    stream.transport.write(b"x")
    network.pair.until(lambda: network.server.moves == 1)
    assert told == [OTHER_HOST]
    assert network.server._loss._cc is not reno
    assert network.server._loss._pacer is network.server.pacer
    assert network.server._loss.congestion_window <= 12 * BASE
    assert network.server._max_datagram_size == BASE
    # What was asked and answered is the first guess.
    assert network.server._loss._rtt_initial == pytest.approx(0.2, abs=0.02)
    network.pair.run(1.0)
    assert network.server._loss._rtt_min >= 0.2
    network.finish(network.transfer())
    assert network.server._max_datagram_size == 1472
    network.pair.run(1.0)
    assert network.server._loss.bytes_in_flight == 0


def test_three_times_what_came_until_the_path_is_validated() -> None:
    network = Network()
    # The server has much to say, and the client that has moved says little.
    stream = network.transfer()
    network.pair.run(0.2)
    received = 0
    original = network.server.receive_datagram

    def receive(data: bytes, addr: Any, now: float) -> None:
        nonlocal received
        if addr == OTHER_HOST:
            received += len(data)
        original(data, addr, now)

    network.server.receive_datagram = receive  # type: ignore[method-assign]
    network.pair.down.drop = lambda data: True
    network.at = OTHER_HOST
    network.to.clear()
    network.pair.run(0.3)
    sent = sum(size for size, addr in network.to if addr == OTHER_HOST)
    assert 0 < sent <= 3 * received
    assert not network.server._network_paths[0].is_validated or network.server.get_peer_address() == CLIENT_ADDR
    network.pair.down.drop = lambda data: False
    network.finish(stream)
    assert network.server.get_peer_address() == OTHER_HOST


class Talker(asyncio.Protocol):
    """Says a lot to whoever says a word."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(bytes(LARGE))


@pytest.mark.parametrize("begins_there", [False, True])
def test_a_handshake_that_ends_elsewhere_proves_nothing(begins_there: bool) -> None:
    """Section 8.1: whoever can forge addresses would have a lot sent to anybody."""
    pair = Pair(accept=Talker)
    server, client = pair.server.driver, pair.client.driver
    received, sent = Counter[Any](), Counter[Any]()
    original = server._send

    def up(data: bytes) -> None:
        is_first = not received
        at = OTHER_HOST if client.quic._handshake_complete or (is_first and begins_there) else CLIENT_ADDR
        received[at] += len(data)
        server.receive(data, at)
        if is_first and begins_there:
            client.quic._loss.reschedule_data(now=pair.loop.time())
            client.touch()

    def down(data: bytes, addr: Any) -> None:
        sent[addr] += len(data)
        if addr == CLIENT_ADDR:
            original(data, addr)

    def ask(_: object) -> None:
        pair.open(Recorder).transport.write(b"x")

    pair.up.deliver, server._send, client.on_ready = up, down, ask
    client.connect(SERVER_ADDR)
    pair.run(0.5)
    assert client.quic._handshake_complete
    assert sent[OTHER_HOST] <= 3 * received[OTHER_HOST]
    # It could be anywhere, so nothing that it has asked for has begun.
    assert pair.server.said == ["lost", "closed"]
    assert not pair.server.accepted


def test_a_client_that_cannot_stay_during_its_handshake_comes_through() -> None:
    pair = Pair(accept=Echo)
    server, client = pair.server.driver, pair.client.driver
    original = server._send

    def at() -> Any:
        return OTHER_PORT if client.quic._handshake_complete else CLIENT_ADDR

    pair.up.deliver = lambda data: server.receive(data, at())
    server._send = lambda data, addr: original(data, addr) if addr == at() else None
    # So long that the client answers the first part of it before it has the last.
    chain = server.quic._configuration.certificate_chain
    chain += [server.quic._configuration.certificate] * 3
    pair.down.drop = lambda data: pair.down.sent == 2
    pair.connect()
    assert server.quic.proved_address == CLIENT_ADDR
    stream = pair.open(Recorder)
    stream.transport.write(b"x")
    pair.until(lambda: stream.data == b"x")
    pair.run(3.0)
    assert [(path.addr, path.is_validated) for path in server.quic._network_paths] == [(OTHER_PORT, True)]


def test_a_handshake_may_come_by_several_sockets_of_ours() -> None:
    pair = Pair(accept=Echo)
    server, client = pair.server.driver, pair.client.driver
    one, other = (UdpPath(CLIENT_ADDR, cast("Any", object())) for _ in range(2))
    assert one != other
    pair.up.deliver = lambda data: server.receive(data, other if client.quic._handshake_complete else one)
    pair.connect()
    stream = pair.open(Recorder)
    stream.transport.write(b"x")
    pair.until(lambda: stream.data == b"x")


def test_a_session_is_where_its_client_is_for_certain() -> None:
    """What it does counts against an address, so it may choose none."""
    network = Network()
    network.pair.run(1.0)
    network.at = OTHER_HOST
    network.pair.open(Recorder).transport.write(b"x")
    network.pair.until(lambda: bool(network.pair.server.accepted))
    session = network.pair.server.accepted[0].transport
    assert network.server.get_peer_address() == OTHER_HOST
    assert session.get_extra_info("peername") == CLIENT_ADDR
    network.pair.run(1.0)
    assert session.get_extra_info("peername") == OTHER_HOST


def test_a_path_that_is_twenty_times_as_long_has_the_time_to_answer() -> None:
    network = Network()
    stream = network.transfer(50_000)
    network.finish(stream, 50_000)
    network.at = OTHER_HOST
    network.pair.up.delay = network.pair.down.delay = 0.3
    stream = network.transfer(50_000)
    network.finish(stream, 50_000)
    assert (network.server.get_peer_address(), network.server.moves) == (OTHER_HOST, 1)


def test_who_is_not_at_the_other_address_has_not_moved() -> None:
    network = Network()
    network.pair.run(1.0)
    network.at = OTHER_HOST
    network.client.send_ping(1)
    network.pair.client.driver.touch()
    network.pair.until(lambda: network.server.get_peer_address() == OTHER_HOST)
    network.pair.up.drop = network.pair.down.drop = lambda data: True
    network.pair.run(4.0)
    assert (network.server.get_peer_address(), network.server.moves) == (CLIENT_ADDR, 0)


@pytest.mark.parametrize("changes_id", [False, True])
def test_the_path_that_was_left_is_asked_too_unless_the_id_has_changed(changes_id: bool) -> None:
    network = Network()
    network.pair.run(1.0)
    network.at = OTHER_HOST
    if changes_id:
        network.client.change_connection_id()
    network.client.send_ping(1)
    network.pair.client.driver.touch()
    network.to.clear()
    network.pair.run(0.02)
    asked = [size for size, addr in network.to if addr == CLIENT_ADDR]
    assert asked == ([] if changes_id else [BASE])


def test_who_forwards_a_copy_does_not_keep_the_connection() -> None:
    """Section 9.3.3: somebody on the way sends a packet on, from his own address, and it comes first."""
    network = Network()
    network.old_is_there = True
    server = network.pair.server.driver
    stream = network.pair.open(Recorder)

    def copied(data: bytes) -> None:
        server.receive(data, OTHER_HOST)
        network.pair.up.deliver = up
        network.pair.loop.call_later(0.001, server.receive, data, CLIENT_ADDR)

    def up(data: bytes) -> None:
        server.receive(data, CLIENT_ADDR)

    network.pair.up.deliver = copied
    stream.transport.write(b"x" * 20)
    network.pair.until(lambda: network.server.get_peer_address() == OTHER_HOST)
    window = network.server._loss.congestion_window
    network.pair.run(0.5)
    assert network.server.get_peer_address() == CLIENT_ADDR
    assert stream.data == b"x" * 20
    assert network.server._loss.congestion_window >= window


def test_a_small_challenge_is_followed_by_one_that_fills_a_datagram() -> None:
    network = Network()
    network.pair.run(1.0)
    network.at = OTHER_PORT
    network.client.send_ping(1)
    network.pair.client.driver.touch()
    network.to.clear()
    network.pair.until(lambda: network.server.moves == 1)
    network.pair.run(0.1)
    sizes = [size for size, addr in network.to if addr == OTHER_PORT]
    assert sizes[0] < BASE
    assert BASE in sizes
    assert len(sizes) <= 4


# -- the client's side


class Sockets:
    """A client that can send from either of two addresses, as by two sockets."""

    def __init__(self, *, host: str = CLIENT_ADDR[0]) -> None:
        self.pair = Pair(accept=Echo)
        self.old, self.new = Socket(SERVER_ADDR, CLIENT_ADDR[0]), Socket(SERVER_ADDR, host)
        self.dead: set[Any] = set()
        client, server = self.pair.client.driver, self.pair.server.driver
        self.sent: list[tuple[Any, bytes]] = []
        self.pair.up.deliver = lambda data: None

        def send(data: bytes, addr: Any) -> None:
            source = (host, 50000) if addr is self.new else CLIENT_ADDR
            self.sent.append((source, data))
            if source not in self.dead:
                self.pair.up.send(data, lambda data: server.receive(data, source))

        def answer(data: bytes, addr: Any) -> None:
            if tuple(addr) in self.dead:
                return
            to = self.new if addr == (host, 50000) else self.old
            self.pair.down.send(data, lambda data: client.receive(data, to))

        client._send, server._send = send, answer
        client.connect(self.old)
        self.pair.run(0.5)
        self.sent.clear()


class Socket(tuple[Any, ...]):
    """The server's address, by another socket."""

    local: str

    def __new__(cls, peer: Any, local: str) -> Socket:
        self = super().__new__(cls, peer)
        self.local = local
        return self

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = tuple.__hash__


@pytest.mark.parametrize("host", [CLIENT_ADDR[0], OTHER_HOST[0]])
def test_a_client_goes_where_it_gets_an_answer(host: str) -> None:
    sockets = Sockets(host=host)
    pair = sockets.pair
    client, server = pair.client.driver.quic, pair.server.driver.quic
    stream = pair.open(Recorder)
    stream.transport.write(bytes(LARGE))
    pair.run(0.1)
    reno = client._loss._cc
    ids = client._peer_cid.cid
    sockets.dead.add(CLIENT_ADDR)
    pair.run(0.3)
    sockets.sent.clear()
    assert client.try_path(sockets.new, pair.loop.time())
    pair.client.driver.touch()
    pair.until(lambda: client.moves == 1)
    # By a connection id of its own, in a full datagram; by no other path was that id used.
    probe = next(data for source, data in sockets.sent if source == (host, 50000))
    assert len(probe) == BASE
    assert probe[1:9] == client._peer_cid.cid != ids
    assert not any(data[1:9] == probe[1:9] for source, data in sockets.sent if source == CLIENT_ADDR)
    pair.until(lambda: len(stream.data) == LARGE)
    assert client.get_peer_address() is sockets.new
    assert server.get_peer_address() == (host, 50000)
    assert (client._loss._cc is reno) is (host == CLIENT_ADDR[0])
    pair.run(3.0)
    assert len(client._network_paths) == len(server._network_paths) == 1
    assert client._loss.bytes_in_flight == server._loss.bytes_in_flight == 0
    # All ids are there again for the next time.
    assert len(client._peer_cid_available) == 7


def test_a_path_that_does_not_answer_is_asked_again_and_dropped() -> None:
    sockets = Sockets()
    pair = sockets.pair
    client = pair.client.driver.quic
    sockets.dead.add((CLIENT_ADDR[0], 50000))
    stream = pair.open(Recorder)
    assert client.try_path(sockets.new, pair.loop.time())
    pair.client.driver.touch()
    pair.run(2.0)
    assert sum(source != CLIENT_ADDR for source, _ in sockets.sent) == 4
    # Meanwhile all goes on as ever, and losses by the other path are nothing to congestion control.
    stream.transport.write(b"x" * 50_000)
    pair.until(lambda: len(stream.data) == 50_000)
    assert client._reno.lost == 0
    client.drop_path()
    pair.client.driver.touch()
    pair.run(3.0)
    assert (client.moves, len(client._network_paths)) == (0, 1)
    assert len(client._peer_cid_available) == 7
    assert len(pair.server.driver.quic._network_paths) == 1


def test_a_lost_challenge_is_sent_again() -> None:
    sockets = Sockets()
    pair = sockets.pair
    client = pair.client.driver.quic
    sockets.dead.add((CLIENT_ADDR[0], 50000))
    client.try_path(sockets.new, pair.loop.time())
    pair.client.driver.touch()
    pair.run(0.1)
    sockets.dead.clear()
    pair.run(1.0)
    assert client.moves == 1


def test_a_client_without_ids_stays_where_it_is() -> None:
    sockets = Sockets()
    client = sockets.pair.client.driver.quic
    client._peer_cid_available.clear()
    assert not client.try_path(sockets.new, sockets.pair.loop.time())
    client.drop_path()
