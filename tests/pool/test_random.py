"""Pools that share limits and a server, and everything that can happen to them, at random.

After each step the counts are right and no limit is exceeded; in the end everybody who waits is served.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from helpers.pools import NoteTaker, Server, answer
from helpers.waiting import until
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, GatewayError, ShuttingDown
from pgtrunk_gateway.pool.accounts import Account
from pgtrunk_gateway.pool.backend import Backend, BackendState
from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.walsender import Replication, Walsender

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool

FAILURES: tuple[GatewayError | None, ...] = (
    None, None, None, None,
    BackendUnavailable("connection refused"),
    BackendRefused("starting up", sqlstate="57P03"),
    BackendRefused("too many connections", sqlstate="53300"),
)  # fmt: skip


class Game:
    """Two databases, three users, and a seed. ``check_query`` and its like make every third pool different."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = Server(monkeypatch)
        self.host = Host(lambda: 0.001)
        self.databases = {name: Account("max_db_connections", self.random.choice([0, 1, 2, 4])) for name in "ab"}
        self.users = {name: Account("max_user_connections", self.random.choice([0, 1, 2, 4])) for name in "xyz"}
        self.pools = [self._pool(database, user) for database in self.databases for user in self.users]
        self.askers: list[NoteTaker] = []
        self.replicating: list[asyncio.Task[Walsender]] = []

    def _pool(self, database: str, user: str) -> Pool:
        choice = self.random.choice
        return self.server.add(
            database,
            user,
            host=self.host,
            accounts=(self.databases[database], self.users[user]),
            size=choice([1, 2, 3]),
            minimum=choice([0, 0, 1]),
            reserve=choice([0, 1]),
            reserve_timeout=0.001,
            retry=0.001,
            lifetime=choice([0.0, 3600.0]),
            check_query=choice([None, ""]),
            check_delay=choice([0.0, 30.0]),
            connect_query=choice([None, "select 1"]),
            round_robin=choice([False, True]),
        )

    # -- what can happen

    @property
    def accounts(self) -> list[Account]:
        return [*self.databases.values(), *self.users.values()]

    @property
    def holders(self) -> list[NoteTaker]:
        return [asker for asker in self.askers if asker.backend is not None]

    def errands(self) -> list[Backend]:
        every = [backend for pool in self.pools for backend in pool.backends.values()]
        return [backend for backend in every if backend.replies.queue and not isinstance(backend, Walsender)]

    def ask(self) -> None:
        asker = NoteTaker(self.random.choice(self.pools))
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

    def reset(self) -> None:
        if self.holders:
            holder = self.random.choice(self.holders)
            self.askers.remove(holder)
            backend, holder.backend = holder.backend, None
            assert backend is not None
            backend.reset("DISCARD ALL", 1000)

    def replicate(self) -> None:
        pool = self.random.choice(self.pools)
        replicating = pool.replicate(Replication.LOGICAL, {"replication": "database"})
        self.replicating.append(asyncio.get_running_loop().create_task(replicating))

    def end_replication(self) -> None:
        """In whatever state it is."""
        if self.replicating:
            task = self.random.choice(self.replicating)
            self.replicating.remove(task)
            self.leave_replication(task)

    @staticmethod
    def leave_replication(task: asyncio.Task[Walsender]) -> None:
        if not task.done():
            task.cancel()
        elif task.exception() is None:
            task.result().leave("done")

    def lose(self) -> None:
        every = [backend for pool in self.pools for backend in pool.backends.values()]
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

    def pause(self) -> None:
        self.random.choice(self.pools).pause()

    def resume(self) -> None:
        self.random.choice(self.pools).resume()

    def reconnect(self) -> None:
        self.random.choice(self.pools).reconnect()

    def change(self) -> None:
        self.random.choice(self.accounts).change(self.random.choice([0, 1, 2, 4]))

    # -- what holds

    def check(self) -> None:
        for pool in self.pools:
            every = set(pool.backends.values())
            resting = [*pool.idle, *pool.stale]
            assert len(set(resting)) == len(resting)
            assert set(resting) <= every
            assert all(backend.holder is None and backend.state is BackendState.OPEN for backend in resting)
            assert pool.count <= pool.limits.size + pool.limits.reserve
            assert not pool.paused or not resting
        for database, account in self.databases.items():
            assert account.count == sum(pool.count for pool in self.pools if pool.key.database == database)
        for user, account in self.users.items():
            assert account.count == sum(pool.count for pool in self.pools if pool.key.user == user)
        for holder in self.holders:
            assert holder.backend is not None
            assert holder.backend.holder is holder

    async def serve_everybody(self) -> None:
        """All goes well from now on."""
        for pool in self.pools:
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
                self.replicating.remove(task)
                self.leave_replication(task)
            self.check()
            return not self.askers and not self.replicating

        await until(step, 20)


@pytest.mark.parametrize("seed", range(40))
async def test_everybody_is_served_whatever_happens(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    game = Game(monkeypatch, seed)
    actions: list[Callable[[], None]] = [
        *[game.ask] * 6, *[game.give_back] * 4, *[game.log_in] * 5, *[game.finish_errand] * 3,
        *[game.replicate] * 2, game.end_replication, game.leave, game.reset, game.lose,
        game.pause, game.resume, game.resume, game.reconnect, game.change,
    ]  # fmt: skip
    for _ in range(300):
        game.random.choice(actions)()
        game.check()
        if game.random.random() < 0.3:
            await game.server.settle()
            game.check()
    await game.serve_everybody()
    for pool in (*game.pools, game.server.pool):
        await pool.close(ShuttingDown())
    assert [account.count for account in game.accounts] == [0] * 5
    assert not any(account.members or account.blocked for account in game.accounts)
