"""The redundant tail over a simulated link: what it gains, what it must never do, and what it must not break."""

from __future__ import annotations

import random
from typing import Any

import pytest

from helpers.quic_fleet import Fleet, percentile
from helpers.quic_pair import Echo, Pair, Recorder, sessions_of
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.redundancy import DELTA, FLOOR_DATAGRAMS, HOLD
from pgtrunk.quic.stream import Sender

FAR = 1 << 60
OFF = QuicLimits(redundancy="off")


def armed(pair: Pair) -> Pair:
    """Both ends of it have seen a loss long enough ago to copy everything."""
    for end in (pair.client, pair.server):
        end.driver.quic.path.lost(pair.loop.time(), 1)
    pair.run(2.0)
    return pair


def is_quiet(pair: Pair) -> bool:
    return all(not end.driver.quic._loss.bytes_in_flight for end in (pair.client, pair.server))


# -- the sender, whose bytes may be in several packets


def test_an_acknowledgement_takes_back_a_copy_that_waits() -> None:
    half = Sender(0, True)
    half.write(b"0123456789", True)
    half.take(100, FAR)
    half.requeue(0, 10, True)
    assert not half.buffer_is_empty
    assert half.on_acked(0, 10, True) is True
    assert half.buffer_is_empty
    assert half.take(100, FAR) is None


def test_a_copy_leaves_with_its_fin() -> None:
    half = Sender(0, True)
    half.write(b"ab", True)
    half.take(100, FAR)
    half.requeue(0, 2, True)
    assert half.take(100, FAR) == (0, b"ab", True)
    assert half.on_acked(0, 2, True) is True
    assert half.on_acked(0, 2, True) is True
    assert half.acked_again == 1


def test_only_what_is_open_is_sent_again() -> None:
    half = Sender(0, True)
    half.write(bytes(range(30)))
    for _ in range(3):
        half.take(10, FAR)
    half.on_acked(10, 20, False)
    half.requeue(0, 30, False)
    assert half.take(100, FAR) == (0, bytes(range(10)), False)
    assert half.take(100, FAR) == (20, bytes(range(20, 30)), False)
    half.on_acked(0, 10, False)
    half.on_lost(0, 20, False)
    assert half.buffer_is_empty
    half.on_lost(15, 25, False)
    assert half.take(100, FAR) == (20, bytes(range(20, 25)), False)
    assert not half.is_open(0, 20, True) or half._buffer_fin is None


def test_nothing_is_copied_after_a_reset() -> None:
    half = Sender(0, True)
    half.write(b"abc")
    half.take(100, FAR)
    half.reset(1)
    half.requeue(0, 3, False)
    assert half.buffer_is_empty
    assert not half.is_open(0, 3, False)


@pytest.mark.parametrize("seed", range(60))
def test_a_sender_whose_bytes_are_in_several_packets(seed: int) -> None:
    """Whatever is reported in whatever order, all bytes arrive, and nothing is left to send at the end."""
    rng = random.Random(seed)
    data = rng.randbytes(rng.randrange(1, 3000))
    half, there = Sender(0, True), bytearray(len(data))
    covered, fins, written = set[int](), 0, 0
    flight: list[tuple[int, int, bool]] = []
    gone: list[tuple[int, int, bool]] = []
    for _ in range(100_000):
        if half.is_finished:
            break
        if written < len(data) and rng.random() < 0.3:
            step = rng.randrange(1, 500)
            half.write(data[written : written + step], written + step >= len(data))
            written += step
        frame = half.take(rng.randrange(-5, 300), FAR)
        if frame is not None:
            offset, piece, fin = frame
            assert piece == data[offset : offset + len(piece)]
            flight.append((offset, offset + len(piece), fin))
            gone.append(flight[-1])
        if gone and rng.random() < 0.3:
            half.requeue(*rng.choice(gone))
        if flight and rng.random() < 0.6:
            start, stop, fin = flight.pop(rng.randrange(len(flight)))
            if rng.random() < 0.3:
                half.on_lost(start, stop, fin)
            else:
                there[start:stop] = data[start:stop]
                covered.update(range(start, stop))
                fins += fin
                half.on_acked(start, stop, fin)
    assert half.is_finished
    assert there == data
    assert len(covered) == len(data)
    assert fins
    for start, stop, fin in flight:
        half.on_lost(start, stop, fin)
    assert half.buffer_is_empty


