"""The driver: one connection from its first datagram to the end of its draining period, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from aioquic.quic.connection import QuicConnectionState
from aioquic.quic.packet import QuicPacketType
from aioquic.tls import Epoch

from helpers.quic_pair import CLIENT_ADDR, SERVER_ADDR, Echo, Pair, Recorder, sessions_of
from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost
from pgtrunk.quic.config import QuicLimits


@pytest.fixture
def pair() -> Pair:
    return Pair().connect()


# -- opening


def test_handshake_takes_one_round_trip_for_the_client(pair: Pair) -> None:
    fresh = Pair()
    start = fresh.loop.time()
    fresh.client.driver.connect(SERVER_ADDR)
    assert not fresh.client.driver.is_ready
    fresh.until(lambda: fresh.client.driver.is_ready)
    assert fresh.loop.time() - start == pytest.approx(0.03, abs=0.002)


def test_nothing_can_be_opened_before_the_handshake() -> None:
    fresh = Pair()
    assert fresh.client.driver.stream_credit == 0
    with pytest.raises(SessionLost, match="not open"):
        fresh.open()


def test_a_handshake_that_is_not_answered_ends_at_its_deadline() -> None:
    pair = Pair(client=QuicLimits(max_streams=0, handshake_timeout=3.0))
    pair.up.drop = lambda data: True
    pair.client.driver.connect(SERVER_ADDR)
    start = pair.loop.time()
    pair.until(lambda: "lost" in pair.client.said)
    assert pair.loop.time() - start == pytest.approx(3.0, abs=0.01)
    assert isinstance(pair.client.driver.error, GatewayUnreachable)
    assert "handshake_timeout" in str(pair.client.driver.error)
    pair.run(10)
    assert pair.client.said == ["lost", "closed"]
    assert pair.loop.timers == 0


def test_a_server_gives_up_on_a_client_that_goes_silent_in_the_handshake() -> None:
    pair = Pair(server=QuicLimits(handshake_timeout=2.0))
    pair.down.drop = lambda data: True
    pair.client.driver.connect(SERVER_ADDR)
    pair.run(0.1)
    pair.up.drop = lambda data: True
    pair.run(30)
    assert pair.server.said == ["lost", "closed"]
    assert pair.loop.timers == 0


def test_a_certificate_that_is_not_trusted_is_named_as_such() -> None:
    pair = Pair()
    pair.client.driver.quic.configuration.server_name = "elsewhere.example"
    pair.client.driver.connect(SERVER_ADDR)
    pair.run(1)
    error = pair.client.driver.error
    assert isinstance(error, CertificateError)
    assert "refused the certificate of 192.0.2.2:6432" in str(error)
    assert "elsewhere.example" in str(error)
    assert pair.server.said[0] == "lost"


def test_callbacks_come_in_order(pair: Pair) -> None:
    pair.close()
    assert pair.client.said == ["ready", "credit", "lost", "closed"]
    assert pair.server.said == ["ready", "lost", "closed"]


# -- flushing


def test_one_flush_per_tick_however_much_happens(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    quic = pair.client.driver.quic
    plain = quic.datagrams_to_send

    def counted(now: float) -> Any:
        nonlocal calls
        calls += 1
        return plain(now)

    monkeypatch.setattr(quic, "datagrams_to_send", counted)
    for _ in range(10):
        protocol = pair.open()
        for _ in range(10):
            protocol.transport.write(b"x")
    pair.loop.tick(pair.loop.time())
    assert calls == 1


# -- streams


def test_streams_opened_implicitly_are_announced_in_order(pair: Pair) -> None:
    first, second, third = pair.open(), pair.open(), pair.open()
    third.transport.write(b"only this one says anything")
    pair.until(lambda: len(pair.server.accepted) == 3)
    ids = [each.transport.get_extra_info("stream_id") for each in pair.server.accepted]
    assert ids == [0, 4, 8]
    assert [each.calls for each in pair.server.accepted] == [["made"]] * 3
    pair.server.accepted[0].transport.write(b"and can be answered")
    pair.until(lambda: first.data == b"and can be answered")
    assert second.data == b""


def test_unidirectional_streams_other_than_for_control_are_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a limit of one, which this client does not care for."""
    quic: Any = pair.client.driver.quic

    def write_foreign(builder: Any, path: Any, now: float) -> None:
        monkeypatch.undo()
        builder.start_packet(QuicPacketType.ONE_RTT, quic._cryptos[Epoch.ONE_RTT])
        buf = builder.start_frame(0x0A, 10)
        buf.push_uint_var(6)
        buf.push_uint16(1 | 0x4000)
        buf.push_bytes(b"x")

    monkeypatch.setattr(quic, "_write_application", write_foreign)
    quic.send_ping(0)
    pair.client.driver.flush()
    pair.until(lambda: "lost" in pair.client.said, 1.0)
    assert "STREAM_LIMIT_ERROR" in str(pair.client.driver.error)
    assert pair.server.accepted == []


