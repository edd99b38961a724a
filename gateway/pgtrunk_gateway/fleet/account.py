"""One limit of the fleet's on connections to Postgres: who holds how much of it, and who waits for more. Pure.

An account is a name, such as ``("pool", "shop", "app")``, ``("database", "shop")`` or ``("user", "app")``. What is
decided about them is in :mod:`~pgtrunk_gateway.fleet.bank`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Account", "Level", "Limit", "Name", "Recalled", "Want"]

Name: TypeAlias = tuple[str, ...]
"""Of an account."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What an account allows."""

    size: int = 0
    """Places; 0: there is no limit."""
    reserve: int = 0
    """Places beyond that, for who has waited long."""
    minimum: int = 0
    """Places that are to be held even if nobody waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How much a pool of one worker wants, beside what it has: a state and no event, which the next one replaces."""

    count: int = 0
    """Places that sessions wait for."""
    late: int = 0
    """Of these, those whose sessions have waited for long enough to have something of the reserve."""
    short: int = 0
    """Places that nobody waits for, and only the minimum asks for."""
    since: float = float("inf")
    """Since when the first of those sessions waits, by the clock that all processes of the machine share."""
    pressing: bool = False
    """Whether the wait is worth a connection that another worker gives up for it."""
    own: bool = False
    """Whether idle backends of the same pool in the same worker may be given up for it: a client that replicates has no
    use for them."""


@dataclass(eq=False, slots=True)
class Want:
    """What a pool of a worker waits for."""

    worker: int
    accounts: tuple[Account, ...]
    """The pool's own account first."""
    number: int
    """Tells apart who came at the same time."""
    granted: int
    """Places, in all that the worker knows of and all that are on their way to it."""
    count: int = 0
    late: int = 0
    short: int = 0
    since: float = float("inf")
    pressing: bool = False
    own: bool = False

    @property
    def names(self) -> tuple[Name, ...]:
        """Of its accounts."""
        return tuple(account.name for account in self.accounts)

    @property
    def age(self) -> tuple[float, int]:
        """Less is older."""
        return self.since, self.number

    @property
    def rank(self) -> tuple[int, float, int]:
        """Who has less in its pool goes first, then who is older."""
        return self.held, *self.age

    @property
    def held(self) -> int:
        """Places that its pool has in its worker."""
        return self.accounts[0].held.get(self.worker, 0)

    @property
    def in_the_way(self) -> list[Account]:
        """The accounts that have to have a place given up for it. Where its own is full, that one alone: its places are
        places on all others too."""
        own, *others = self.accounts
        if own.room(late=self.late > 0) < 1:
            return [own]
        return [account for account in others if account.room() < 1]

    def set(self, level: Level, seen: int) -> None:
        """The worker wants this much, and knew of ``seen`` places granted so far when it said so."""
        coming = self.granted - seen
        self.count = max(0, level.count - coming)
        self.short = max(0, level.short - max(0, coming - level.count))
        self.late = min(level.late, self.count)
        self.since, self.pressing, self.own = level.since, level.pressing, level.own


@dataclass(eq=False, slots=True)
class Recalled:
    """A place that a worker was asked to give up."""

    number: int
    worker: int
    since: float
    """It goes before sessions there that wait since later than this; infinity: only if it is idle."""
    answered: bool = False
    closing: bool = False
    """The worker gives it up. It is held until Postgres has ended the connection."""


@dataclass(eq=False, slots=True)
class Account:
    """One limit. ``held`` and ``kept`` are by worker, and have no zeros."""

    name: Name
    limit: Limit
    held: dict[int, int] = field(default_factory=dict)
    """Places."""
    kept: dict[int, int] = field(default_factory=dict)
    """Of these, those that are not to be given up for being idle, for the sake of the minimum."""
    total: int = 0
    wants: dict[Want, None] = field(default_factory=dict)
    recalled: dict[int, Recalled] = field(default_factory=dict)
    """By their numbers."""

    def room(self, *, late: bool = False) -> float:
        """How many places are free; ``late``: for who may have something of the reserve. Less than 0: the limit has
        become smaller."""
        limit = self.limit
        if not limit.size:
            return float("inf")
        return limit.size + (limit.reserve if late else 0) - self.total

    @property
    def excess(self) -> int:
        """Places that are held against the limit, since it has become smaller."""
        limit = self.limit
        return max(0, self.total - limit.size - limit.reserve) if limit.size else 0

    def older(self, want: Want, *, late: bool = False) -> int:
        """How many wait for it that go before ``want``; ``late``: of those who may have something of the reserve."""
        return sum(
            other.rank < want.rank and other is not want and (other.late > 0 or not late)
            for other in self.wants
            if other.count
        )

    def take(self, worker: int) -> None:
        """``worker`` holds one place more."""
        self.held[worker] = self.held.get(worker, 0) + 1
        self.total += 1

    def put(self, worker: int, count: int) -> None:
        """``worker`` holds ``count`` places less."""
        left = self.held[worker] - count
        assert left >= 0, f"{self.name}: worker {worker} gives back more than it has"
        self.total -= count
        if left:
            self.held[worker] = left
        else:
            del self.held[worker]

    def marks(self, worker: int) -> int:
        """How many places ``worker`` was asked for and has not given back."""
        return sum(recalled.worker == worker for recalled in self.recalled.values())

    def closing(self, worker: int) -> int:
        """How many of those it gives up now."""
        return sum(recalled.closing and recalled.worker == worker for recalled in self.recalled.values())