# -- whole connections


class Talker(Recorder):
    """Sends a script in pieces of random sizes at random times, and may lose interest in the middle."""

    def __init__(self, rng: random.Random, whim: str) -> None:
        super().__init__()
        self.script = b"".join(rng.randbytes(rng.choice((1, 60, 120, 999, 3000))) for _ in range(rng.randrange(1, 9)))
        self.rng, self.whim, self.written = rng, whim, 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.step()

    def step(self) -> None:
        if self.transport.is_closing():
            return
        if self.whim and self.rng.random() < 0.15:
            getattr(self.transport, self.whim)()
            return
        size = self.rng.randrange(1, 1500)
        self.transport.write(self.script[self.written : self.written + size])
        self.written += size
        if self.written < len(self.script):
            self.transport._driver.loop.call_later(self.rng.random() * 0.02, self.step)
        else:
            self.transport.write_eof()
            if "eof" in self.calls:
                self.transport.close()

    def eof_received(self) -> bool:
        super().eof_received()
        return self.written < len(self.script)


@pytest.mark.parametrize("seed", range(20))
def test_all_bytes_once_and_in_order_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(
        accept=lambda: Talker(rng, rng.choice(("", "", "abort", "close"))),
        seed=seed,
        delay=0.015,
        jitter=rng.choice((0.0, 0.01)),
        loss=0.15,
        duplicates=0.05,
    ).connect()
    for end in (pair.client, pair.server):
        # At 15 % the guard would allow nothing.
        end.driver.quic.path.is_congested = lambda *_: False  # type: ignore[method-assign]
    near: list[Talker] = []
    for _ in range(40):
        near.append(pair.open(lambda: Talker(rng, rng.choice(("", "", "", "abort", "close")))))
        pair.run(rng.random() * 0.03)
    for each in near[:10]:
        each.transport.abort()  # RESET_STREAM and STOP_SENDING
    pair.until(lambda: not pair.client.driver.streams and not pair.server.driver.streams, 300)
    pair.run(30)
    for here, there in zip(near, pair.server.accepted, strict=False):
        for one, other in ((here, there), (there, here)):
            assert other.script.startswith(bytes(one.data))
            if "eof" in one.calls and not other.whim:
                assert one.data == other.script or other in near[:10]
            assert one.calls.count("eof") <= 1
            assert one.calls.count("lost") == 1
    for end in (pair.client, pair.server):
        quic = end.driver.quic
        assert not sessions_of(quic)
        assert not quic._originals
        assert not quic._ready
        assert (end.driver.held_bytes, quic._loss.bytes_in_flight) == (0, 0)
    figures = pair.client.driver.figures().redundancy
    # What is neither copied nor suppressed needed no copy any more when it was due: its stream had been reset, say.
    left = figures.eligible - figures.suppressed_guard - figures.suppressed_window
    assert figures.copies > 0 or left <= 10
    assert pair.loop.failures == []
    pair.close()
    assert pair.loop.timers == 0


def test_a_lost_question_costs_what_the_copy_waits() -> None:
    pair = armed(Pair(accept=Echo).connect())
    near = pair.open()
    near.transport.write(b"first")
    pair.until(lambda: near.data == b"first")
    pair.run(0.5)
    start = pair.loop.time()
    drops = iter([True])
    pair.up.drop = lambda data: next(drops, False)
    near.transport.write(b"second")
    pair.until(lambda: near.data == b"firstsecond")
    assert pair.loop.time() - start == pytest.approx(0.030 + DELTA, abs=0.001)


def test_what_is_acknowledged_in_time_is_not_copied() -> None:
    pair = armed(Pair(accept=Echo, delay=0.001).connect())
    near = pair.open()
    for _ in range(20):
        near.transport.write(b"x")
        pair.run(0.05)
    figures = pair.client.driver.figures().redundancy
    assert (figures.eligible, figures.copies) == (0, 0)


def test_copies_end_some_time_after_the_last_loss() -> None:
    pair = armed(Pair(accept=Echo).connect())
    near = pair.open()
    for _ in range(40):
        near.transport.write(b"x")
        pair.run(0.1)
    copies = pair.client.driver.figures().redundancy.copies
    assert copies >= 20
    pair.run(HOLD)
    for _ in range(40):
        near.transport.write(b"x")
        pair.run(0.1)
    assert pair.client.driver.figures().redundancy.copies == copies
    assert not pair.client.driver.quic.repeats
    assert pair.client.driver.quic._copy_at is None


