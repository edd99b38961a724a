"""The client program of all arms: opens sessions, asks as the load says, counts. Runs on the client's host.

    python -m netem.client < run.json

It says a line of JSON each second, and its result last. Open loops count from when something was to be asked.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import asyncpg
from hdrh.histogram import HdrHistogram

from netem import schedule
from netem.plan import Run
from netem.sessions import opened, ways
from netem.workloads import ROWS, Ask, connecting, prepare

if TYPE_CHECKING:
    import pgtrunk

__all__ = ["main"]

_LONGEST = 120 * 1_000_000
"""Microseconds; the longest latency that is told apart."""
_TICK = 0.001
_PATIENCE = 60.0
"""Seconds after the end of the load for what is still under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """What happened in one second of the load. Latencies in milliseconds."""

    at: float
    asked: int
    done: int
    queued: int
    in_flight: int
    mean: float
    p50: float
    p99: float
    cpu_ms: float
    rss_mb: float


class Loop:
    """One load over open sessions. Its times are seconds since its start."""

    def __init__(self, run: Run, asks: list[Ask]) -> None:
        self.run = run
        self.histogram = HdrHistogram(1, _LONGEST, 3)
        self.done = self.failed = self.in_flight = 0
        self.used: set[int] = set()
        self.errors: dict[str, int] = {}
        self.asked = 0
        self._asks = asks
        self._random = Random(run.seed)
        self._queue: deque[float] = deque()
        self._idle: list[asyncio.Future[float]] = []
        self._free: asyncio.LifoQueue[tuple[int, Ask]] = asyncio.LifoQueue()
        self._recent = HdrHistogram(1, _LONGEST, 3)
        self._start = 0.0
        self._over = False

    @property
    def queued(self) -> int:
        return len(self._queue)

    def now(self) -> float:
        return time.perf_counter() - self._start

    async def play(self, report: bool) -> float:
        """Returns the seconds until the last answer."""
        self._start = time.perf_counter()
        closed = self.run.load.kind == "closed"
        if closed:
            users = self.run.load.users or len(self._asks)
            for free in enumerate(self._asks):
                self._free.put_nowait(free)
            tasks = [asyncio.create_task(self._ask_closed()) for _ in range(users)]
        else:
            tasks = [asyncio.create_task(self._ask_queued(*each)) for each in enumerate(self._asks)]
        telemetry = asyncio.create_task(self._report()) if report else None
        try:
            if not closed:
                await self._schedule()
            async with asyncio.timeout(self.run.load.seconds + _PATIENCE):
                await asyncio.gather(*tasks)
            return self.now()
        finally:
            for task in [*tasks, *([telemetry] if telemetry else [])]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- open loops: hot

    async def _schedule(self) -> None:
        load = self.run.load
        number, last = 0, schedule.total(load)
        while number < last:
            due = schedule.asked_by(load, self.now())
            while number < due:
                self._put(schedule.moment(load, number))
                number += 1
            await asyncio.sleep(_TICK)
        self._over = True
        for idle in self._idle:
            idle.cancel()
        self._idle.clear()

    def _put(self, intended: float) -> None:
        self.asked += 1
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(intended)
                return
        self._queue.append(intended)

    async def _ask_queued(self, number: int, ask: Ask) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._queue:
                intended = self._queue.popleft()
            elif self._over:
                return
            else:
                idle = loop.create_future()
                self._idle.append(idle)
                try:
                    intended = await idle
                except asyncio.CancelledError:
                    if self._over:
                        return
                    raise
            await self._ask(number, ask, intended)

    async def _ask_closed(self) -> None:
        shortest, longest = self.run.load.think
        while self.now() < self.run.load.seconds:
            if longest:
                await asyncio.sleep(self._random.uniform(shortest, longest))
            self.asked += 1
            wanted = self.now()
            free = await self._free.get()
            try:
                await self._ask(*free, wanted)
            finally:
                self._free.put_nowait(free)

    async def _ask(self, number: int, ask: Ask, intended: float) -> None:
        self.in_flight += 1
        try:
            await ask(self._random.randrange(ROWS))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            self.failed += 1
            name = f"{type(error).__name__}: {error}"[:200]
            self.errors[name] = self.errors.get(name, 0) + 1
        else:
            self.done += 1
            self.used.add(number)
            latency = int((self.now() - intended) * 1e6)
            self.histogram.record_value(latency)
            self._recent.record_value(latency)
        finally:
            self.in_flight -= 1

    # -- telemetry

    async def _report(self) -> None:
        asked, cpu = 0, _cpu()
        while True:
            await asyncio.sleep(1.0 - self.now() % 1.0)
            recent, self._recent = self._recent, HdrHistogram(1, _LONGEST, 3)
            before, cpu = cpu, _cpu()
            second = Second(
                at=round(self.now(), 3),
                asked=self.asked - asked,
                done=recent.get_total_count(),
                queued=self.queued,
                in_flight=self.in_flight,
                mean=round(recent.get_mean_value() / 1000, 3),
                p50=recent.get_value_at_percentile(50) / 1000,
                p99=recent.get_value_at_percentile(99) / 1000,
                cpu_ms=round((cpu - before) * 1000, 1),
                rss_mb=_rss_mb(),
            )
            asked = self.asked
            _say({"second": asdict(second)})


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return round(int(file.read().split()[1]) * resource.getpagesize() / 1e6, 1)


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


