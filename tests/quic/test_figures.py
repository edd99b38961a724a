"""What a connection tells of itself, over a simulated link."""

from __future__ import annotations

import pytest

from helpers.quic_pair import CLIENT_ADDR, Pair, Recorder


def test_what_is_sent_here_is_received_there() -> None:
    pair = Pair(accept=Recorder).connect()
    stream = pair.open()
    stream.transport.write(b"x" * 100_000)
    pair.run(5)
    ours, theirs = pair.client.driver.figures(), pair.server.driver.figures()
    assert ours.sent == theirs.received > 100_000
    assert theirs.sent == ours.received > 0
    assert ours.packets_lost == theirs.packets_lost == 0
    assert ours.packets_sent > 80
    assert ours.bytes_in_flight == 0
    assert theirs.peername == CLIENT_ADDR


def test_the_round_trip_is_the_links() -> None:
    pair = Pair().connect()
    pair.run(1)
    assert pair.client.driver.figures().rtt == pytest.approx(0.03, abs=0.01)
    assert pair.server.driver.figures().age == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("delay", [0.0001, 0.0004, 0.002])
def test_the_least_round_trip_is_not_above_the_mean_on_one_machine(delay: float) -> None:
    pair = Pair(delay=delay).connect()
    for _ in range(20):
        figures = pair.client.driver.figures()
        assert 0 < figures.rtt_min <= figures.rtt
        pair.open().transport.write(b"x")
        pair.run(0.05)


def test_what_the_session_does_not_read_is_held() -> None:
    pair = Pair(accept=Recorder).connect()
    stream = pair.open()
    stream.transport.write(b"x")
    pair.run(1)
    (session,) = pair.server.accepted
    session.transport.pause_reading()
    stream.transport.write(b"x" * 1000)
    pair.run(1)
    assert pair.server.driver.figures().held == session.transport.unread == 1000
    session.transport.resume_reading()
    pair.run(1)
    assert pair.server.driver.figures().held == session.transport.unread == 0


def test_what_is_lost_is_counted() -> None:
    pair = Pair().connect()
    stream = pair.open()
    dropped = iter([True])
    pair.up.drop = lambda data: next(dropped, False)
    stream.transport.write(b"x" * 50_000)
    pair.run(5)
    figures = pair.client.driver.figures()
    assert figures.packets_lost == 1
    assert figures.congestion_window > 0


def test_each_connection_has_a_number_of_its_own() -> None:
    pair = Pair()
    assert pair.client.driver.id != pair.server.driver.id
