"""Who may open how many connections to Postgres: the fleet's limits, over all workers. Pure.

A worker that wants to open one asks for a place; what it has and lends to its sessions is its own affair. Each place is
one on every account of its pool: on the pool's own, on its database's and on its user's. Rules:

1.  A place is held from its grant until Postgres has ended the connection. A grant takes a place on all accounts of a
    pool or on none, and none of them is ever above its limit by a grant.
2.  Who has fewest places in its pool goes first, and of those who has waited longest, by one place; then all are looked
    at anew. Who comes behind leaves a place for each that goes before it, on every account that both need: so the first
    is granted as soon as its accounts have room, whatever comes meanwhile.
3.  Places of the reserve are for who has waited long. Places up to the minimum are for whoever asks for them, behind
    all who wait, and as many are kept in all workers together as the minimum says.
4.  Where an account is full, its holders are asked for a place, one after the other, those with most first; a holder
    that has nothing idle remembers it. The pool's own account is asked alone where it is full: its places are places on
    all others too.
5.  Something idle is given up for whoever's wait is pressing. What is in use in the holder, so that sessions wait there
    too, goes to who waits since longer: where that has nothing at all and needs nothing else, from any holder; else
    within a pool, from the one with most, if it has at least two more: so counts even out, and stay so.
6.  Where a pool has become smaller, what it has too much is given up as soon as it is free.
7.  What a worker held that has died is held until nothing of it can be left in Postgres.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgtrunk_gateway.fleet.account import Account, Level, Limit, Name, Recalled, Want
from pgtrunk_gateway.fleet.dues import POOL, dues

__all__ = ["Bank", "Decision", "Grant", "Keep", "Recall", "Release"]

_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Grant:
    """``worker`` may open ``count`` more for the pool with these accounts, ``reserve`` of them from the reserve."""

    worker: int
    names: tuple[Name, ...]
    count: int
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Recall:
    """``worker`` is to give up a place on this account: :class:`~pgtrunk_gateway.fleet.account.Recalled`. ``again``:
    it knows that, if it has not given one up by now, and only ``since`` is another one."""

    worker: int
    number: int
    name: Name
    since: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """``worker`` may keep what it was asked for."""

    worker: int
    number: int


@dataclass(frozen=True, slots=True)
class Keep:
    """``worker`` is not to close this many of the pool of this name for being idle."""

    worker: int
    name: Name
    count: int


Decision = Grant | Recall | Release | Keep


class Bank:
    """Workers are numbers that never come back: one that is started again is another one."""

    def __init__(self) -> None:
        self.accounts: dict[Name, Account] = {}
        """Those that somebody holds places of, or waits for."""
        self._wants: dict[tuple[int, Name], Want] = {}
        self._recalled: dict[int, Account] = {}
        self._gone: set[int] = set()
        """Workers that have died, and whose places are held still."""
        self._numbers = itertools.count(1)

    # -- what happens --------------------------------------------------------------------------------------------------

    def want(self, worker: int, limits: Sequence[tuple[Name, Limit]], level: Level, seen: int) -> list[Decision]:
        """A pool of ``worker`` wants ``level``. ``limits``: its accounts, its own first; what they allow counts where
        they are not known. ``seen``: how many places it was granted by now, since ``worker`` began."""
        accounts = tuple(self._account(name, limit) for name, limit in limits)
        key = worker, accounts[0].name
        want = self._wants.get(key)
        if want is None:
            want = self._wants[key] = Want(worker, accounts, next(self._numbers), seen)
            for account in accounts:
                account.wants[want] = None
        want.set(level, seen)
        if not want.count and not want.short and want.granted == seen:
            self._drop(want)
        return self._decide(accounts)

    def give_back(self, worker: int, names: Sequence[Name], count: int = 1) -> list[Decision]:
        """``worker`` has so many connections of a pool less, or makes no use of so many grants."""
        accounts = [self.accounts[name] for name in names]
        for account in accounts:
            account.put(worker, count)
            done = [each.number for each in account.recalled.values() if each.closing and each.worker == worker]
            for number in done[:count]:
                self._forget(number)
        want = self._wants.get((worker, names[0]))
        if want is not None and not want.held and not want.count and not want.short:
            self._drop(want)
        return self._decide(accounts)

    def answer(self, number: int, *, closing: bool) -> list[Decision]:
        """Whether a worker gives up now what it was asked for; what it does not, it may give up later."""
        account = self._recalled.get(number)
        if account is None:
            return []
        recalled = account.recalled[number]
        recalled.answered = True
        recalled.closing = recalled.closing or closing
        return self._decide([account])

    def limit(self, limits: Mapping[Name, Limit]) -> list[Decision]:
        """Accounts allow something else from now on. The same again does nothing."""
        changed = []
        for name, limit in limits.items():
            account = self.accounts.get(name)
            if account is not None and account.limit != limit:
                account.limit = limit
                changed.append(account)
        return self._decide(changed)

    def died(self, worker: int) -> list[Decision]:
        """``worker`` has gone. What it held is held until :meth:`bury`."""
        self._gone.add(worker)
        touched = [account for account in self.accounts.values() if worker in account.held]
        for want in [want for key, want in self._wants.items() if key[0] == worker]:
            touched += want.accounts
            self._drop(want)
        for account in touched:
            account.kept.pop(worker, None)
            for number in [each.number for each in account.recalled.values() if each.worker == worker]:
                self._forget(number)
        return self._decide(touched)

    def bury(self, worker: int) -> list[Decision]:
        """Nothing is left in Postgres of a worker that has died."""
        self._gone.discard(worker)
        touched = [account for account in self.accounts.values() if worker in account.held]
        for account in touched:
            account.put(worker, account.held[worker])
        return self._decide(touched)

    # -- accounts ------------------------------------------------------------------------------------------------------

    def _account(self, name: Name, limit: Limit) -> Account:
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = Account(name, limit)
        return account

    def _drop(self, want: Want) -> None:
        del self._wants[want.worker, want.accounts[0].name]
        for account in want.accounts:
            del account.wants[want]

    def _forget(self, number: int) -> None:
        account = self._recalled.pop(number)
        del account.recalled[number]

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _decide(self, touched: Iterable[Account]) -> list[Decision]:
        concerned = dict.fromkeys(touched)
        # What one account lets somebody have is a matter of the others that he needs.
        for account in list(concerned):
            concerned |= dict.fromkeys(each for want in account.wants for each in want.accounts)
        decisions: list[Decision] = [*self._grants(concerned)]
        for account in concerned:
            if account.name[0] == POOL:
                decisions += self._keeps(account)
            decisions += self._recalls(account)
        for account in concerned:
            if not account.total and not account.wants:
                self.accounts.pop(account.name, None)
        return decisions

    def _grants(self, concerned: Iterable[Account]) -> list[Grant]:
        wants = dict.fromkeys(want for account in concerned for want in account.wants)
        granted: dict[Want, list[int]] = {}
        # One by one: each changes who is next.
        while any(self._try(want, granted) for want in sorted(wants, key=lambda want: want.rank) if want.count):
            pass
        short = sorted((want for want in wants if want.short), key=lambda want: want.rank)
        while [want for want in short if self._try_short(want, granted)]:
            pass
        return [Grant(want.worker, want.names, *counts) for want, counts in granted.items()]

    def _try(self, want: Want, granted: dict[Want, list[int]]) -> bool:
        own, *others = want.accounts
        if not want.count or any(account.room() - account.older(want) < 1 for account in others):
            return False
        reserve = own.room() - own.older(want) < 1
        if reserve and (not want.late or own.room(late=True) - own.older(want, late=True) < 1):
            return False
        want.count -= 1
        want.late = max(0, want.late - 1)
        self._take(want, granted, reserve=reserve)
        return True

    def _try_short(self, want: Want, granted: dict[Want, list[int]]) -> bool:
        own = want.accounts[0]
        if not want.short or self._living(own) >= own.limit.minimum:
            return False
        if any(account.room() - sum(bool(each.count) for each in account.wants) < 1 for account in want.accounts):
            return False
        want.short -= 1
        self._take(want, granted, reserve=False)
        return True

    def _take(self, want: Want, granted: dict[Want, list[int]], *, reserve: bool) -> None:
        for account in want.accounts:
            account.take(want.worker)
        want.granted += 1
        counts = granted.setdefault(want, [0, 0])
        counts[0] += 1
        counts[1] += reserve

    def _living(self, account: Account) -> int:
        return account.total - sum(account.held.get(worker, 0) for worker in self._gone)

    def _keeps(self, account: Account) -> list[Keep]:
        """Rule 3: who keeps how much of the minimum. As few as possible hear of another number."""
        before, account.kept = account.kept, {}
        left = account.limit.minimum
        workers = [worker for worker in account.held if worker not in self._gone]
        for worker in workers:
            keeps = min(before.get(worker, 0), account.held[worker], left)
            account.kept[worker] = keeps
            left -= keeps
        for worker in workers:
            more = min(account.held[worker] - account.kept[worker], left)
            account.kept[worker] += more
            left -= more
        account.kept = {worker: count for worker, count in account.kept.items() if count}
        return [
            Keep(worker, account.name, account.kept.get(worker, 0))
            for worker in {**before, **account.kept}
            if account.kept.get(worker, 0) != before.get(worker, 0)
        ]

    # -- places that are asked back ------------------------------------------------------------------------------------

    def _recalls(self, account: Account) -> list[Recall | Release]:
        excess = account.excess if account.name[0] == POOL else 0
        if not account.wants and not account.recalled and not excess:
            return []
        blocked = [want for want in account.wants if want.count and want.pressing and account in want.in_the_way]
        needed = _needed(account, blocked, excess) - sum(each.closing for each in account.recalled.values())
        due = dues(account, blocked, [worker for worker in account.held if worker not in self._gone])
        decisions: list[Recall | Release] = []
        marks: dict[int, int] = {}
        for recalled in [each for each in account.recalled.values() if not each.closing]:
            worker = recalled.worker
            since = _since(due, worker, marks.get(worker, 0))
            marks[worker] = marks.get(worker, 0) + 1
            if marks[worker] > needed:
                self._forget(recalled.number)
                decisions.append(Release(worker, recalled.number))
            elif since != recalled.since:
                recalled.since = since
                decisions.append(Recall(worker, recalled.number, account.name, since, again=True))
        asked = sum(not each.answered for each in account.recalled.values() if not each.closing)
        while asked < needed and (donor := self._donor(account, blocked, needed)) is not None:
            since = _since(due, donor, marks.get(donor, 0))
            marks[donor] = marks.get(donor, 0) + 1
            number = next(self._numbers)
            account.recalled[number] = Recalled(number, donor, since)
            self._recalled[number] = account
            decisions.append(Recall(donor, number, account.name, since))
            asked += 1
        return decisions

    def _donor(self, account: Account, blocked: Sequence[Want], needed: int) -> int | None:
        """Whom to ask next: those with most first."""
        donors = [
            (-held, worker)
            for worker, held in account.held.items()
            if worker not in self._gone
            and account.marks(worker) < min(held, needed + account.closing(worker))
            and (account.excess or any(_can_give(account, worker, want) for want in blocked))
        ]
        return min(donors)[1] if donors else None


def _needed(account: Account, blocked: Sequence[Want], excess: int) -> int:
    """How many places are to be given up."""
    if not blocked:
        return excess
    room = account.room(late=any(want.late for want in blocked))
    return max(excess, sum(want.count for want in blocked) - min(0, int(room)))


def _since(due: Mapping[int, Sequence[float]], worker: int, before: int) -> float:
    """What the next place that ``worker`` is asked for goes before, if it was asked for so many."""
    sinces = due.get(worker, ())
    return sinces[before] if before < len(sinces) else _NEVER


def _can_give(account: Account, worker: int, want: Want) -> bool:
    """Whether something idle of ``worker`` is of use to ``want``. Of its own pool nothing is idle, as it waits."""
    return worker != want.worker or account is not want.accounts[0] or want.own