async def _main(run: Run) -> dict[str, Any]:
    async with ways(run) as (connect, trunk):
        begin = time.perf_counter()
        is_connect = run.workload.kind == "connect"
        async with opened(connect, 0 if is_connect else run.arm.sessions) as connections:
            setup = time.perf_counter() - begin
            if is_connect:
                asks = [connecting(connect)] * run.arm.sessions
            else:
                asks = list(await asyncio.gather(*(_first(connection, run) for connection in connections)))
            if run.warmup:
                await Loop(_warmup(run), asks).play(report=False)
            # What is there now stays: the collector need not look through it while latencies are taken.
            gc.collect()
            gc.freeze()
            _say({"ready": run.arm.sessions})
            cpu = _cpu()
            loop = Loop(run, asks)
            seconds = await loop.play(report=True)
            return _result(loop, seconds, setup, _cpu() - cpu, trunk)


async def _first(connection: asyncpg.Connection, run: Run) -> Ask:
    """What the session asks, prepared and asked once.

    asyncpg prepares with Flush, without Sync: PgBouncer's server stays with this session until it asks something. Were
    all sessions to prepare first, those without a server would wait for ever.
    """
    ask = await prepare(connection, run.workload)
    await ask(0)
    return ask


def _warmup(run: Run) -> Run:
    load = replace(run.load, seconds=run.warmup)
    if load.kind == "ramp":
        load = replace(load, kind="fixed", rate=load.rate / 10)
    return replace(run, load=load)


def _result(
    loop: Loop, seconds: float, setup: float, cpu: float, trunk: pgtrunk.StreamManager | None
) -> dict[str, Any]:
    histogram = loop.histogram
    percentiles = {f"p{each:g}_ms": histogram.get_value_at_percentile(each) / 1000 for each in (50, 90, 99, 99.9)}
    return {
        "asked": loop.asked,
        "done": loop.done,
        "failed": loop.failed,
        "errors": loop.errors,
        "seconds": round(seconds, 3),
        "per_second": round(loop.done / seconds, 1),
        "mean_ms": round(histogram.get_mean_value() / 1000, 3),
        **percentiles,
        "max_ms": histogram.get_max_value() / 1000,
        "sessions": loop.run.arm.sessions,
        "sessions_used": len(loop.used),
        "setup_s": round(setup, 3),
        "client_cpu_s": round(cpu, 3),
        "client_cpu_us": round(cpu / max(1, loop.done) * 1e6, 1),
        "client_rss_mb": _rss_mb(),
        "trunk": None if trunk is None else {key: repr(value) for key, value in asdict(trunk.stats()).items()},
        "histogram": histogram.encode().decode(),
    }


def main() -> int:
    run = Run.from_json(json.load(sys.stdin))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    del soft
    try:
        import uvloop
    except ImportError:
        result = asyncio.run(_main(run))
    else:
        result = uvloop.run(_main(run))
    _say({"result": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
