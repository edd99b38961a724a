"""The pacer and the window, without a connection around them."""

from __future__ import annotations

import pytest
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.tls import Epoch

from helpers.quic_pair import Echo, Pair
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.recovery import BURST_DATAGRAMS, GAIN, MOST_DATAGRAMS, SLOW_START_GAIN, BytePacer, FlooredReno

SIZE = 1200


def pacer(window: int = 40 * SIZE, rtt: float = 0.03, *, slow_start: bool = False) -> BytePacer:
    congestion = RenoCongestionControl(max_datagram_size=SIZE)
    congestion.congestion_window = window
    congestion.ssthresh = None if slow_start else window
    result = BytePacer(max_datagram_size=SIZE, congestion=congestion)
    result.update_rate(window, rtt)
    result.update_bucket(1.0)
    return result


def sent_within(pacer: BytePacer, seconds: float, size: int) -> int:
    """How many octets leave, each packet as soon as it may."""
    now, end, octets = 1.0, 1.0 + seconds, 0
    while now < end:
        at = pacer.next_send_time(now)
        if at is None:
            pacer.charge(size)
            octets += size
        else:
            assert at > now
            now = at
    return octets


def test_nothing_is_paced_before_the_first_round_trip() -> None:
    fresh = BytePacer(max_datagram_size=SIZE, congestion=RenoCongestionControl(max_datagram_size=SIZE))
    for _ in range(1000):
        fresh.charge(SIZE)
        assert fresh.next_send_time(1.0) is None


@pytest.mark.parametrize("size", [80, 400, SIZE])
def test_the_rate_is_of_bytes_whatever_the_packets_are(size: int) -> None:
    octets = sent_within(pacer(), 1.0, size)
    assert octets == pytest.approx(GAIN * 40 * SIZE / 0.03, rel=0.05)


def test_slow_start_is_paced_at_twice_the_window() -> None:
    octets = sent_within(pacer(slow_start=True), 1.0, SIZE)
    assert octets == pytest.approx(SLOW_START_GAIN * 40 * SIZE / 0.03, rel=0.05)


def test_a_burst_is_the_initial_window() -> None:
    bucket = pacer()
    count = 0
    while bucket.next_send_time(1.0) is None:
        bucket.charge(SIZE)
        count += 1
    assert count == BURST_DATAGRAMS


def test_a_fast_path_is_not_capped_by_the_timers_of_the_loop() -> None:
    bucket = pacer(window=1_000_000)
    octets = 0
    for millisecond in range(1000):  # one wake-up in each
        while bucket.next_send_time(1.0 + millisecond / 1000) is None:
            bucket.charge(SIZE)
            octets += SIZE
    assert octets == pytest.approx(GAIN * 1_000_000 / 0.03, rel=0.05)


def test_one_call_is_bounded_however_wide_the_window_is() -> None:
    bucket = pacer(window=1 << 30, rtt=0.0001)
    count = 0
    while bucket.next_send_time(1.0) is None:
        bucket.charge(SIZE)
        count += 1
    assert count == MOST_DATAGRAMS


def test_a_small_packet_costs_a_full_one_while_the_window_is_the_limit() -> None:
    bucket = pacer()
    bucket._congestion.bytes_in_flight = 30 * SIZE
    octets = sent_within(bucket, 1.0, 120)
    assert octets == pytest.approx(GAIN * 40 * SIZE / 0.03 / 10, rel=0.05)


def lost(when: float) -> QuicSentPacket:
    return QuicSentPacket(Epoch.ONE_RTT, True, True, False, 0, QuicPacketType.ONE_RTT, when, SIZE)


def test_losses_halve_the_window_down_to_the_floor() -> None:
    congestion = FlooredReno(max_datagram_size=SIZE, floor=8)
    congestion.congestion_window = 40 * SIZE
    windows = []
    for event in range(4):
        congestion.on_packets_lost(now=event + 1.5, packets=[lost(event + 1.0)])
        windows.append(congestion.congestion_window // SIZE)
    assert windows == [20, 10, 8, 8]
    congestion.on_persistent_congestion()
    assert congestion.congestion_window == 8 * SIZE


def test_no_floor_is_rfc_9002() -> None:
    ours, plain = FlooredReno(max_datagram_size=SIZE, floor=0), RenoCongestionControl(max_datagram_size=SIZE)
    for congestion in (ours, plain):
        for event in range(6):
            congestion.on_packets_lost(now=event + 1.5, packets=[lost(event + 1.0)])
        congestion.on_persistent_congestion()
    assert ours.congestion_window == plain.congestion_window == 2 * SIZE


@pytest.mark.parametrize("floor", [0, 8])
def test_the_floor_is_an_option_of_the_limits(floor: int) -> None:
    pair = Pair(server=QuicLimits(congestion_floor=floor, redundancy="off"), loss=0.2, accept=Echo).connect()
    near = pair.open()
    near.transport.write(bytes(200_000))
    windows: list[int] = []

    def done() -> bool:
        windows.append(pair.server.driver.quic._loss.congestion_window // SIZE)
        return len(near.data) == 200_000

    pair.until(done, 300)
    assert min(windows) >= 8 if floor else 2 <= min(windows) < 8
