"""What every load of the client's has in common: it asks, counts, and tells each second how it goes.

A load is either open (:mod:`netem.open_loop`) or closed (:mod:`netem.closed_loop`). Latencies count from when
something was to be asked. Times are seconds since the load's start, reported latencies milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import asyncpg

from netem.workloads import ROWS, Ask

if TYPE_CHECKING:
    from netem.plan import Run

__all__ = ["LONGEST", "PATIENCE", "Loop", "Second", "cpu", "rss_mb", "say"]

LONGEST = 120 * 1_000_000
"""Microseconds; the longest latency that is told apart."""
PATIENCE = 60.0
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
    p95: float
    p99: float
    cpu_ms: float
    rss_mb: float
    sessions_used: int
    """Since the load began."""


class Loop:
    """One load over open sessions. Its times are seconds since its start."""

    def __init__(self, run: Run, asks: list[Ask]) -> None:
        self.run = run
        self.latencies = array("I")
        """Microseconds, in order of arrival. Kept plainly: a histogram in Python would take as long as asyncpg does."""
        self.waited = array("I")
        """Microseconds that those have waited, so far, who had no answer when patience ended."""
        self.late: list[tuple[int, float, float]] = []
        """Answers that took longer than the run's ``late_after``: the session, and the times of sending and answer."""
        self.done = self.failed = self.in_flight = 0
        self.used: set[int] = set()
        self.errors: dict[str, int] = {}
        self.asked = 0
        self._asks = asks
        self._random = Random(run.seed)
        self._late_after = run.late_after
        self._start = 0.0

    @property
    def queued(self) -> int:
        """What is to be asked, and has no session yet."""
        raise NotImplementedError

    def now(self) -> float:
        return time.perf_counter() - self._start

    async def play(self, report: bool) -> float:
        """Returns the seconds until the last answer, or until patience ended: see :attr:`unanswered`."""
        self._start = time.perf_counter()
        tasks = self._tasks()
        telemetry = asyncio.create_task(self._report()) if report else None
        try:
            await self._schedule()
            left = self.run.load.seconds + (self.run.load.patience or PATIENCE) - self.now()
            ended, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                task.result()
            if len(ended) < len(tasks):
                self._give_up()
            return self.now()
        finally:
            for task in [*tasks, *([telemetry] if telemetry else [])]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def unanswered(self) -> int:
        """What had no answer, and no error either, when patience ended."""
        return self.asked - self.done - self.failed

    def _tasks(self) -> list[asyncio.Task[None]]:
        """Those who ask; they end with the load."""
        raise NotImplementedError

    async def _schedule(self) -> None:
        """Says what is to be asked when, where those who ask do not know by themselves."""

    def _give_up(self) -> None:
        """Patience has ended; those who are answered no more, and were not sent, have waited until now."""

    async def _ask(self, number: int, ask: Ask, intended: float) -> None:
        self.in_flight += 1
        sent = self.now()
        try:
            await ask(self._random.randrange(ROWS))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            self.failed += 1
            self.note(error)
        except asyncio.CancelledError:
            self.waited.append(int((self.now() - intended) * 1e6))
            raise
        else:
            self.done += 1
            self.used.add(number)
            now = self.now()
            self.latencies.append(int((now - intended) * 1e6))
            if self._late_after and now - sent > self._late_after:
                self.late.append((number, self._start + sent, self._start + now))
        finally:
            self.in_flight -= 1

    def note(self, error: Exception) -> None:
        """Counts an error by what it says."""
        name = f"{type(error).__name__}: {error}"[:200]
        self.errors[name] = self.errors.get(name, 0) + 1

    # -- telemetry

    async def _report(self) -> None:
        asked, answered, used = 0, 0, cpu()
        while True:
            await asyncio.sleep(1.0 - self.now() % 1.0)
            recent = sorted(self.latencies[answered:])
            answered += len(recent)
            before, used = used, cpu()
            second = Second(
                at=round(self.now(), 3),
                asked=self.asked - asked,
                done=len(recent),
                queued=self.queued,
                in_flight=self.in_flight,
                mean=round(statistics.fmean(recent or (0,)) / 1000, 3),
                p50=_at(recent, 0.5) / 1000,
                p95=_at(recent, 0.95) / 1000,
                p99=_at(recent, 0.99) / 1000,
                cpu_ms=round((used - before) * 1000, 1),
                rss_mb=rss_mb(),
                sessions_used=len(self.used),
            )
            asked = self.asked
            say({"second": asdict(second)})


def _at(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


def cpu() -> float:
    """Seconds of CPU that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return round(int(file.read().split()[1]) * resource.getpagesize() / 1e6, 1)


def say(value: dict[str, Any]) -> None:
    """A line of JSON for the runner."""
    print(json.dumps(value), flush=True)
