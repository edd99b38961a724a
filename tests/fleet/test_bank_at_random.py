"""The fleet's limits on backends: what holds in any order of things."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrunk_gateway.fleet.account import Level, Limit, Name
from pgtrunk_gateway.fleet.bank import Bank, Decision, Grant, Recall, Release

NEVER: Final = float("inf")
POOLS: Final = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
SIZES: Final = st.sampled_from([0, 1, 2, 3, 5])


class Branch:
    """A worker of the game: what its pools have, and what of it is in use."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.held: dict[tuple[str, str], int] = {}
        self.seen: dict[tuple[str, str], int] = {}
        self.wanted: dict[tuple[str, str], int] = {}
        self.asked: dict[int, Recall] = {}
        self.inbox: list[Decision] = []


class Game:
    """Three workers, four pools, and messages that take their time, each worker's in order."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.bank = Bank()
        self.limits = {name: Limit(data.draw(SIZES), data.draw(st.sampled_from([0, 1])), 0) for name in self._pools()}
        self.limits |= {name: Limit(data.draw(SIZES)) for name in self._shared()}
        self.clock = 0.0
        self.workers: list[Branch] = []
        self.dead: list[int] = []
        self.excess: dict[Name, int] = {}
        self.last = 0
        self.calm = False
        """Nothing is at random any more."""
        for _ in range(3):
            self.hire()

    @staticmethod
    def _pools() -> list[Name]:
        return [("pool", *pool) for pool in POOLS]

    @staticmethod
    def _shared() -> list[Name]:
        return [("database", "a"), ("database", "b"), ("user", "x"), ("user", "y")]

    @staticmethod
    def names(pool: tuple[str, str]) -> list[Name]:
        return [("pool", *pool), ("database", pool[0]), ("user", pool[1])]

    def hire(self) -> None:
        self.last += 1
        self.workers.append(Branch(self.last))

    def pick(self, several: Sequence[Any]) -> Any:
        return several[0 if self.calm else self.data.draw(st.integers(0, len(several) - 1))]

    def post(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            for worker in self.workers:
                if worker.number == decision.worker:
                    worker.inbox.append(decision)

    # -- what can happen

    def step(self) -> None:
        worker = self.pick(self.workers)
        match self.data.draw(st.integers(0, 11)):
            case 0 | 1 | 2:
                self.say(worker, self.pick(POOLS), self.data.draw(st.integers(0, 4)))
            case 3 | 4 | 5 | 6:
                self.read(worker)
            case 7 | 8 | 9:
                self.end_one(worker)
            case 10:
                self.change()
            case 11:
                self.kill(worker)

    def say(self, worker: Branch, pool: tuple[str, str], count: int) -> None:
        self.clock += 1
        worker.wanted[pool] = count
        late = self.data.draw(st.integers(0, count))
        level = Level(
            count=count,
            late=late,
            since=self.clock if count else NEVER,
            pressing=bool(count) and self.data.draw(st.booleans()),
        )
        limits = [(name, self.limits[name]) for name in self.names(pool)]
        self.post(self.bank.want(worker.number, limits, level, worker.seen.get(pool, 0)))

    def read(self, worker: Branch) -> None:
        if not worker.inbox:
            return
        match worker.inbox.pop(0):
            case Grant(_, granted, count, _):
                pool = granted[0][1], granted[0][2]
                worker.seen[pool] = worker.seen.get(pool, 0) + count
                used = min(count, worker.wanted.get(pool, 0))
                worker.wanted[pool] = worker.wanted.get(pool, 0) - used
                worker.held[pool] = worker.held.get(pool, 0) + used
                if count > used:
                    self.post(self.bank.give_back(worker.number, self.names(pool), count - used))
            case Recall(_, number, _, _, again) as recall if again and number not in worker.asked:
                pass
            case Recall(_, number, _, _, _) as recall:
                worker.asked[number] = recall
                if not self.give(worker, recall):
                    self.post(self.bank.answer(number, closing=False))
            case Release(_, number):
                worker.asked.pop(number, None)
            case _:
                pass

    def give(self, worker: Branch, recall: Recall) -> bool:
        """Perhaps it has something idle."""
        fit = [pool for pool, count in worker.held.items() if count and recall.name in self.names(pool)]
        if not fit or self.calm or not self.data.draw(st.booleans()):
            return False
        del worker.asked[recall.number]
        self.post(self.bank.answer(recall.number, closing=True))
        self.end(worker, self.pick(fit))
        return True

    def end_one(self, worker: Branch) -> None:
        """One of its backends ends, perhaps because it was asked for."""
        pools = [pool for pool, count in worker.held.items() if count]
        if not pools:
            return
        pool = self.pick(pools)
        for number, recall in list(worker.asked.items()):
            if recall.name in self.names(pool):
                del worker.asked[number]
                self.post(self.bank.answer(number, closing=True))
                break
        self.end(worker, pool)

    def end(self, worker: Branch, pool: tuple[str, str]) -> None:
        worker.held[pool] -= 1
        self.post(self.bank.give_back(worker.number, self.names(pool)))

    def change(self) -> None:
        name = self.pick(list(self.limits))
        limit = Limit(self.data.draw(SIZES), self.limits[name].reserve)
        self.limits[name] = limit
        account = self.bank.accounts.get(name)
        self.excess[name] = 0 if account is None else account.total
        self.post(self.bank.limit({name: limit}))

    def kill(self, worker: Branch) -> None:
        self.workers.remove(worker)
        self.post(self.bank.died(worker.number))
        self.dead.append(worker.number)
        self.hire()

    def bury(self) -> None:
        if self.dead:
            self.post(self.bank.bury(self.dead.pop(0)))

    # -- what holds

    def check(self) -> None:
        for name, account in self.bank.accounts.items():
            assert account.total == sum(account.held.values())
            assert all(count > 0 for count in account.held.values())
            limit = self.limits[name]
            before = self.excess.get(name, 0)
            if limit.size:
                # What was there before a limit became smaller may stay for a while; nothing is added to it.
                assert account.total <= max(limit.size + limit.reserve, before)
                self.excess[name] = min(before, account.total)
        for pool in POOLS:
            held = self.bank.accounts.get(("pool", *pool))
            for worker in self.workers:
                under_way = sum(
                    each.count for each in worker.inbox if isinstance(each, Grant) and each.names[0] == ("pool", *pool)
                )
                theirs = worker.held.get(pool, 0) + under_way
                assert theirs == (held.held.get(worker.number, 0) if held is not None else 0)
        for shared in self._shared():
            both = self.bank.accounts.get(shared)
            total = sum(
                other.total
                for name, other in self.bank.accounts.items()
                if name[0] == "pool" and name[1 if shared[0] == "database" else 2] == shared[1]
            )
            assert (both.total if both is not None else 0) == total

    def serve_everybody(self) -> None:
        """No new wishes; what is held ends by and by."""
        self.calm = True
        for _ in range(2000):
            self.check()
            for worker in self.workers:
                while worker.inbox:
                    self.read(worker)
            while self.dead:
                self.bury()
            waiting = [worker for worker in self.workers for count in worker.wanted.values() if count]
            held = [worker for worker in self.workers if any(worker.held.values())]
            if not waiting and not held and not any(worker.inbox for worker in self.workers):
                return
            for worker in held:
                self.end_one(worker)
        raise AssertionError("somebody waits still")


@settings(max_examples=150)
@given(st.data())
def test_no_limit_is_exceeded_and_everybody_is_granted_in_any_order_of_things(data: st.DataObject) -> None:
    game = Game(data)
    for _ in range(data.draw(st.integers(0, 60))):
        game.step()
        game.check()
        if data.draw(st.integers(0, 9)) == 0:
            game.bury()
    game.serve_everybody()
    assert not [account for account in game.bank.accounts.values() if account.total]
    for worker in game.workers:
        for pool in POOLS:
            game.say(worker, pool, 0)
            worker.inbox.clear()
    assert not game.bank.accounts
