"""Pools of three workers under the limits of all, and everything that can happen to them, at random.

After each step no limit is exceeded and what the bank has counted is there; in the end everybody who waits is served,
and nothing is held any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.budgets import Branch, Budgets, budgets
from helpers.pools import NoteTaker, Server, answer
from helpers.waiting import until
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, GatewayError, ShuttingDown
from pgtrunk_gateway.pool import parting
from pgtrunk_gateway.pool.walsender import Replication, Walsender

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.pool import Pool

FAILURES: Final[tuple[GatewayError | None, ...]] = (
    None, None, None, None,
    BackendUnavailable("connection refused"),
    BackendRefused("too many connections", sqlstate="53300"),
)  # fmt: skip


class Game:
    """Two databases, two users, three workers, and a seed."""

    def __init__(self, server: Server, fleet: Budgets, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = server
        self.fleet = fleet
        choice = self.random.choice
        self.limits: dict[str, Any] = {
            "size": choice([1, 2, 3]),
            "reserve": choice([0, 1]),
            "minimum": choice([0, 0, 1]),
            "in_database": choice([0, 2, 4]),
            "of_user": choice([0, 2, 4]),
        }
        self.more: dict[str, Any] = {
            "reserve_timeout": 0.005,
            "retry": 0.005,
            "lifetime": choice([0.0, 3600.0]),
            "check_query": choice([None, ""]),
            "check_delay": choice([0.0, 30.0]),
            "connect_query": choice([None, "select 1"]),
        }
        self.pools: dict[Branch, list[Pool]] = {}
        for branch in fleet.branches:
            self.furnish(branch)
        self.askers: list[NoteTaker] = []
        self.replicating: dict[asyncio.Task[Walsender], Pool] = {}

    def furnish(self, branch: Branch) -> None:
        self.pools[branch] = [
            branch.pool(self.server, database, user, **self.limits, **self.more) for database in "ab" for user in "xy"
        ]

    # -- what can happen

    @property
    def pool(self) -> Pool:
        """Any."""
        return self.random.choice(self.random.choice(list(self.pools.values())))

    @property
    def holders(self) -> list[NoteTaker]:
        return [asker for asker in self.askers if asker.backend is not None]

    def errands(self) -> list[Backend]:
        every = [backend for pools in self.pools.values() for pool in pools for backend in pool.backends.values()]
        return [backend for backend in every if backend.replies.queue and not isinstance(backend, Walsender)]

    def ask(self) -> None:
        asker = NoteTaker(self.pool)
        self.askers.append(asker)
        if not asker.take():
            asker.wait(1000)

    def leave(self) -> None:
        waiting = [asker for asker in self.askers if asker in asker.pool.waiting]
        if waiting:
            asker = self.random.choice(waiting)
            asker.pool.leave(asker)
            self.askers.remove(asker)

    def give_back(self) -> None:
        if self.holders:
            holder = self.random.choice(self.holders)
            self.askers.remove(holder)
            holder.give_back()

    def drop(self) -> None:
        if self.holders:
            holder = self.random.choice(self.holders)
            self.askers.remove(holder)
            assert holder.backend is not None
            holder.backend.drop("client vanished")

    def replicate(self) -> None:
        pool = self.pool
        replicating = pool.replicate(Replication.LOGICAL, {"replication": "database"})
        self.replicating[asyncio.get_running_loop().create_task(replicating)] = pool

    def end_replication(self) -> None:
        if self.replicating:
            task = self.random.choice(list(self.replicating))
            del self.replicating[task]
            self.leave_replication(task)

    @staticmethod
    def leave_replication(task: asyncio.Task[Walsender]) -> None:
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            task.result().leave("done")

    def lose(self) -> None:
        every = [backend for pools in self.pools.values() for pool in pools for backend in pool.backends.values()]
        if every:
            self.random.choice(every).connection_lost(None)
            self.askers = [asker for asker in self.askers if asker.lost is None]

    def log_in(self) -> None:
        under_way = [login for login in self.server.logins if not login.done()]
        if under_way:
            self.random.choice(under_way).set_result(self.random.choice(FAILURES))

    def finish_errand(self) -> None:
        errands = self.errands()
        if errands:
            answer(self.random.choice(errands), error=self.random.choice(["", "", "no"]))

    def hang_up(self) -> None:
        """Postgres ends something that is about to."""
        parting = [each for each in self.server.transports if isinstance(each.protocol, _HangUp)]
        if parting:
            transport = self.random.choice(parting)
            self.server.transports.remove(transport)
            transport.get_protocol().connection_lost(None)

    def pause(self) -> None:
        self.pool.pause()

    def resume(self) -> None:
        self.pool.resume()

    def reconnect(self) -> None:
        self.pool.reconnect()

    def kill_pool(self) -> None:
        pool = self.pool
        pool.kill(ShuttingDown())
        self.askers = [asker for asker in self.askers if asker.refused is None and asker.lost is None]

    def shut(self) -> None:
        """A pool goes, and another of its name comes."""
        branch = self.random.choice(list(self.pools))
        at = self.random.randrange(4)
        old = self.pools[branch][at]
        old.shut(ShuttingDown(), gently=self.random.choice([False, True]))
        self.askers = [asker for asker in self.askers if asker.pool is not old]
        # One that has not begun would begin with a pool that is closed.
        for task in [task for task, pool in self.replicating.items() if pool is old]:
            del self.replicating[task]
            self.leave_replication(task)
        self.pools[branch][at] = branch.pool(self.server, old.key.database, old.key.user, **self.limits, **self.more)

    # -- what holds

    def check(self) -> None:
        size, reserve = self.limits["size"], self.limits["reserve"]
        for name, account in self.fleet.teller.bank.accounts.items():
            limits = {"pool": size + reserve, "database": self.limits["in_database"], "user": self.limits["of_user"]}
            limit = limits[name[0]]
            assert not limit or account.total <= limit
            pools = [pool for pools in self.pools.values() for pool in pools if _counts(name, pool)]
            # Places that have not been heard of yet, or are parted with, are no backends.
            assert sum(pool.count for pool in pools) <= account.total
        for holder in self.holders:
            assert holder.backend is not None
            assert holder.backend.holder is holder

    async def serve_everybody(self) -> None:
        """All goes well from now on."""
        for pools in self.pools.values():
            for pool in pools:
                pool.resume()

        def step() -> bool:
            for login in self.server.logins:
                if not login.done():
                    login.set_result(None)
            for backend in self.errands():
                answer(backend)
            for holder in self.holders:
                self.askers.remove(holder)
                holder.give_back()
            for task in [task for task in self.replicating if task.done()]:
                del self.replicating[task]
                self.leave_replication(task)
            for _ in range(len(self.server.transports)):
                self.hang_up()
            self.askers = [asker for asker in self.askers if asker.refused is None]
            self.check()
            return not self.askers and not self.replicating

        await until(step, 25)


_HangUp: Final = parting.HangUp


def _counts(name: tuple[str, ...], pool: Pool) -> bool:
    own = {"pool": (pool.key.database, pool.key.user), "database": (pool.key.database,), "user": (pool.key.user,)}
    return name[1:] == own[name[0]]


@pytest.mark.parametrize("seed", range(25))
async def test_everybody_is_served_whatever_happens(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async def told(*_: object) -> None:
        """Nobody is there to be told of cancels."""

    monkeypatch.setattr(parting.Parting, "_cancel", told)
    monkeypatch.setattr(parting, "EXIT", 0.002)
    monkeypatch.setattr("pgtrunk_gateway.fleet.share._PRESSING", 0.002)
    monkeypatch.setattr("pgtrunk_gateway.fleet.purse._LOOK", 0.005)
    monkeypatch.setattr("pgtrunk_gateway.fleet.purse._RESTED", 0.005)
    monkeypatch.setattr("pgtrunk_gateway.fleet.purse._TENURE", 0.002)
    server = Server(monkeypatch)
    async with budgets(3) as fleet:
        game = Game(server, fleet, seed)
        actions: list[Callable[[], None]] = [
            *[game.ask] * 6, *[game.give_back] * 4, *[game.log_in] * 5, *[game.finish_errand] * 3, *[game.hang_up] * 3,
            *[game.replicate] * 2, game.end_replication, game.leave, game.drop, game.lose,
            game.pause, game.resume, game.resume, game.resume, game.reconnect, game.kill_pool, game.shut,
        ]  # fmt: skip
        for _ in range(250):
            game.random.choice(actions)()
            game.check()
            if game.random.random() < 0.4:
                await asyncio.sleep(game.random.choice([0, 0, 0.001, 0.006]))
                game.check()
        await game.serve_everybody()
        for branch in fleet.branches:
            for pool in branch.pools:
                pool.shut(ShuttingDown())

        def nothing_is_held() -> bool:
            for _ in range(len(server.transports)):
                game.hang_up()
            return not any(account.total for account in fleet.teller.bank.accounts.values())

        await until(nothing_is_held, 20)
        await fleet.said()
        assert not fleet.teller.bank.accounts
        assert not any(branch.purse.shares or branch.purse._asked for branch in fleet.branches)
