"""The sessions that wait for a backend of one pool, in the order in which they came.

One timer serves all of them. It finds out who has waited too long (query_wait_timeout), who has to be told that it
waits (query_wait_notify), and when a first one has waited long enough for something of the reserve
(reserve_pool_timeout). While the pool is paused, time stands still for them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.holder import Holder

__all__ = ["Waiter", "Waiting"]

_NEVER = float("inf")


class Waiter:
    """One session's wait: since when, until when, and whether it has been told. Times of the loop's clock."""

    __slots__ = ("deadline", "notified", "since")

    def __init__(self, since: float, deadline: float) -> None:
        self.since = since
        self.deadline = deadline
        self.notified = False


class Waiting:
    """The queue. ``refusal`` makes the error for one who has waited too long; ``overdue`` is told that there are some.

    ``notify`` and ``patience`` are in seconds: after how long a session is told, and has to do with the reserve. 0: not
    at all.
    """

    def __init__(self, *, refusal: Callable[[], GatewayError], overdue: Callable[[], None]) -> None:
        self.holders: OrderedDict[Holder, Waiter] = OrderedDict()
        self.notify = 0.0
        self.patience = 0.0
        self._refusal = refusal
        self._overdue = overdue
        self._soonest = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = _NEVER
        """Kept here, since uvloop's handle of a time that has come, or all but, cannot say when that is."""
        self._stopped_at = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def since(self) -> float:
        """Since when the first one waits; infinity: nobody does."""
        for waiter in self.holders.values():
            return waiter.since
        return _NEVER

    def overdue(self, now: float) -> int:
        """How many have waited for ``patience`` seconds."""
        count = 0
        for waiter in self.holders.values():
            if waiter.since + self.patience > now:
                break
            count += 1
        return count

    def configure(self, *, notify: float, patience: float) -> None:
        """Other values, for those too who wait already."""
        self.notify, self.patience = notify, patience
        self._soonest = min((time for time in (notify, patience) if time), default=_NEVER)
        if not self._stopped_at:
            self._ring()

    def join(self, holder: Holder, timeout: float) -> None:
        """``holder`` waits from now on, at most ``timeout`` seconds (0: no limit)."""
        now = self._loop.time()
        deadline = now + timeout if timeout else _NEVER
        self.holders[holder] = Waiter(now, deadline)
        first = min(deadline, now + self._soonest)
        if first < self._rings_at and not self._stopped_at:
            self._ring_at(first)

    # -- time ----------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Time stands still, until :meth:`go_on`."""
        if not self._stopped_at:
            self._stopped_at = self._loop.time()
            self._cancel()

    def go_on(self) -> None:
        """The time since :meth:`stop` has not counted."""
        stopped_at, self._stopped_at = self._stopped_at, 0.0
        if not stopped_at:
            return
        now = self._loop.time()
        for waiter in self.holders.values():
            pause = now - max(waiter.since, stopped_at)
            waiter.since += pause
            waiter.deadline += pause
        self._ring()

    def end(self, error: GatewayError) -> None:
        """Refuses all of them."""
        self._cancel()
        while self.holders:
            holder, _ = self.holders.popitem(last=False)
            holder.refuse(error)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rings_at = _NEVER

    def _ring_at(self, at: float) -> None:
        self._cancel()
        self._rings_at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        # It looks at each of them when the earliest time has come.
        self._cancel()
        now = self._loop.time()
        overdue = False
        for holder, waiter in list(self.holders.items()):
            if self.holders.get(holder) is not waiter:
                # What another one did about its own end took this one along.
                continue
            if waiter.deadline <= now:
                del self.holders[holder]
                holder.refuse(self._refusal())
                continue
            if self.notify and not waiter.notified and waiter.since + self.notify <= now:
                waiter.notified = True
                holder.notify()
            overdue = overdue or bool(self.patience and waiter.since + self.patience <= now)
        self._set_timer(now)
        if overdue:
            self._overdue()

    def _set_timer(self, now: float) -> None:
        first = min((self._next(waiter, now) for waiter in self.holders.values()), default=_NEVER)
        if first < _NEVER and not self._stopped_at:
            self._ring_at(first)

    def _next(self, waiter: Waiter, now: float) -> float:
        first = waiter.deadline
        if self.notify and not waiter.notified:
            first = min(first, waiter.since + self.notify)
        if self.patience and waiter.since + self.patience > now:
            first = min(first, waiter.since + self.patience)
        return first
