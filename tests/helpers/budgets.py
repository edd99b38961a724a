"""A teller and workers' purses in one loop: buses over socket pairs, and pools whose servers are the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from helpers.waiting import until
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.purse import Purse
from pgtrunk_gateway.fleet.teller import Teller
from pgtrunk_gateway.fleet.turnstile import Turnstile

if TYPE_CHECKING:
    from helpers.pools import Server
    from pgtrunk_gateway.pool.pool import Pool

__all__ = ["Branch", "Budgets", "budgets"]


class Branch:
    """A worker: both ends of its bus, its purse and its turnstile, and the pools that the test has given it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.ours = Bus(f"worker {index}")
        self.theirs = Bus("the supervisor")
        self.purse = Purse(self.theirs, tune=lambda _: None)
        self.turnstile = Turnstile(self.theirs)
        self.pools: list[Pool] = []

    def pool(
        self,
        server: Server,
        database: str = "shop",
        user: str = "app",
        *,
        in_database: int = 0,
        of_user: int = 0,
        **limits: Any,
    ) -> Pool:
        """A pool of this worker, under the limits of all."""
        allowance = self.purse.allowance(
            (database, user),
            size=limits.get("size", 20),
            reserve=limits.get("reserve", 0),
            minimum=limits.get("minimum", 0),
            in_database=in_database,
            of_user=of_user,
        )
        pool = server.add(database, user, allowance=allowance, **limits)
        self.pools.append(pool)
        return pool

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close(ShuttingDown())
        await self.purse.close()
        await self.turnstile.close()
        for bus in (self.theirs, self.ours):
            bus.close()
            await bus.wait_closed()


class Budgets:
    """A supervisor's teller, and workers as they come."""

    def __init__(self, patience: float = 1.0) -> None:
        self.teller = Teller(lambda: patience)
        self.branches: list[Branch] = []

    async def hire(self, index: int | None = None) -> Branch:
        """A worker more."""
        branch = Branch(len(self.branches) if index is None else index)
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self.teller.enters(branch.index, branch.ours)
        await loop.create_unix_connection(lambda: branch.ours, sock=ours)
        await loop.create_unix_connection(lambda: branch.theirs, sock=theirs)
        branch.ours.on("ping", lambda _: {})
        branch.theirs.on("ping", lambda _: {})
        self.branches.append(branch)
        return branch

    async def kill(self, branch: Branch) -> None:
        """It is gone, as far as the supervisor sees; what was its own is dropped."""
        self.branches.remove(branch)
        branch.theirs.close()
        await branch.ours.wait_closed()
        self.teller.leaves(branch.index)
        await branch.close()

    def held(self, *name: str) -> int:
        """Places of an account that are held, in all workers."""
        account = self.teller.bank.accounts.get(name)
        return 0 if account is None else account.total

    async def said(self) -> None:
        """Returns when all that was said by now has been heard, both ways, and what was answered to it."""
        for _ in range(2):
            for branch in self.branches:
                await branch.theirs.ask("ping", timeout=10)
                await branch.ours.ask("ping", timeout=10)

    async def close(self) -> None:
        for branch in self.branches:
            await branch.close()
        await self.teller.close()
        await until(lambda: not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()])


@contextlib.asynccontextmanager
async def budgets(count: int = 2, *, patience: float = 1.0) -> AsyncIterator[Budgets]:
    """A teller with so many workers."""
    all_of_it = Budgets(patience)
    try:
        for _ in range(count):
            await all_of_it.hire()
        yield all_of_it
    finally:
        await all_of_it.close()
