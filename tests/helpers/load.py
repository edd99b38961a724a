"""Sessions that ask without end while something is done to their gateway, and what became of their queries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from helpers.waiting import until

if TYPE_CHECKING:
    from types import TracebackType

    from helpers.gateways import LocalGateway, Way

__all__ = ["Load"]

_ENDS: Final = 20.0
"""Seconds in which every query that was asked must have been answered."""


class Load:
    """``async with Load(gateway, ways)``: a session or more by each way, each with one query after the other.

    Every other one is a transaction of two, in which both must see the same backend. At the end whatever went wrong
    fails the test.
    """

    def __init__(self, gateway: LocalGateway, ways: tuple[Way, ...], sessions: int = 2, **options: Any) -> None:
        self.answers = 0
        self.faults: list[Exception] = []
        self._gateway = gateway
        self._ways = ways * sessions
        self._options = options
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        sessions = [await self._gateway.connect(way, **self._options) for way in self._ways]
        self._tasks = [asyncio.create_task(self._ask(session)) for session in sessions]
        await self.progress()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop = True
        _, stuck = await asyncio.wait(self._tasks, timeout=_ENDS)
        sessions = [repr(session) for session in self._gateway.gateway.context.sessions] if stuck else []
        for task in stuck:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            assert not self.faults
            assert not stuck, f"no answer for {len(stuck)} of them; {sessions}"

    async def progress(self, answers: int = 20) -> None:
        """Returns when there have been that many more, or something went wrong."""
        goal = self.answers + answers
        await until(lambda: self.answers >= goal or self.faults)

    async def stand_still(self) -> None:
        """Returns when nobody has been answered for a while."""
        async with asyncio.timeout(_ENDS):
            answers = -1
            while answers != self.answers:
                answers = self.answers
                await asyncio.sleep(0.2)

    async def _ask(self, session: asyncpg.Connection) -> None:
        number = 0
        try:
            while not self._stop:
                number += 1
                assert await session.fetchval("SELECT $1::int", number) == number
                async with session.transaction():
                    pids = [await session.fetchval("SELECT pg_backend_pid()") for _ in range(2)]
                    assert pids[0] == pids[1]
                self.answers += 1
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, AssertionError) as fault:
            self.faults.append(fault)