def test_a_client_accepts_no_streams(pair: Pair) -> None:
    assert pair.server.driver.stream_credit == 0
    with pytest.raises(SessionLost, match="allows no more"):
        pair.server.driver.open_stream(Recorder)


def test_credit_comes_back_when_streams_close() -> None:
    pair = Pair(server=QuicLimits(max_streams=4)).connect()
    driver = pair.client.driver
    assert driver.stream_credit == 4
    near = [pair.open() for _ in range(4)]
    assert driver.stream_credit == 0
    with pytest.raises(SessionLost, match="allows no more"):
        pair.open()
    pair.run(0.1)
    assert driver.stream_credit == 0
    said = pair.client.said.count("credit")
    near[1].transport.write(b"x")
    near[1].transport.close()
    pair.until(lambda: driver.stream_credit == 1, 1.0)
    assert pair.client.said.count("credit") == said + 1
    pair.open()


def test_a_slot_is_given_back_only_when_the_far_protocol_is_gone(pair: Pair) -> None:
    """Or a client could have more sessions than streams, one after another, with a byte unread in each."""
    pair = Pair(server=QuicLimits(max_streams=2)).connect()
    near = pair.open()
    pair.open()
    near.transport.write(b"x")
    pair.run(0.1)
    there = pair.server.accepted[0]
    there.keep_open = True
    there.transport.pause_reading()
    near.transport.abort()
    near.transport.close()
    pair.until(lambda: there.lost != [])
    pair.until(lambda: pair.client.driver.stream_credit == 1)


def test_churn_leaves_nothing(pair: Pair) -> None:
    pair = Pair(accept=Echo, server=QuicLimits(max_streams=16)).connect()
    for _ in range(300):
        protocol = pair.open()
        protocol.transport.write(b"hello")
        protocol.transport.write_eof()
        pair.until(lambda protocol=protocol: protocol.lost != [])  # type: ignore[misc]
        assert protocol.data == b"hello"
    pair.run(1)
    for end in (pair.client, pair.server):
        quic = end.driver.quic
        assert not (sessions_of(quic) or quic._ready or quic._indebted or quic._starved or quic.writable)
        assert not end.driver.streams
        assert quic.credit._widened == 0
    assert pair.client.driver.stream_credit >= 8


# -- silence


def test_the_client_pings_only_while_it_has_streams_and_hears_nothing(pair: Pair) -> None:
    pair.run(0.2)
    before = pair.up.sent
    pair.run(5.0)
    assert pair.up.sent == before  # no streams, no PINGs
    pair = Pair().connect()
    pair.open().transport.write(b"x")
    pair.run(60)
    assert pair.client.driver.is_ready
    assert pair.server.driver.is_ready
    assert 29 <= pair.up.sent - before <= 42  # 60 s in steps of 2


def test_a_busy_connection_sends_no_pings() -> None:
    pair = Pair(accept=Echo).connect()
    protocol = pair.open()
    for _ in range(40):
        protocol.transport.write(b"x")
        pair.run(0.5)
    keepalive = pair.client.driver.keepalive
    assert keepalive is not None
    assert keepalive.pings == 0


