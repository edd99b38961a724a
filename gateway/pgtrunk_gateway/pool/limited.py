"""A pool among others: the limits that it shares with them, in this process and, in a fleet, in all others too.

A base of :class:`~pgtrunk_gateway.pool.filling.Filling`. Where there is an allowance, it decides alone how many
connections may be opened; the accounts go on counting what is here, and block nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pgtrunk_gateway.pool.observers import Observers

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.accounts import Account
    from pgtrunk_gateway.pool.allowance import Allowance
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.decisions import Connect
    from pgtrunk_gateway.pool.limits import PoolLimits
    from pgtrunk_gateway.pool.walsenders import Walsenders

__all__ = ["Limited"]


class Limited:
    """What follows is the pool's."""

    accounts: tuple[Account, ...]
    allowance: Allowance | None
    backends: dict[int, Backend]
    limits: PoolLimits
    walsenders: Walsenders
    _closed: bool
    _paused: bool
    wanted = 0
    """Places that it has asked its allowance for, and has not got."""
    _owed = 0
    """Connections that are to be opened beside those for which sessions wait."""
    _hindered = False
    """Whether a free backend may have to be closed or checked, and not just given away."""
    _observed = False
    """Whether others want to know of a backend that is idle."""

    def __init__(self) -> None:
        self._observers = Observers(self.contend)

    @property
    def oldest(self) -> float:
        """Since when the first session waits, for a backend, the first login, or a place; infinity: nobody does."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Opens a connection, which has its place."""
        raise NotImplementedError

    # -- places --------------------------------------------------------------------------------------------------------

    def draw(self, allowance: Allowance, connect: Connect | None) -> None:
        """Opens of ``connect`` what there are places for now, and asks for the others."""
        if self._paused:
            self._owed = 0
        sessions = 0 if connect is None else connect.count
        while allowance.spare and sessions + self._owed:
            self.book(allowance)
            self._begin()
            if sessions:
                sessions -= 1
            else:
                self._owed -= 1
        late = short = 0
        if connect is not None:
            short = min(connect.short, sessions)
            late = min(connect.late, sessions - short)
        replicating = self.walsenders.queued if not self._paused else 0
        count = sessions - short + self._owed + replicating
        allowance.want(
            count,
            late=late + (self.walsenders.overdue if replicating else 0),
            short=short,
            since=self.oldest,
            own=replicating > 0,
        )
        self.wanted = count

    def book(self, allowance: Allowance) -> None:
        """One of the places that have come is for a connection from now on."""
        allowance.use()
        for account in self.accounts:
            account.count += 1

    def unbook(self, backend: Backend | None = None) -> None:
        """A place is free: that of ``backend``, or of a connection that did not come about."""
        for account in self.accounts:
            account.release()
        if self.allowance is None:
            return
        if backend is None:
            self.allowance.unopened()
        else:
            self.allowance.part(backend)

    @property
    def full(self) -> str:
        """Which limits over several pools are reached, as the end of a DETAIL; "" where none is."""
        return "".join(
            f" {account.setting} = {account.limit} is reached." for account in self.accounts if account.excess
        )

    # -- those who share them ------------------------------------------------------------------------------------------

    def evict(self, backend: int) -> None:
        """Closes an idle backend for the sake of another pool, unless it has ended with the one before it."""
        if (victim := self.backends.get(backend)) is not None:
            victim.close("evicted")

    def contend(self) -> None:
        """Others have begun, or ceased, to be blocked by a limit that it shares."""
        contended = any(account.blocked for account in self.accounts)
        hindered = contended or self._closed or self._paused or self.limits.checks_always
        recalled = self.allowance is not None and self.allowance.recalled
        self._hindered = hindered or recalled or self.walsenders.queued > 0
        self._observed = contended or bool(self._observers)

    def _gives_way(self, backend: Backend) -> bool:
        """Whether ``backend``, which is free, is due to another pool, here or elsewhere."""
        if self.allowance is not None:
            return self.allowance.recalled and self.allowance.gives_way(self.oldest, backend.born)
        return any(account.blocked and account.gives_way(self) for account in self.accounts)  # type: ignore[arg-type]

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._observers.until(condition)

    def _tell_observers(self) -> None:
        self._observers.tell()
        for account in self.accounts:
            account.turn_soon()
