"""Limits that span pools: the backends of one database (max_db_connections), and of one user (max_user_connections).

A backend is counted from before its connection is opened until it is closed. A pool that finds a limit reached has idle
backends of other pools closed; where there are none it is blocked, and gets its turn when a place, or a backend that
can be closed, becomes free: the pools in the order in which their first sessions began to wait. Whom to close, and who
gives way, is in :mod:`~pgtrunk_gateway.pool.decisions`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pgtrunk_gateway.pool.decisions import Idle, gives_way, to_evict

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Account", "Member", "admit"]


class Member(Protocol):
    """A pool, as its accounts see it."""

    @property
    def accounts(self) -> tuple[Account, ...]:
        """All that it counts in."""
        ...

    @property
    def oldest(self) -> float:
        """Since when its first session waits; infinity: nobody does."""
        ...

    @property
    def count(self) -> int:
        """Backends that it has, or opens."""
        ...

    def idlers(self) -> list[Idle]:
        """Its idle backends."""
        ...

    def evict(self, backend: int) -> None:
        """Closes the idle backend with this id, if it is still there."""

    def maintain(self) -> None:
        """There may be room now."""

    def contend(self) -> None:
        """Whether others are blocked by a limit that it shares has changed."""


class Account:
    """One limit: ``setting`` names it, ``limit`` 0 is none. Set ``limit`` by :meth:`change`."""

    def __init__(self, setting: str, limit: int) -> None:
        self.setting = setting
        self.limit = limit
        self.count = 0
        """Backends, and connections under way."""
        self.members: set[Member] = set()
        self.blocked: dict[Member, None] = {}
        """Pools in which sessions wait for this limit."""
        self._short: dict[Member, None] = {}
        """Pools that only have fewer than their minimum."""
        self._turn: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def excess(self) -> int:
        """How many backends are in the way of one more."""
        return max(0, self.count - self.limit + 1) if self.limit else 0

    def change(self, limit: int) -> None:
        """The limit has another value from now on."""
        self.limit = limit
        self.turn_soon()

    def release(self) -> None:
        """A backend is closed, or its connection did not come about."""
        self.count -= 1
        self.turn_soon()

    def turn_soon(self) -> None:
        """Lets those who are blocked look again, once what happens now has happened."""
        if (self.blocked or self._short) and self._turn is None:
            self._turn = self._loop.call_soon(self._take_turns)

    def block(self, member: Member) -> None:
        """``member`` gets its turn when something becomes free."""
        if member.oldest == float("inf"):
            self._short[member] = None
            return
        first = not self.blocked
        self.blocked[member] = None
        if first:
            self._announce()

    def overtakes(self, member: Member) -> bool:
        """Whether ``member`` would go before one that has waited longer."""
        return any(other.oldest < member.oldest for other in self.blocked if other is not member)

    def gives_way(self, member: Member) -> bool:
        """Whether a backend that ``member`` could use is due to another, which needs no more than its place."""
        others = [
            (other.oldest, other.count)
            for other in self.blocked
            if other is not member and all(account.excess <= (account in member.accounts) for account in other.accounts)
        ]
        return gives_way(member.oldest, others)

    def leave(self, member: Member) -> None:
        """``member`` is gone for good."""
        self.members.discard(member)
        self._short.pop(member, None)
        if member in self.blocked:
            del self.blocked[member]
            if not self.blocked:
                self._announce()

    def _take_turns(self) -> None:
        self._turn = None
        blocked, short = self.blocked, self._short
        self.blocked, self._short = {}, {}
        for member in (*sorted(blocked, key=lambda member: member.oldest), *short):
            member.maintain()
        if blocked and not self.blocked:
            self._announce()

    def _announce(self) -> None:
        for member in self.members:
            member.contend()


def admit(member: Member, accounts: Sequence[Account], *, evict: bool) -> bool:
    """Books one more backend of ``member`` on all its accounts, or on none, which blocks it -> whether it is booked.

    ``evict``: a session waits for it, so idle backends of others are closed for it.
    """
    in_the_way = [account for account in accounts if account.excess or account.overtakes(member)]
    victims = _victims(member, in_the_way) if evict or not in_the_way else None
    if victims is None:
        for account in in_the_way:
            account.block(member)
        return False
    # Booked first: who loses a backend by it looks for room at once, and shall not find this.
    for account in accounts:
        account.count += 1
    for owner, backend in victims:
        owner.evict(backend)
    return True


def _victims(member: Member, accounts: Sequence[Account]) -> list[tuple[Member, int]] | None:
    owners: dict[int, Member] = {}
    needs: list[tuple[int, list[Idle]]] = []
    for account in accounts:
        if not account.excess:
            # There is room, but it is due to one who has waited longer.
            account.turn_soon()
            return None
        idle = [(other, backend) for other in account.members if other is not member for backend in other.idlers()]
        owners |= {backend.id: other for other, backend in idle}
        needs.append((account.excess, [backend for _, backend in idle]))
    chosen = to_evict(needs)
    return None if chosen is None else [(owners[backend], backend) for backend in chosen]
