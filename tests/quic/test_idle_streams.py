"""2,000 idle streams must not make an exchange on another stream dearer."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from typing import Any

import pytest

from helpers.quic_pair import Pair
from pgtrunk.quic.config import QuicLimits

IDLE, ROUNDS, EXCHANGES = 2000, 9, 150


class PlainEcho(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Asker(asyncio.Protocol):
    answers = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answers += 1


class Bench:
    """A connection with some idle streams and one that is used."""

    def __init__(self, idle: int) -> None:
        limits = QuicLimits(max_streams=0, idle_timeout=1e6), QuicLimits(max_streams=idle + 1, idle_timeout=1e6)
        self.pair = Pair(accept=PlainEcho, client=limits[0], server=limits[1], delay=0.001).connect()
        for _ in range(idle):
            self.pair.open(Asker).transport.write(b"x")
        self.pair.until(lambda: len(self.pair.server.accepted) == idle)
        self.pair.run(5)
        self.asker = self.pair.open(Asker)

    def round(self) -> float:
        """Seconds of CPU for some exchanges, one after another, both ends."""
        asker, until = self.asker, self.pair.until
        gc.collect()
        start = time.process_time()
        for _ in range(EXCHANGES):
            goal = asker.answers + 1
            asker.transport.write(bytes(120))
            until(lambda goal=goal: asker.answers >= goal)  # type: ignore[misc]
        return time.process_time() - start


@pytest.mark.alone
def test_idle_streams_cost_an_exchange_nothing() -> None:
    empty, full = Bench(0), Bench(IDLE)
    empty.round(), full.round()
    ratios = []
    for _ in range(ROUNDS):
        base = empty.round()
        ratios.append(full.round() / base)
    assert len(full.pair.server.driver.streams) == IDLE + 1
    assert statistics.median(ratios) <= 1.3, ratios