def test_each_message_is_copied_once_at_most_and_large_ones_never() -> None:
    pair = armed(Pair(accept=Recorder).connect())
    near = pair.open()
    near.transport.write(b"x" * 50_000)
    pair.run(2.0)
    assert is_quiet(pair)
    before = pair.client.driver.figures().redundancy.copies
    assert before <= 2
    pair.down.drop = lambda data: True
    near.transport.write(b"small")
    pair.run(0.03)
    assert pair.client.driver.figures().redundancy.copies == before + 1


def test_a_copy_is_no_neighbour_of_its_original() -> None:
    """New messages every millisecond: the copy rides, but never in the datagram right behind."""
    pair = armed(Pair(accept=Recorder).connect())
    near, beside = pair.open(), pair.open()
    near.transport.write(b"hello")
    beside.transport.write(b"hello")
    pair.run(1.0)
    quic = pair.client.driver.quic
    sent: list[tuple[int, int]] = []
    plain = quic._note_sent

    def record(first: int, now: float) -> None:
        for number in range(first, quic._packet_number):
            packet = quic._app_space.sent_packets.get(number)
            for handler, args in packet.delivery_handlers if packet is not None else ():
                if handler == quic._on_data_delivered and args[0].stream_id == 0:
                    sent.append((number, args[1]))
        plain(first, now)

    quic._note_sent = record  # type: ignore[method-assign]
    for number in range(40):
        (near if number % 4 == 0 else beside).transport.write(b"x")
        pair.run(0.001)
    pair.run(0.1)
    numbers: dict[int, list[int]] = {}
    for number, offset in sent:
        numbers.setdefault(offset, []).append(number)
    assert all(len(each) == 2 for each in numbers.values())
    assert all(each[1] - each[0] >= 2 for each in numbers.values())


def test_a_late_acknowledgement_is_no_loss() -> None:
    """A probe timeout that was too hasty makes no copies: a busy machine is not a lossy path."""
    pair = Pair(accept=Echo).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.run(0.5)
    pair.down.delay = 0.2
    near.transport.write(b"y")
    pair.run(1.0)
    pair.down.delay = 0.015
    near.transport.write(b"z")
    pair.run(1.0)
    quic = pair.client.driver.quic
    assert quic._packet_number > 6
    assert (pair.client.driver.figures().redundancy.losses, quic.repeats, quic._suspects) == (0, False, [])


def test_a_loss_that_only_a_probe_timeout_found_counts_once_confirmed() -> None:
    pair = Pair(accept=Echo).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.run(0.5)
    drops = iter([True])
    pair.up.drop = lambda data: next(drops, False)
    near.transport.write(b"y")
    pair.until(lambda: near.data == b"xy")
    pair.run(0.1)
    quic = pair.client.driver.quic
    assert (pair.client.driver.figures().redundancy.losses, quic.repeats) == (1, True)
    assert not pair.server.driver.quic.repeats


def test_keys_may_change_while_copies_wait() -> None:
    pair = armed(Pair(accept=Echo).connect())
    near = pair.open()
    near.transport.write(b"x")
    pair.run(0.5)
    for _ in range(10):
        near.transport.write(b"y")
        pair.run(0.002)
        assert pair.client.driver.quic._originals
        pair.client.driver.quic.request_key_update()
        pair.run(0.2)
    assert near.data == b"xyyyyyyyyyy"
    assert pair.client.driver.figures().redundancy.copies >= 10


def test_a_client_may_move_while_copies_wait() -> None:
    pair = armed(Pair(accept=Echo).connect())
    near = pair.open()
    near.transport.write(b"x")
    pair.run(0.5)
    near.transport.write(b"y")
    pair.run(0.002)
    assert pair.client.driver.quic._originals
    moved = ("198.51.100.7", 999)
    pair.up.deliver = lambda data: pair.server.driver.receive(data, moved)
    pair.run(0.016)
    for _ in range(5):
        near.transport.write(b"z")
        pair.run(0.1)
    assert near.data == b"xyzzzzz"
    assert pair.server.driver.peername == moved
    pair.run(1.0)
    assert is_quiet(pair)


