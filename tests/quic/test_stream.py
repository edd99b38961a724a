"""The halves of a stream: bytes in order, whatever the network does to frames."""

from __future__ import annotations

import random

import pytest
from aioquic.quic.packet import QuicErrorCode
from aioquic.quic.stream import FinalSizeError

from pgtrunk.quic.stream import Receiver, Sender, Stream

FAR = 1 << 60


def sender(data: bytes = b"", fin: bool = False) -> Sender:
    half = Sender(0, True)
    if data or fin:
        half.write(data, fin)
    return half


def test_sender_hands_out_frames_in_order() -> None:
    half = sender(b"0123456789", fin=True)
    assert half.take(4, FAR) == (0, b"0123", False)
    assert half.take(4, FAR) == (4, b"4567", False)
    assert not half.buffer_is_empty
    assert half.take(4, FAR) == (8, b"89", True)
    assert half.buffer_is_empty
    assert half.take(4, FAR) is None


def test_fin_can_travel_alone() -> None:
    half = sender(b"abc")
    assert half.take(10, FAR) == (0, b"abc", False)
    half.write(b"", True)
    assert half.take(-1, FAR) is None
    assert half.take(0, FAR) == (3, b"", True)
    assert half.on_acked(0, 3, False) is False
    assert half.on_acked(3, 3, True) is True
    assert half.is_finished


def test_credit_stops_new_data_but_not_what_was_lost() -> None:
    half = sender(b"0123456789", fin=True)
    assert half.take(100, 6) == (0, b"012345", False)
    assert half.take(100, 6) is None
    half.on_lost(2, 4, False)
    assert half.take(100, 6) == (2, b"23", False)
    assert half.take(100, 6) is None
    assert not half.buffer_is_empty
    assert half.take(100, 10) == (6, b"6789", True)


def test_lost_ranges_are_joined_and_go_first() -> None:
    half = sender(bytes(range(100)))
    for _ in range(5):
        half.take(10, FAR)
    for start in (20, 0, 10):
        half.on_lost(start, start + 10, False)
    assert half.take(25, FAR) == (0, bytes(range(25)), False)
    assert half.take(25, FAR) == (25, bytes(range(25, 30)), False)
    assert half.take(25, FAR) == (50, bytes(range(50, 75)), False)


def test_a_lost_fin_is_sent_again() -> None:
    half = sender(b"ab", fin=True)
    half.take(10, FAR)
    half.on_lost(0, 2, True)
    assert half.take(10, FAR) == (0, b"ab", True)
    assert half.on_acked(0, 2, True) is True


def test_acknowledged_bytes_are_forgotten_once_those_before_them_are() -> None:
    half = sender(bytes(30))
    for _ in range(3):
        half.take(10, FAR)
    half.on_acked(10, 20, False)
    assert len(half) == 30
    half.on_acked(0, 10, False)
    assert len(half) == 10
    half.on_acked(20, 30, False)
    assert len(half) == 0


def test_reset_drops_everything() -> None:
    half = sender(bytes(30), fin=True)
    half.take(10, FAR)
    half.on_lost(0, 10, False)
    half.reset(5)
    assert (len(half), half.buffer_is_empty, half.reset_pending) == (0, True, True)
    half.on_lost(0, 10, False)
    assert half.on_acked(0, 10, False) is False
    assert half.buffer_is_empty
    frame = half.get_reset_frame()
    assert (frame.error_code, frame.final_size) == (5, 10)
    with pytest.raises(RuntimeError):
        half.write(b"more")


def test_writing_after_the_fin_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        sender(b"a", fin=True).write(b"b")


def test_an_empty_write_makes_nothing_to_send() -> None:
    half = sender()
    half.write(b"")
    assert half.buffer_is_empty


