"""Whatever the wire does, all bytes arrive once and in order, and nothing is left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from helpers.quic_pair import SERVER_ADDR, Pair, Recorder, sessions_of
from pgtrunk.quic.config import ByteBudget, QuicLimits


class Chatter(Recorder):
    """Sends messages of its own, at random times and sizes, while it checks what it gets against its twin's script."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.script = b"".join(rng.randbytes(rng.choice((1, 60, 120, 900, 3000))) for _ in range(rng.randrange(1, 12)))
        self.rng = rng
        self.sent = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.step()

    def step(self) -> None:
        if self.transport.is_closing():
            return
        size = self.rng.randrange(1, 1500)
        self.transport.write(self.script[self.sent : self.sent + size])
        self.sent += size
        if self.sent < len(self.script):
            self.transport._driver.loop.call_later(self.rng.random() * 0.02, self.step)
            return
        self.transport.write_eof()
        if "eof" in self.calls:
            self.transport.close()

    def eof_received(self) -> bool:
        super().eof_received()
        return self.sent < len(self.script)


@pytest.mark.parametrize("seed", range(25))
def test_all_bytes_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    budget = ByteBudget(16 << 20)
    pair = Pair(
        accept=lambda: Chatter(rng),
        budget=budget,
        server=QuicLimits(max_streams=20, congestion_floor=rng.choice((0, 8))),
        seed=seed,
        delay=0.01,
        jitter=rng.choice((0, 0.01)),
        loss=rng.choice((0.02, 0.15)),
        duplicates=0.05,
    ).connect()
    near: list[Chatter] = []
    for _ in range(60):
        pair.until(lambda: pair.client.driver.stream_credit > 0, 120)
        near.append(pair.open(lambda: Chatter(rng)))
        if rng.random() < 0.3:
            pair.run(rng.random() * 0.05)
    pair.until(lambda: len(pair.server.accepted) == 60 and not pair.client.driver.streams, 300)
    pair.run(20)
    for protocol, there in zip(near, pair.server.accepted, strict=True):
        assert protocol.data == there.script
        assert there.data == protocol.script
    for each in [*near, *pair.server.accepted]:
        assert each.calls.count("eof") == each.calls.count("lost") == 1
        assert each.lost == [None]
    for end in (pair.client, pair.server):
        quic = end.driver.quic
        assert not sessions_of(quic)
        assert (end.driver.held_bytes, quic._loss.bytes_in_flight) == (0, 0)
        assert len(quic._loss.spaces[2].sent_packets) < 64
    assert budget.held == 0
    assert pair.loop.failures == []
    pair.close()
    assert budget.committed == 0
    assert pair.loop.timers == 0


@pytest.mark.parametrize("seed", range(10))
def test_streams_reset_at_random_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    budget = ByteBudget(16 << 20)
    pair = Pair(budget=budget, seed=seed, delay=0.01, jitter=0.005, loss=0.1, duplicates=0.05).connect()
    near = []
    for _ in range(80):
        protocol = pair.open()
        near.append(protocol)
        protocol.transport.write(rng.randbytes(rng.randrange(1, 20_000)))
        for each in (protocol, *(pair.server.accepted[-3:])):
            action = rng.choice(("", "", "close", "abort", "write_eof", "pause_reading"))
            if action:
                getattr(each.transport, action)()
        pair.run(rng.random() * 0.03)
    for each in [*near, *pair.server.accepted]:
        each.transport.abort()
    pair.run(30)
    for each in [*near, *pair.server.accepted]:
        assert len(each.lost) == 1
    for end in (pair.client, pair.server):
        assert not sessions_of(end.driver.quic)
        assert not end.driver.streams
        assert end.driver.held_bytes == 0
        assert end.driver.quic._loss.bytes_in_flight == 0
    assert pair.client.driver.quic.stream_credit >= 900
    assert budget.held == 0
    assert pair.loop.failures == []


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_lost_credit_frame_is_sent_again(direction: str) -> None:
    """An upload and a download whose every third packet of credit is lost still end."""
    pair = Pair(server=QuicLimits(max_streams=10)).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.until(lambda: pair.server.accepted != [])
    there = pair.server.accepted[0]
    writer, reader, link = (near, there, pair.down) if direction == "up" else (there, near, pair.up)
    count = 0

    def drop(data: bytes) -> bool:
        nonlocal count
        count += 1
        return count % 3 == 0

    link.drop = drop
    writer.transport.write(bytes(3_000_000))
    pair.until(lambda: len(reader.data) >= 3_000_000)


def test_a_blackout_is_survived() -> None:
    pair = Pair().connect()
    near = pair.open()
    near.transport.write(bytes(100_000))
    pair.run(0.05)
    pair.up.drop = pair.down.drop = lambda data: True
    pair.run(4.0)
    pair.up.drop = pair.down.drop = lambda data: False
    pair.until(lambda: len(pair.server.accepted[0].data) == 100_000)


@pytest.mark.parametrize("seed", range(20))
def test_lost_handshakes_are_repeated(seed: int) -> None:
    pair = Pair(seed=seed, loss=0.3)
    pair.client.driver.connect(SERVER_ADDR)
    pair.until(lambda: "ready" in pair.client.said or "lost" in pair.client.said)
    assert "ready" in pair.client.said
