"""One direction of the laboratory's link, with a clock of the test's own."""

from __future__ import annotations

import itertools

import pytest

from netem.line import Line
from netem.measure import interval
from netem.spec import Direction

NUMBERED = [number.to_bytes(4, "big") for number in range(10_000)]


def carried(direction: Direction, packets: list[bytes] = NUMBERED, *, pause: float = 0.0, seed: int = 1) -> list[bytes]:
    """What comes out of a line, in order, of packets that go in one by one, every ``pause`` seconds."""
    line = Line(direction, seed)
    out: list[bytes] = []
    for number, packet in enumerate(packets):
        out += line.due(number * pause)
        line.admit(number * pause, [packet])
    return out + line.due(float("inf"))


def test_a_packet_comes_out_after_the_delay() -> None:
    line = Line(Direction(delay=0.015), 1)
    line.admit(10.0, [b"one", b"two"])
    assert line.next_due == pytest.approx(10.015)
    assert line.due(10.0149) == []
    assert line.due(10.0151) == [b"one", b"two"]
    assert line.next_due == float("inf")
    assert line.counters.late_max == pytest.approx(1e-4)


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("jitter", [0.0, 0.001])
def test_as_many_are_lost_as_the_specification_says(loss: float, jitter: float) -> None:
    out = carried(Direction(loss=loss, jitter=jitter))
    lowest, highest = interval(loss, len(NUMBERED))
    assert lowest <= len(NUMBERED) - len(out) <= highest


def test_the_same_packets_are_lost_with_the_same_seed() -> None:
    first, again, other = (carried(Direction(loss=0.01), seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_losses_come_in_bursts() -> None:
    out = carried(Direction(burst=(0.01, 0.25)))
    lost = sorted({*range(len(NUMBERED))} - {int.from_bytes(packet, "big") for packet in out})
    bursts = 1 + sum(later != earlier + 1 for earlier, later in itertools.pairwise(lost))
    assert 3 <= len(lost) / bursts <= 5.5  # 1 / 0.25 on average
    assert bursts == pytest.approx(100, rel=0.4)


def test_packets_that_may_not_overtake_do_not() -> None:
    direction = Direction(delay=0.015, jitter=0.01)
    assert carried(direction, pause=0.0001) == NUMBERED


def test_packets_that_may_overtake_do() -> None:
    direction = Direction(delay=0.015, jitter=0.01, reorder=True)
    out = carried(direction, pause=0.0001)
    assert sorted(out) == NUMBERED != out


def test_a_rate_spaces_packets_out() -> None:
    line = Line(Direction(delay=0.01, rate=8e6), 1)
    line.admit(0.0, [bytes(1000)] * 3)
    assert [len(line.due(at)) for at in (0.0109, 0.0111, 0.0121, 0.0131)] == [0, 1, 1, 1]


def test_what_overflows_the_buffer_is_dropped() -> None:
    line = Line(Direction(rate=8e6, buffer=5000), 1)
    line.admit(0.0, [bytes(1000)] * 20)
    assert line.counters.overflowed == 15
    line.admit(0.0021, [bytes(1000)] * 20)
    assert line.counters.overflowed == 15 + 18


@pytest.mark.parametrize("jitter", [0.0, 0.001])
def test_no_more_are_held_than_the_limit(jitter: float) -> None:
    line = Line(Direction(delay=1.0, limit=10, jitter=jitter), 1)
    line.admit(0.0, NUMBERED[:25])
    assert (len(line), line.counters.overflowed, line.counters.deepest) == (10, 15, 10)


def test_what_is_held_outlives_another_specification() -> None:
    line = Line(Direction(delay=1.0), 1)
    line.admit(0.0, [b"before"])
    line.configure(Direction(delay=0.5, loss=1.0), 1)
    line.admit(0.1, [b"after"])
    assert line.due(2.0) == [b"before"]
    assert line.counters.lost == 1


def test_counters_add_up() -> None:
    line = Line(Direction(delay=0.1, loss=0.1, rate=1e9, limit=500), 3)
    for packet in NUMBERED[:1000]:
        line.admit(0.0, [packet])
    counters = line.counters
    assert counters.received == 1000 == counters.lost + counters.overflowed + len(line)
    assert counters.octets == 4000
    assert len(line.due(10.0)) == 500
    assert counters.sent == 500


def test_drops_are_remembered_with_their_times_until_the_line_changes() -> None:
    line = Line(Direction(loss=1.0), 1)
    line.admit(1.0, [b"one"])
    line.configure(Direction(rate=8e6, buffer=1500), 1)
    assert list(line.drops) == []
    line.admit(2.0, [bytes(1000), b"x" * 1000])
    assert list(line.drops) == [(2.0, b"x" * 64)]
    line.due(3.0)
    line.configure(Direction(delay=1.0, limit=1), 1)
    line.admit(3.0, [b"held", b"too many"])
    assert list(line.drops) == [(3.0, b"too many")]