def test_the_floor_is_there_while_losses_are_not_congestion() -> None:
    size = 1200
    pair = armed(Pair().connect())
    quic = pair.client.driver.quic
    assert quic.least_window(pair.loop.time()) == FLOOR_DATAGRAMS
    quic._loss._cc.congestion_window = 40 * size
    for _ in range(6):
        now = pair.loop.time()
        quic._loss._cc.on_packets_lost(now=now, packets=[_lost(now)])
        pair.run(0.1)
    assert quic._loss.congestion_window == FLOOR_DATAGRAMS * size
    quic.path.lost(pair.loop.time(), 1000)
    now = pair.loop.time()
    quic._loss._cc.on_packets_lost(now=now, packets=[_lost(now)])
    assert quic._loss.congestion_window == FLOOR_DATAGRAMS // 2 * size


def test_the_floor_does_not_widen_a_window() -> None:
    pair = armed(Pair().connect())
    congestion = pair.client.driver.quic._loss._cc
    congestion.congestion_window = 5 * 1200
    congestion.on_packets_lost(now=pair.loop.time(), packets=[_lost(pair.loop.time())])
    assert congestion.congestion_window == 5 * 1200


def test_without_redundancy_there_is_no_floor_and_nothing_is_copied() -> None:
    pair = armed(Pair(client=QuicLimits(max_streams=0, redundancy="off"), server=OFF, accept=Echo).connect())
    assert not pair.client.driver.quic.repeats
    assert pair.client.driver.quic.least_window(pair.loop.time()) == 0
    near = pair.open()
    for _ in range(10):
        near.transport.write(b"x")
        pair.run(0.1)
    assert pair.client.driver.figures().redundancy.eligible == 0


def _lost(at: float) -> Any:
    from aioquic.quic.packet import QuicPacketType
    from aioquic.quic.packet_builder import QuicSentPacket
    from aioquic.tls import Epoch

    return QuicSentPacket(Epoch.ONE_RTT, True, True, False, 0, QuicPacketType.ONE_RTT, at, 1200)


# -- many connections on one link

SHAPE: dict[str, Any] = {"connections": 4, "streams": 10}
RATE = 150


def tail(seconds: float = 8, warmup: float = 3, **settings: Any) -> tuple[list[float], Fleet]:
    fleet = Fleet(**SHAPE, **settings)
    return fleet.ask(RATE, seconds, warmup=warmup), fleet


def test_at_one_percent_the_slowest_hundredth_takes_half_the_time() -> None:
    plain, _ = tail(redundancy="off", loss=0.01)
    twice, fleet = tail(redundancy="auto", loss=0.01)
    assert percentile(twice, 0.99) < 0.5 * percentile(plain, 0.99)
    assert percentile(twice, 0.5) < 1.02 * percentile(plain, 0.5)
    figures = fleet.figures()
    assert figures.losses > 0
    assert figures.copies > 0.6 * figures.eligible
    assert figures.copies + figures.suppressed_guard + figures.suppressed_window <= figures.eligible
    assert 0.9 * figures.copies < figures.spurious <= figures.copies


def test_a_clean_path_has_no_copies_and_the_same_packets() -> None:
    plain, without = tail(2, 1, redundancy="off")
    twice, fleet = tail(2, 1, redundancy="auto")
    assert plain == twice
    assert (fleet.up.octets, fleet.down.octets) == (without.up.octets, without.down.octets)
    assert fleet.figures().copies == fleet.figures().eligible == 0


@pytest.mark.parametrize("queue", [30_000, 4_000])
def test_a_bottleneck_is_not_made_slower(queue: int) -> None:
    """Three quarters of it are used without copies, and more than all of it would be with."""
    narrow: dict[str, Any] = {"rate": 45_000.0, "queue": queue}
    plain, without = tail(20, redundancy="off", **narrow)
    fleet = Fleet(**SHAPE, redundancy="auto", **narrow)
    fleet.loop.call_later(1.0, fleet.up_path.lost, fleet.loop.time() + 1.0, 1)
    fleet.loop.call_later(1.0, fleet.down_path.lost, fleet.loop.time() + 1.0, 1)
    twice = fleet.ask(RATE, 20)
    assert percentile(twice, 0.5) < 1.2 * percentile(plain, 0.5)
    assert percentile(twice, 0.99) < 1.2 * percentile(plain, 0.99)
    assert fleet.figures().suppressed_guard > 0
    assert fleet.up.dropped + fleet.down.dropped <= without.up.dropped + without.down.dropped + 30
