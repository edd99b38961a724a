"""Datagrams that grow as far as the path carries them, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.quic_pair import Echo, Pair, Recorder
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.pmtu import BASE, PAUSE, State

if TYPE_CHECKING:
    from pgtrunk.quic.connection import Connection

LARGE = 400_000


class Wire:
    """A pair over a path that carries datagrams up to ``carries`` octets, and what left on it."""

    def __init__(self, carries: int = 1500, *, client: Any = None, server: Any = None, **link: Any) -> None:
        self.carries = carries
        self.lost_large = 0
        self.pair = Pair(
            client=QuicLimits(max_streams=0, **(client or {})),
            server=QuicLimits(**(server or {})),
            accept=Echo,
            drop=self._drops,
            **link,
        )
        self.sizes: list[int] = []
        self.pair.connect()
        self.pair.run(0.5)
        self.sizes.clear()

    def _drops(self, data: bytes) -> bool:
        self.sizes.append(len(data))
        self.lost_large += len(data) > self.carries
        return len(data) > self.carries

    @property
    def ends(self) -> list[Connection]:
        return [self.pair.client.driver.quic, self.pair.server.driver.quic]

    def echo(self, size: int = LARGE, limit: float = 60.0) -> float:
        """Send so much there and back; return how long it took."""
        begun = self.pair.loop.time()
        stream = self.pair.open(Recorder)
        stream.transport.write(bytes(range(256)) * (size // 256))
        self.pair.until(lambda: len(stream.data) == size // 256 * 256, limit)
        assert bytes(stream.data) == bytes(range(256)) * (size // 256)
        stream.transport.close()
        return self.pair.loop.time() - begun


def test_both_ends_grow_when_there_is_much_to_send() -> None:
    wire = Wire()
    wire.echo()
    assert [end.search.size for end in wire.ends] == [1472, 1472]
    assert [end._max_datagram_size for end in wire.ends] == [1472, 1472]
    wire.sizes.clear()
    wire.echo()
    assert wire.sizes.count(1472) > LARGE // 1472
    assert max(wire.sizes) == 1472


def test_small_messages_are_worth_no_probe() -> None:
    wire = Wire()
    stream = wire.pair.open(Recorder)
    for _ in range(50):
        stream.transport.write(b"q" * 500)
        wire.pair.run(0.05)
    assert max(wire.sizes) < BASE
    assert [end.search.state for end in wire.ends] == [State.BASE, State.BASE]


def test_it_can_be_switched_off_at_either_end() -> None:
    wire = Wire(client={"path_mtu": "off"})
    wire.echo()
    client, server = wire.ends
    assert (client.search.size, server.search.size) == (BASE, 1472)
    wire = Wire(server={"path_mtu": "off"})
    wire.echo()
    client, server = wire.ends
    assert (client.search.size, server.search.size) == (1472, BASE)


@pytest.mark.parametrize(("carries", "found"), [(1200, 1200), (1232, 1200), (1252, 1252), (1400, 1392), (1471, 1464)])
def test_a_path_that_silently_drops_what_is_larger(carries: int, found: int) -> None:
    wire = Wire(carries)
    usual = Wire(client={"path_mtu": "off"}, server={"path_mtu": "off"}).echo(4 * LARGE)
    took = wire.echo(4 * LARGE)
    wire.pair.run(10.0)
    assert [end.search.size for end in wire.ends] == [found, found]
    # Only probes were lost, and congestion control has not heard of any.
    assert wire.lost_large <= 2 * 15
    assert [end._reno.lost for end in wire.ends] == [0, 0]
    assert took < 1.2 * usual
    assert not wire.pair.loop.failures


def test_jumbo_frames_where_they_are_allowed() -> None:
    limits = {"max_datagram_size": 8972}
    wire = Wire(9000, client=limits, server=limits)
    wire.echo(4 * LARGE)
    assert [end.search.size for end in wire.ends] == [8972, 8972]


def test_what_the_peer_says_it_takes_is_kept_to() -> None:
    pair = Pair(accept=Echo)
    # As if the server had sent it as max_udp_payload_size.
    pair.client.driver.quic._remote_max_datagram = 1300
    pair.connect()
    stream = pair.open(Recorder)
    stream.transport.write(bytes(LARGE))
    pair.until(lambda: len(stream.data) == LARGE)
    assert pair.client.driver.quic.search.size == 1300


def test_a_path_that_becomes_narrower_in_the_middle_of_a_transfer() -> None:
    wire = Wire()
    usual = wire.echo(4 * LARGE)
    assert [end.search.size for end in wire.ends] == [1472, 1472]
    begun = wire.pair.loop.time()
    stream = wire.pair.open(Recorder)
    stream.transport.write(bytes(4 * LARGE))
    wire.pair.until(lambda: len(stream.data) > LARGE)
    wire.carries = 1232
    wire.pair.until(lambda: len(stream.data) == 4 * LARGE)
    # Some probe timeouts; nothing near the idle timeout of 10 s.
    assert wire.pair.loop.time() - begun < usual + 4.0
    assert [end.search.size for end in wire.ends] == [BASE, BASE]
    wire.carries = 1500
    wire.pair.run(PAUSE)
    wire.echo()
    assert [end.search.size for end in wire.ends] == [1472, 1472]


def test_a_narrower_path_shows_by_large_answers_between_small_ones() -> None:
    """Small packets and their acknowledgements pass all the time: there is no probe timeout to show it."""
    wire = Wire()
    wire.echo()
    wire.carries = 1232
    talker = wire.pair.open(Recorder)
    stream = wire.pair.open(Recorder)
    stream.transport.write(bytes(20_000))
    for _ in range(400):
        talker.transport.write(b"q" * 40)
        wire.pair.run(0.01)
        if len(stream.data) == 20_000:
            break
    assert len(stream.data) == 20_000


def test_losses_alone_are_no_black_hole() -> None:
    wire = Wire(loss=0.02)
    for _ in range(5):
        wire.echo()
    assert [end.search.size for end in wire.ends] == [1472, 1472]


def test_a_blackout_costs_the_size_at_most_and_no_session() -> None:
    wire = Wire()
    wire.echo()
    stream = wire.pair.open(Recorder)
    stream.transport.write(bytes(4 * LARGE))
    wire.pair.run(0.1)
    carries, wire.carries = wire.carries, 0
    wire.pair.run(5.0)
    wire.carries = carries
    wire.pair.until(lambda: len(stream.data) == 4 * LARGE)
    wire.pair.run(PAUSE)
    wire.echo()
    assert [end.search.size for end in wire.ends] == [1472, 1472]


def test_an_interface_that_refuses_large_datagrams() -> None:
    wire = Wire()
    client = wire.pair.client.driver
    mtu = 1400
    original = client._send

    def send(data: bytes, addr: Any) -> None:
        if len(data) > mtu:
            client.quic.datagram_refused(len(data))
        else:
            original(data, addr)

    client._send = send
    wire.echo()
    wire.pair.run(1.0)
    assert client.quic.search.size == 1392
    assert client.quic._reno.lost == 0
    # It becomes narrower still: what is under way is sent again at once.
    mtu = 1300
    wire.echo()
    wire.pair.run(1.0)
    assert client.quic.search.size == 1292


def test_kernels_that_may_fragment_prove_nothing() -> None:
    pair = Pair(accept=Echo)
    pair.client.driver.quic.proves_sizes = False
    pair.connect()
    stream = pair.open(Recorder)
    stream.transport.write(bytes(LARGE))
    pair.until(lambda: len(stream.data) == LARGE)
    assert pair.client.driver.quic.search.state is State.OFF


def test_a_probe_is_no_packet_in_flight_and_sets_no_probe_timeout() -> None:
    wire = Wire(1232)
    wire.echo()
    wire.pair.run(0.05)
    client = wire.ends[0]
    if client.search.at < float("inf"):
        assert client._loss.bytes_in_flight == 0
    count = client._loss._pto_count
    wire.pair.run(5.0)
    assert client._loss._pto_count == count == 0
    assert client._app_space.ack_eliciting_in_flight == 0
    assert client._chores_at == float("inf")
