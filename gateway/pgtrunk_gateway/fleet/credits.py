"""How many clients the fleet may have: in all, in each database, and of each user. Pure.

max_client_conn is met by every connection, before anything is known of who it is: so workers have places in store
(:class:`Credits`). The limits of databases and users are met once in a login, which is proved by then and takes its
time: each of those is counted here, one by one (:class:`Population`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.account import Name

__all__ = ["Credits", "Population"]

_PART: Final = 8
"""A worker gets an eighth of what is left: some in store, and most of it for the others."""


class Credits:
    """Places under one limit, which workers have in store, whether clients are there or not."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        """By worker."""

    @property
    def total(self) -> int:
        """All that are given out."""
        return sum(self.held.values())

    def draw(self, worker: int, limit: int, wanted: int) -> int:
        """``worker`` wants ``wanted`` more, or some for its store if that is 0 -> how many more it has from now on."""
        room = limit - self.total
        count = max(0, min(room, max(wanted, room // _PART)))
        if count:
            self.held[worker] = self.held.get(worker, 0) + count
        return count

    def give_back(self, worker: int, count: int) -> None:
        """``worker`` has ``count`` less."""
        left = self.held.get(worker, 0) - count
        assert left >= 0, f"worker {worker} gives back more places than it has"
        self.held[worker] = left
        if not left:
            del self.held[worker]

    def died(self, worker: int) -> None:
        """Its clients went with it."""
        self.held.pop(worker, None)


class Population:
    """Clients that have proved who they are, by names such as ``("database", "shop")`` and ``("user", "app")``."""

    def __init__(self) -> None:
        self.counts: dict[Name, int] = {}
        """In all workers; no zeros."""
        self._of: dict[int, dict[Name, int]] = {}

    def enter(self, worker: int, limits: Iterable[tuple[Name, int]]) -> Name | None:
        """One more client of ``worker`` under all these names -> the first whose limit (0: none) is reached; then there
        is not one more."""
        names = list(limits)
        for name, limit in names:
            if limit and self.counts.get(name, 0) >= limit:
                return name
        for name, _ in names:
            self._add(worker, name, 1)
        return None

    def leave(self, worker: int, names: Iterable[Name]) -> None:
        """One of them less."""
        for name in names:
            self._add(worker, name, -1)

    def of(self, worker: int) -> Mapping[Name, int]:
        """The clients of ``worker``."""
        return self._of.get(worker, {})

    def admit(self, worker: int, name: Name, count: int) -> None:
        """``worker`` has brought so many along, which were counted elsewhere."""
        self._add(worker, name, count)

    def died(self, worker: int) -> None:
        """Its clients went with it."""
        for name, count in list(self._of.get(worker, {}).items()):
            self._add(worker, name, -count)

    def _add(self, worker: int, name: Name, count: int) -> None:
        mine = self._of.setdefault(worker, {})
        for counts in (mine, self.counts):
            counts[name] = left = counts.get(name, 0) + count
            assert left >= 0, f"{name}: more clients have left than came"
            if not left:
                del counts[name]
        if not mine:
            del self._of[worker]