@pytest.mark.parametrize("seed", range(40))
def test_sender_and_receiver_over_a_network_that_loses_and_reorders(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(rng.randrange(1, 5000))
    half, other = Sender(0, True), Receiver(0, True)
    written = 0
    received = bytearray()
    ended = False
    flight: list[tuple[int, int, bool]] = []
    for _ in range(100_000):
        if half.is_finished:
            break
        if written < len(data) and rng.random() < 0.3:
            step = rng.randrange(1, 700)
            half.write(data[written : written + step], written + step >= len(data))
            written += step
        frame = half.take(rng.randrange(-5, 400), rng.choice((len(data), half.highest_offset + 50)))
        if frame is not None:
            offset, piece, fin = frame
            flight.append((offset, offset + len(piece), fin))
            assert piece == data[offset : offset + len(piece)]
        if flight and rng.random() < 0.6:
            start, stop, fin = flight.pop(rng.randrange(len(flight)))
            if rng.random() < 0.3:
                half.on_lost(start, stop, fin)
                continue
            for _ in range(rng.choice((1, 1, 2))):
                taken = other.take(start, data[start:stop], fin)
                if taken is not None:
                    received += taken[0]
                    assert not ended
                    ended = taken[1]
            half.on_acked(start, stop, fin)
    assert received == data
    assert ended
    assert half.is_finished
    assert other.is_finished
    assert len(half) == 0


# -- receiving


def test_receiver_waits_for_gaps_to_close() -> None:
    half = Receiver(0, True)
    assert half.take(3, b"def", False) is None
    assert half.take(0, b"abc", False) == (b"abcdef", False)
    assert half.take(0, b"abc", False) is None
    assert half.take(6, b"", True) == (b"", True)
    assert half.is_finished


def test_duplicates_after_the_end_are_ignored() -> None:
    half = Receiver(0, True)
    assert half.take(0, b"abc", True) == (b"abc", True)
    assert half.take(0, b"abc", True) is None
    assert half.take(1, b"b", False) is None


@pytest.mark.parametrize(
    ("offset", "data", "fin"),
    [(0, b"abcd", False), (4, b"", True), (3, b"x", False), (0, b"ab", True)],
)
def test_a_final_size_cannot_change(offset: int, data: bytes, fin: bool) -> None:
    half = Receiver(0, True)
    half.take(3, b"", True)
    with pytest.raises(FinalSizeError):
        half.take(offset, data, fin)


def test_a_final_size_below_what_came_is_refused() -> None:
    half = Receiver(0, True)
    half.take(5, b"xyz", False)
    with pytest.raises(FinalSizeError):
        half.take(0, b"ab", True)


def test_discarding_counts_but_keeps_nothing() -> None:
    half = Receiver(0, True)
    half.take(100, b"late", False)
    half.discard()
    assert len(half._buffer) == 0
    assert half.take(50, bytes(10), False) is None
    assert (half.highest_offset, len(half._buffer)) == (104, 0)
    assert half.take(104, bytes(6), True) is None
    assert half.is_finished
    assert half.highest_offset == 110
    with pytest.raises(FinalSizeError):
        half.take(110, b"x", False)


def test_discarding_refuses_a_contradiction_too() -> None:
    half = Receiver(0, True)
    half.discard()
    half.take(0, bytes(10), False)
    with pytest.raises(FinalSizeError):
        half.take(0, bytes(5), True)


def test_discarding_a_half_whose_end_is_known_finishes_it() -> None:
    half = Receiver(0, True)
    half.take(10, b"", True)
    assert not half.is_finished
    half.discard()
    assert half.is_finished


def test_stop_is_asked_once() -> None:
    half = Receiver(0, True)
    half.stop(QuicErrorCode.NO_ERROR)
    half.get_stop_frame()
    half.stop(7)
    assert not half.stop_pending


def test_repr_and_counts() -> None:
    stream = Stream(4, 1000, 1000)
    stream.sender.write(b"abc")
    stream.receiver.take(0, b"12345", False)
    stream.consumed = 2
    assert repr(stream) == "<Stream 4 [3 unacknowledged, 3 unread]>"
