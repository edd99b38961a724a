"""Several QUIC connections that share one link, in virtual time, and a load of questions and answers over them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from helpers.quic_pair import Pair, Recorder
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.redundancy import PathMemory, RedundancyFigures

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pgtrunk.quic.driver import ConnectionDriver

QUESTION, ANSWER = 60, 120


class Fleet:
    """``connections`` clients of one host at one server, each with ``streams`` open sessions.

    All packets of a direction pass through one link, with its losses, rate and queue. ``copies`` is what the redundancy
    figures of both ends say.
    """

    def __init__(
        self,
        *,
        connections: int = 10,
        streams: int = 40,
        redundancy: Any = "auto",
        seed: int = 1,
        limits: dict[str, Any] | None = None,
        **link: Any,
    ) -> None:
        self.rng = random.Random(seed)
        mine = {"redundancy": redundancy, **(limits or {})}
        self.up_path, self.down_path = PathMemory(), PathMemory()
        client, server = QuicLimits(max_streams=0, **mine), QuicLimits(**mine)
        first = Pair(client=client, server=server, accept=self._answerer, seed=seed)
        self.loop = first.loop
        self.pairs = [first]
        for number in range(1, connections):
            self.pairs.append(first.beside(seed=seed + 1000 * number, accept=self._answerer))
        for pair in self.pairs:
            pair.client.driver.quic.use_path(self.up_path, 0.0)
            pair.server.driver.quic.use_path(self.down_path, 0.0)
            pair.connect()
        self.up, self.down = first.up, first.down
        for one in (self.up, self.down):
            for name, value in link.items():
                setattr(one, name, value)
        self.sessions = [pair.open(Asker) for _ in range(streams) for pair in self.pairs]
        self.free = list(self.sessions)
        self.latencies: list[float] = []

    def _answerer(self) -> Answerer:
        return Answerer(self.rng)

    @property
    def drivers(self) -> list[ConnectionDriver]:
        return [end.driver for pair in self.pairs for end in (pair.client, pair.server)]

    def figures(self) -> RedundancyFigures:
        total = self.up_path.figures()
        total.add(self.down_path.figures())
        return total

    def ask(self, rate: float, seconds: float, *, warmup: float = 3.0) -> list[float]:
        """An open loop; the latencies of what was to be asked after ``warmup``, sorted, from that moment on."""
        loop, start = self.loop, self.loop.time()
        turn = 0
        asked: list[int] = [0, 0]

        def arrive(at: float) -> None:
            nonlocal turn
            session = self.sessions[turn % len(self.sessions)]
            turn += 1
            asked[0] += 1
            session.ask(at, done)
            after = at + self.rng.expovariate(rate)
            if after < start + warmup + seconds:
                loop.call_at(after, arrive, after)

        def done(at: float) -> None:
            asked[1] += 1
            if at >= start + warmup:
                self.latencies.append(loop.time() - at)

        self.latencies = []
        loop.call_at(start, arrive, start)
        self.pairs[0].run(warmup + seconds)
        self.pairs[0].until(lambda: asked[0] == asked[1], 120)
        return sorted(self.latencies)


class Asker(Recorder):
    """A session's client: one question at a time, those that come meanwhile wait."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[tuple[float, Callable[[float], None]]] = []
        self.missing = 0

    def ask(self, at: float, done: Callable[[float], None]) -> None:
        self.queue.append((at, done))
        if len(self.queue) == 1:
            self._next()

    def _next(self) -> None:
        self.missing = ANSWER
        self.transport.write(b"q" * QUESTION)

    def data_received(self, data: bytes) -> None:
        self.missing -= len(data)
        if self.missing:
            return
        at, done = self.queue.pop(0)
        done(at)
        if self.queue:
            self._next()


class Answerer(Recorder):
    """A session's server: it thinks for a millisecond or so."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.pending = 0
        self.made: asyncio.BaseTransport | None = None

    def data_received(self, data: bytes) -> None:
        self.pending += len(data)
        while self.pending >= QUESTION:
            self.pending -= QUESTION
            loop = self.transport._driver.loop
            loop.call_later(self.rng.uniform(0.0005, 0.0015), self.transport.write, b"a" * ANSWER)


def percentile(latencies: list[float], share: float) -> float:
    """In seconds, of sorted ones."""
    return latencies[min(int(len(latencies) * share), len(latencies) - 1)]