def test_a_connection_without_streams_ends_in_peace_after_the_idle_timeout(pair: Pair) -> None:
    start = pair.loop.time()
    pair.until(lambda: "closed" in pair.client.said and "closed" in pair.server.said)
    assert pair.loop.time() - start == pytest.approx(10.0, abs=0.2)
    assert "idle_timeout" in str(pair.client.driver.error)
    assert pair.loop.timers == 0


def test_a_killed_client_is_noticed_after_the_idle_timeout(pair: Pair) -> None:
    pair.open().transport.write(b"BEGIN")
    pair.until(lambda: pair.server.accepted != [])
    pair.run(1.0)
    heard = pair.server.driver.quic.heard_at
    pair.up.drop = lambda data: True
    pair.until(lambda: pair.server.accepted[0].lost != [])
    assert pair.loop.time() - heard == pytest.approx(10.0, abs=0.2)
    assert "idle_timeout" in str(pair.server.accepted[0].lost[0])


def test_acknowledgements_of_a_silent_connection_do_not_pile_up(pair: Pair) -> None:
    pair.open().transport.write(b"x")
    pair.run(3600)
    for end in (pair.client, pair.server):
        assert end.driver.is_ready
        assert len(end.driver.quic._loss.spaces[2].sent_packets) <= 40
        assert len(end.driver.quic._loss.spaces[2].ack_queue) <= 4


# -- the end


def test_close_sends_what_streams_have_written(pair: Pair) -> None:
    protocol = pair.open()
    protocol.transport.write(b"goodbye")
    pair.client.driver.close(reason="done")
    pair.run(0.1)
    assert pair.server.accepted[0].data == b"goodbye"
    assert "the other end closed it: done" in str(pair.server.accepted[0].lost[0])


def test_a_lost_close_is_repeated_to_whoever_still_sends(pair: Pair) -> None:
    protocol = pair.open()
    protocol.transport.write(b"x")
    pair.run(0.1)
    pair.down.drop = lambda data: True
    pair.server.driver.close()
    protocol.transport.write(b"are you there?")
    pair.loop.tick(pair.loop.time() + 0.001)
    pair.down.drop = lambda data: False
    pair.until(lambda: protocol.lost != [], 1.0)


def test_closing_twice_and_after_the_end_is_harmless(pair: Pair) -> None:
    pair.client.driver.close()
    pair.client.driver.close()
    pair.run(3)
    pair.client.driver.close()
    pair.client.driver.abandon(None)
    pair.client.driver.flush()
    pair.client.driver.receive(b"\x40garbage", SERVER_ADDR)
    assert pair.client.said.count("lost") == pair.client.said.count("closed") == 1
    assert pair.loop.timers == 0


def test_abandon_says_nothing(pair: Pair) -> None:
    protocol = pair.open()
    protocol.transport.write(b"x")
    pair.run(0.1)
    sent = pair.up.sent
    pair.client.driver.abandon(SessionLost("pulled the plug"))
    assert pair.client.said[-2:] == ["lost", "closed"]
    assert pair.up.sent == sent
    pair.run(0.1)
    assert str(protocol.lost[0]) == "pulled the plug"


def test_a_driver_that_never_connected_can_be_closed() -> None:
    pair = Pair()
    pair.client.driver.close()
    assert pair.client.said == ["lost", "closed"]


def test_a_peer_that_breaks_the_protocol_is_told(pair: Pair) -> None:
    pair.client.driver.quic._remote_max_streams_bidi = 5000
    stream = pair.client.driver.quic.open_stream()
    stream.stream_id = stream.sender._stream_id = 4 * 1000
    pair.client.driver.quic._streams[4000] = stream
    pair.client.driver.quic.write(stream, b"x")
    pair.client.driver.touch()
    pair.until(lambda: "lost" in pair.client.said)
    assert "STREAM_LIMIT_ERROR" in str(pair.client.driver.error)
    assert "this end closed it" in str(pair.server.driver.error)


