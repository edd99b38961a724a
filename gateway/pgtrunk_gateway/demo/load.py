"""The demonstration's queries: sessions that each ask one thing after the other, timed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg
from hdrh.histogram import HdrHistogram

__all__ = ["LoadResult", "prepare", "run"]

_ROWS = 10_000
_QUERY = "SELECT balance FROM accounts WHERE id = $1"
_LONGEST = 60 * 1000 * 1000
"""Microseconds; the longest latency that is told apart."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """``latencies`` in microseconds."""

    queries: int
    seconds: float
    latencies: HdrHistogram

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.queries / self.seconds

    def percentile(self, percent: float) -> float:
        """Milliseconds."""
        return float(self.latencies.get_value_at_percentile(percent)) / 1000


async def prepare(pool: asyncpg.Pool) -> None:
    """Makes the table that is asked for."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)")
        await connection.copy_records_to_table("accounts", records=[(n, n * 7) for n in range(_ROWS)])


async def run(pool: asyncpg.Pool, *, sessions: int, queries: int, progress: Callable[[], None]) -> LoadResult:
    """Point selects, each answer checked, by ``sessions`` at a time. ``progress`` is called for each of them."""
    latencies = HdrHistogram(1, _LONGEST, 3)
    remaining = queries

    async def session() -> None:
        nonlocal remaining
        async with pool.acquire() as connection:
            statement = await connection.prepare(_QUERY)
            while remaining > 0:
                remaining -= 1
                number = random.randrange(_ROWS)
                begin = time.perf_counter()
                balance = await statement.fetchval(number)
                latencies.record_value(int((time.perf_counter() - begin) * 1_000_000))
                if balance != number * 7:
                    raise AssertionError(f"account {number} has {balance}, not {number * 7}")
                progress()

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(sessions):
            group.create_task(session())
    return LoadResult(queries, time.perf_counter() - begin, latencies)
