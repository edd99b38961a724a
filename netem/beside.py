"""What goes on beside the questions of a load: sessions that move much data, one transfer after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from netem.errors import LabError

if TYPE_CHECKING:
    import asyncpg

    from netem.plan import Run, Workload
    from netem.sessions import Way

__all__ = ["Bulk", "bulk_beside"]

_LINE = b"x" * 999 + b"\n"
_LINES = 64
"""Lines of a chunk that is sent."""


@dataclass(slots=True)
class Bulk:
    """What was moved so far. ``figures`` are those of a result; without transfers there are none."""

    octets: int = 0
    transfers: int = 0
    started: float = 0.0
    ended: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def stop(self) -> None:
        """What is under way is cut off; its octets count as far as they came. Raises what a transfer has raised."""
        self.ended = time.perf_counter()
        ended = [task for task in self.tasks if task.done()]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for task in ended:
            task.result()

    def figures(self) -> dict[str, float]:
        if not self.tasks:
            return {}
        seconds = self.ended - self.started
        rate = round(self.octets * 8 / seconds / 1e6, 2)
        return {"bulk_octets": self.octets, "bulk_transfers": self.transfers, "bulk_mbit_s": rate}


@asynccontextmanager
async def bulk_beside(run: Run, way: Way) -> AsyncIterator[Callable[[], Bulk]]:
    """Opens the extra sessions; the callable that is given starts their transfers, to be stopped by the caller."""
    workload = run.workload
    connections = [await way.connect() for _ in range(workload.beside_sessions if workload.beside else 0)]
    transfer = _TRANSFERS.get(workload.beside)

    def start() -> Bulk:
        bulk = Bulk(started=time.perf_counter())
        for connection in connections:
            assert transfer is not None
            bulk.tasks.append(asyncio.create_task(_repeat(transfer, connection, workload, bulk)))
        return bulk

    try:
        yield start
    finally:
        for connection in connections:
            connection.terminate()


Transfer = Callable[["asyncpg.Connection", "Workload", Bulk], Awaitable[None]]


async def _repeat(transfer: Transfer, connection: asyncpg.Connection, workload: Workload, bulk: Bulk) -> None:
    while True:
        await transfer(connection, workload, bulk)
        bulk.transfers += 1


async def _copy_out(connection: asyncpg.Connection, workload: Workload, bulk: Bulk) -> None:
    async def take(data: bytes) -> None:
        bulk.octets += len(data)

    lines = max(1, workload.octets // len(_LINE))
    await connection.copy_from_query(f"SELECT repeat('x', 999) FROM generate_series(1, {lines})", output=take)


async def _copy_in(connection: asyncpg.Connection, workload: Workload, bulk: Bulk) -> None:
    """Into a table that ends with the transaction, so that the next transfer finds the same database."""

    async def give() -> AsyncIterator[bytes]:
        for _ in range(max(1, workload.octets // (len(_LINE) * _LINES))):
            yield _LINE * _LINES
            bulk.octets += len(_LINE) * _LINES

    async with connection.transaction():
        await connection.execute("CREATE TEMPORARY TABLE incoming (line text) ON COMMIT DROP")
        await connection.copy_to_table("incoming", source=give())


async def _rows(connection: asyncpg.Connection, workload: Workload, bulk: Bulk) -> None:
    text: Any = await connection.fetchval(f"SELECT repeat('x', {workload.octets})")
    if len(text) != workload.octets:
        raise LabError(f"a row has {len(text)} octets, not {workload.octets}")
    bulk.octets += len(text)


_TRANSFERS: dict[str, Transfer] = {"copy-out": _copy_out, "copy-in": _copy_in, "rows": _rows}
