"""Acknowledgements: they ride, they wait no longer than advertised, and they hurry where that helps the peer."""

from __future__ import annotations

import pytest

from helpers.quic_pair import Echo, Pair, Recorder
from pgtrunk.quic.acks import ACK_EVERY
from pgtrunk.quic.config import QuicLimits


@pytest.mark.parametrize(("delay", "advertised"), [(0.004, 5), (0.0, 1), (0.0201, 22), (0.1, 101)])
def test_each_end_advertises_its_own_delay_and_honours_the_others(delay: float, advertised: int) -> None:
    pair = Pair(server=QuicLimits(ack_delay=delay), client=QuicLimits(max_streams=0, ack_delay=0.002)).connect()
    assert pair.client.driver.quic._loss.max_ack_delay == pytest.approx(advertised / 1000)
    assert pair.server.driver.quic._loss.max_ack_delay == pytest.approx(0.003)


def test_transport_parameters_survive_the_correction() -> None:
    pair = Pair(server=QuicLimits(max_streams=77, idle_timeout=4.5)).connect()
    quic, limits = pair.client.driver.quic, pair.server.driver.quic.limits
    assert quic._remote_max_streams_bidi == 77
    assert quic._remote_max_streams_uni == 1
    assert quic._remote_max_idle_timeout == 4.5
    assert quic._remote_max_stream_data_bidi_remote == limits.initial_window
    assert quic._remote_max_stream_data_uni == limits.initial_window
    assert quic._remote_ack_delay_exponent == 3
    assert quic._remote_active_connection_id_limit == 8


def test_a_question_and_its_answer_take_one_packet_each_way() -> None:
    """Plus one ACK for the last answer: it has nothing to ride on."""
    pair = Pair(accept=Echo).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.until(lambda: near.data == b"x")
    pair.run(0.2)
    up, down = pair.up.sent, pair.down.sent
    for count in range(2, 52):
        near.transport.write(b"x")
        pair.until(lambda count=count: len(near.data) == count)  # type: ignore[misc]
    pair.run(0.2)
    assert (pair.up.sent - up, pair.down.sent - down) == (51, 50)


def test_an_ack_alone_waits_for_the_delay() -> None:
    pair = Pair(accept=Recorder).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.run(0.2)
    start = pair.loop.time()
    near.transport.write(b"y")
    pair.until(lambda: near.transport.get_write_buffer_size() == 0)
    assert pair.loop.time() - start == pytest.approx(0.030 + 0.006, abs=0.001)


def test_a_gap_is_reported_at_once() -> None:
    pair = Pair(accept=Recorder).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.run(0.2)
    pair.up.drop = lambda data: True
    near.transport.write(b"lost")
    pair.loop.tick(pair.loop.time())
    pair.up.drop = lambda data: False
    near.transport.write(b"seen")
    sent = pair.down.sent
    pair.loop.tick(pair.loop.time())
    pair.run(0.0155)
    assert pair.down.sent == sent + 1


def test_many_packets_are_acknowledged_before_the_delay_is_over() -> None:
    pair = Pair(accept=Recorder, server=QuicLimits(ack_delay=0.5)).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.run(1.0)
    sent = pair.down.sent
    for _ in range(ACK_EVERY - 1):
        near.transport.write(b"x")
        pair.run(0.001)
    pair.run(0.02)
    assert pair.down.sent == sent
    near.transport.write(b"x")
    pair.run(0.02)
    assert pair.down.sent == sent + 1


def test_a_lost_last_packet_costs_little_more_than_the_round_trips() -> None:
    """The probe timeout counts the peer's true delay, not 25 ms."""
    pair = Pair(accept=Echo).connect()
    near = pair.open()
    for count in range(1, 21):
        near.transport.write(b"x")
        pair.until(lambda count=count: len(near.data) == count)  # type: ignore[misc]
    start = pair.loop.time()
    pair.up.drop = lambda data: True
    near.transport.write(b"y")
    pair.loop.tick(start)
    pair.up.drop = lambda data: False
    pair.until(lambda: len(near.data) == 21)
    assert pair.loop.time() - start < 0.080