def test_connection_ids_are_announced_to_a_demultiplexer() -> None:
    pair = Pair()
    known = set(pair.server.driver.cids)
    pair.server.driver.on_cid_issued = known.add
    retired: list[bytes] = []
    pair.server.driver.on_cid_retired = retired.append
    pair.connect()
    pair.run(0.2)
    assert len(known) == 8
    assert set(pair.server.driver.cids) == known
    pair.client.driver.quic.change_connection_id()
    pair.client.driver.touch()
    pair.run(0.2)
    assert len(retired) == 1
    assert set(pair.server.driver.cids) == known - set(retired)
    pair.open().transport.write(b"over the new id")
    pair.run(0.2)
    assert pair.server.accepted[0].data == b"over the new id"


def test_a_server_that_calls_its_client_by_another_id_is_still_taken_the_short_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(accept=Echo).connect()
    protocol = pair.open()
    protocol.transport.write(b"x")
    pair.run(0.2)
    pair.server.driver.quic.change_connection_id()
    protocol.transport.write(b"y")
    pair.run(0.2)
    short: list[bytes] = []
    plain = pair.client.driver.quic._receive_short

    def record(data: bytes, now: float) -> None:
        short.append(data[1:9])
        plain(data, now)

    monkeypatch.setattr(pair.client.driver.quic, "_receive_short", record)
    for _ in range(5):
        protocol.transport.write(b"z")
        pair.run(0.2)
    assert protocol.data == b"xyzzzzz"
    assert set(short) == {pair.server.driver.quic._peer_cid.cid}
    assert len(short) >= 5


def test_connection_ids_and_reset_tokens_are_made_by_the_callables_given() -> None:
    pair = Pair()
    quic = pair.server.driver.quic
    quic._new_cid = iter([bytes([n]) * 8 for n in range(20)]).__next__
    quic._reset_token = lambda cid: cid * 2
    pair.connect()
    assert [each.stateless_reset_token for each in quic._host_cids[1:]] == [
        each.cid * 2 for each in quic._host_cids[1:]
    ]
    assert quic._host_cids[1].cid == bytes(8)


def test_a_client_that_moves_keeps_its_streams(pair: Pair) -> None:
    """A NAT forgets the port: the gateway validates the new address and goes on there."""
    pair = Pair(accept=Echo).connect()
    protocol = pair.open()
    protocol.transport.write(b"before")
    pair.until(lambda: protocol.data == b"before")
    moved = ("198.51.100.7", 999)
    pair.up.deliver = lambda data: pair.server.driver.receive(data, moved)
    for _ in range(20):
        protocol.transport.write(b"x" * 300)
        pair.run(0.02)
    pair.until(lambda: len(protocol.data) == 6006)
    assert pair.server.driver.peername == moved
    assert pair.server.driver.quic._network_paths[0].is_validated
    protocol.transport.write(bytes(500_000))
    pair.until(lambda: len(protocol.data) == 506_006)


def test_garbage_harms_nobody(pair: Pair) -> None:
    import random

    rng = random.Random(5)
    seen: list[bytes] = []
    pair.up.drop = lambda data: seen.append(data) is not None  # type: ignore[func-returns-value]
    protocol = pair.open()
    protocol.transport.write(bytes(20_000))
    pair.run(0.5)
    for _ in range(3000):
        data = bytearray(rng.choice(seen))
        for _ in range(rng.choice((0, 1, 3))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        pair.server.driver.receive(bytes(data[: rng.randrange(len(data) + 1)]), CLIENT_ADDR)
        pair.server.driver.receive(rng.randbytes(rng.randrange(60)), CLIENT_ADDR)
    pair.run(0.5)
    protocol.transport.write(b"still here")
    pair.until(lambda: pair.server.accepted[0].data == bytes(20_000) + b"still here")
    assert pair.server.driver.quic._state is QuicConnectionState.CONNECTED


def test_repr(pair: Pair) -> None:
    protocol = pair.open()
    assert repr(pair.client.driver) == "<ConnectionDriver 192.0.2.2:6432 open [1 streams]>"
    # Those of control are streams of the connection, but not of its driver.
    assert repr(pair.client.driver.quic) == "<Connection client [3 streams, 0 bytes held]>"
    pair.close()
    assert repr(pair.client.driver) == "<ConnectionDriver 192.0.2.2:6432 closed [0 streams]>"
    assert repr(Pair().client.driver) == "<ConnectionDriver None opening [0 streams]>"
    assert protocol.lost != []
