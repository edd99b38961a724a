"""Loads that open sessions: one at a time, with its round trips counted on the link, or a storm of them.

Cold is a client that has no session yet, and therefore no trunk; warm is one that has had some, and has its trunk;
resumed is one that comes back, with the tickets that a trunk before it has left.
Round trips are counted up to when the session can ask (login), and up to the first row of a query with a parameter,
for which asyncpg prepares it first.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from array import array
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from netem.capture import Capture, round_trips
from netem.loop import PATIENCE, Loop
from netem.sessions import ways
from netem.topology import ADDRESSES, WAN_DEVICE
from netem.workloads import first_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netem.plan import Run
    from netem.sessions import Way

__all__ = ["Alone", "Storm", "Trips", "storm_figures", "summary"]

_CLOSE = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """Of one session: round trips on the link, and milliseconds. ``login`` until it could ask, the others in all."""

    login_round_trips: int
    round_trips: int
    login_ms: float
    elapsed_ms: float


def summary(trips: Sequence[Trips], rtt: float) -> dict[str, Any]:
    """Of sessions of one kind: the smallest counts, and median times.

    On a link without loss all counts are the same, unless the client is late by a round trip and more: then what it has
    sent before is answered before it goes on, and one is counted that nobody had to wait for. ``elapsed_rtts`` is what
    the clock says of the quickest, to hold against what the wire says. ``rtt`` is in seconds.
    """
    quickest = min(each.elapsed_ms for each in trips)
    return {
        "login_round_trips": min(each.login_round_trips for each in trips),
        "round_trips": min(each.round_trips for each in trips),
        "login_ms": round(statistics.median(each.login_ms for each in trips), 3),
        "elapsed_ms": round(statistics.median(each.elapsed_ms for each in trips), 3),
        "elapsed_rtts": round(quickest / 1000 / rtt, 2) if rtt else 0.0,
    }


class Alone(Loop):
    """One session cold, one warm and, where there are trunks, one resumed, as often as the load says. Its latencies are
    cold, up to the first row."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, [])
        self.cold: list[Trips] = []
        self.warm: list[Trips] = []
        self.resumed: list[Trips] = []

    @property
    def queued(self) -> int:
        return 0

    def figures(self) -> dict[str, Any]:
        kinds = {"cold": self.cold, "warm": self.warm, "resumed": self.resumed}
        found = summary(self.cold, self.run.rtt)
        for kind in ("warm", "resumed"):
            if kinds[kind]:
                found |= {f"{key}_{kind}": value for key, value in summary(kinds[kind], self.run.rtt).items()}
        return found | {"each": {kind: [asdict(one) for one in trips] for kind, trips in kinds.items()}}

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._repeat())]

    async def _repeat(self) -> None:
        with Capture(WAN_DEVICE, ADDRESSES["client", WAN_DEVICE]) as capture:
            for _ in range(self.run.load.size):
                with tempfile.TemporaryDirectory(prefix="pgtrunk-netem-") as folder:
                    tickets = f"{folder}/tickets" if self._has_trunk else None
                    async with ways(self.run, tickets) as way:
                        first = await self._open(way, capture, self.cold)
                        second = await self._open(way, capture, self.warm)
                        await asyncio.gather(first.close(timeout=_CLOSE), second.close(timeout=_CLOSE))
                    if self._has_trunk:
                        async with ways(self.run, tickets) as way:
                            await (await self._open(way, capture, self.resumed)).close(timeout=_CLOSE)
                self.asked += 1
                self.done += 1
                self.used.add(0)
                self.latencies.append(int(self.cold[-1].elapsed_ms * 1000))

    @property
    def _has_trunk(self) -> bool:
        return self.run.arm.kind == "quic" or self.run.arm.starts_sidecar

    async def _open(self, way: Way, capture: Capture, found: list[Trips]) -> asyncpg.Connection:
        # What others have left on the link must not be taken for ours.
        await asyncio.sleep(3 * self.run.rtt)
        capture.take()
        rtt, begin = self.run.rtt, time.time()
        connection = await way.connect()
        ready = time.time()
        await first_row(connection, self.asked)
        done = time.time()
        packets = capture.take()
        found.append(
            Trips(
                login_round_trips=round_trips((packet for packet in packets if packet.at <= ready), rtt),
                round_trips=round_trips((packet for packet in packets if packet.at <= done), rtt),
                login_ms=round((ready - begin) * 1000, 3),
                elapsed_ms=round((done - begin) * 1000, 3),
            )
        )
        return connection


class Storm(Loop):
    """All sessions of the arm at once. Its latencies are until a session can ask; after that, all of them ask once."""

    def __init__(self, run: Run, way: Way) -> None:
        super().__init__(run, [])
        self.connections: list[asyncpg.Connection] = []
        self.rows = array("I")
        """Microseconds from when all ask until they have their rows."""
        self.broken = 0
        self._way = way

    @property
    def queued(self) -> int:
        return 0

    async def finish(self) -> None:
        """All ask once, and are closed; in ``broken`` are those that could not."""
        begin = self.now()

        async def ask(number: int, connection: asyncpg.Connection) -> None:
            try:
                await first_row(connection, number)
                self.rows.append(int((self.now() - begin) * 1e6))
                await connection.close(timeout=_CLOSE)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                self.broken += 1
                self.note(error)

        async with asyncio.timeout(self.run.load.seconds + PATIENCE):
            await asyncio.gather(*(ask(*each) for each in enumerate(self.connections)))

    def _tasks(self) -> list[asyncio.Task[None]]:
        self.asked = self.run.arm.sessions
        return [asyncio.create_task(self._ask(number, self._connect, 0.0)) for number in range(self.asked)]

    async def _connect(self, _number: int) -> None:
        self.connections.append(await self._way.connect())


def storm_figures(storm: Storm) -> dict[str, Any]:
    """Milliseconds until the last session could ask, and from when all asked until the last had its row."""
    ordered = sorted(storm.latencies)
    if not ordered:
        return {"last_ms": None, "all_answered_ms": None, "broken": storm.broken}
    answered = max(storm.rows, default=0) / 1000
    return {"last_ms": ordered[-1] / 1000, "all_answered_ms": answered, "broken": storm.broken}
