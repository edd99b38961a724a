"""A session that has nothing to do with any of it, and must not notice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from helpers.waiting import until

if TYPE_CHECKING:
    import asyncpg

__all__ = ["OTHER", "Bystander"]

OTHER: Final = "bystander"
"""The database that it asks for: the tests' own, by another pool."""
_PAUSE: Final = 0.05
_MORE: Final = 3


class Bystander:
    """Runs one transaction after the other; what fails is kept, and raised when somebody asks."""

    def __init__(self, session: asyncpg.Connection) -> None:
        self._session = session
        self._count = 0
        self._work: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        self._session.terminate()

    def _begin(self) -> None:
        self._is_resting = False
        self._work = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._is_resting:
            async with self._session.transaction():
                assert await self._session.fetchval("SELECT $1::int", self._count) == self._count
            self._count += 1
            await asyncio.sleep(_PAUSE)

    async def rest(self) -> None:
        """Ends the transaction that it is in, and asks nothing more."""
        self._is_resting = True
        assert self._work is not None
        await self._work

    def go_on(self) -> None:
        self._begin()

    async def goes_on(self) -> None:
        """Returns when it has done some more work; fails with what it met."""
        work, enough = self._work, self._count + _MORE
        assert work is not None
        await until(lambda: work.done() or self._count >= enough)
        if work.done():
            await work
            raise AssertionError("the bystander has stopped")

    async def leave(self) -> None:
        await self.rest()
        await self._session.close()

    async def pid(self) -> int:
        """Of its backend, which is its pool's only one."""
        await self.rest()
        pid: int = await self._session.fetchval("SELECT pg_backend_pid()")
        self._begin()
        return pid
