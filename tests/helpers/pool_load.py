"""An application that works over an asyncpg pool, and must not notice anything."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from helpers.waiting import until

if TYPE_CHECKING:
    import asyncpg

__all__ = ["PoolLoad"]


class PoolLoad:
    """So many workers, with single queries and with transactions. Whatever fails is kept."""

    def __init__(self, pool: asyncpg.Pool, workers: int) -> None:
        self.pool = pool
        self.served = 0
        self.faults: list[BaseException] = []
        self.over = False
        self._tasks = [asyncio.ensure_future(self._work(number)) for number in range(workers)]

    async def _work(self, worker: int) -> None:
        for number in itertools.count():
            if self.over:
                return
            try:
                if worker % 3 == 0:
                    assert await self.pool.fetchval("SELECT $1::int", number) == number
                else:
                    async with self.pool.acquire() as session:
                        assert await session.fetchval("SELECT 1") == 1
                        async with session.transaction():
                            pids = [await session.fetchval("SELECT pg_backend_pid()") for _ in range(2)]
                            await session.execute("SELECT pg_sleep(0.01)")
                            pids.append(await session.fetchval("SELECT pg_backend_pid()"))
                        assert len(set(pids)) == 1
                self.served += 1
                if worker % 4 == 0:
                    await asyncio.sleep(0.01)
            except Exception as error:
                self.faults.append(error)

    async def progress(self, more: int = 50) -> None:
        goal = self.served + more
        await until(lambda: self.faults or self.served >= goal)
        assert not self.faults

    async def end(self) -> None:
        self.over = True
        await asyncio.gather(*self._tasks)
        assert not self.faults
