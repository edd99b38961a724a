"""The sessions of one (database, user) and its backends: who gets one when, and the console's verbs.

A backend that becomes free is offered to the sessions in the order in which they came; one that nobody takes is kept,
most recently used first out. No coroutine ever holds a backend: leases begin and end in callbacks, so no cancellation
can lose one. How backends come about and end is in the base, :class:`~pgtrunk_gateway.pool.stock.Stock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import GatewayError, QueryWaitTimeout
from pgtrunk_gateway.pool.backend import Backend, BackendState
from pgtrunk_gateway.pool.stock import ERRANDS, Stock
from pgtrunk_gateway.pool.walsender import Walsender

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgtrunk_gateway.auth import ScramKeys, Secret
    from pgtrunk_gateway.pool.holder import Holder
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.pool.limits import PoolLimits
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.pool.walsender import Replication
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["Pool"]

_REMEMBERED = 1000
"""Sets of settings; what clients want without end, such as a new search_path each, is not kept without end."""
_LOOKED_AT = 64
"""Backends among which one with the right settings is looked for: that takes no longer than to make them."""


class Pool(Stock):
    """One pool."""

    _lending = False
    """Whether a session is being offered a backend just now."""

    def __repr__(self) -> str:
        return (
            f"<Pool {self.key} idle={len(self.idle) + len(self.stale)} busy={self.busy} connecting={self.connecting} "
            f"waiting={len(self.waiting)} size={self.limits.size}>"
        )

    # -- leases: hot ---------------------------------------------------------------------------------------------------

    def take(self, holder: Holder) -> Backend | None:
        """A backend at once, or None: then :meth:`wait`."""
        if not self.idle or self.waiting:
            return None
        backend = self.idle.pop()
        if backend.profile is not holder.profile and self.idle:
            backend = self._suited(backend, holder.profile)
        # As lease_to does.
        backend.holder = holder
        backend.lease += 1
        self.counters.leases += 1
        return backend

    def _suited(self, last: Backend, wanted: Profile) -> Backend:
        """A backend that has the settings already, where one is idle; else ``last``."""
        idle = self.idle
        if last.profile == wanted:
            return last
        for at in range(len(idle) - 1, max(len(idle) - _LOOKED_AT, 0) - 1, -1):
            if idle[at].profile == wanted:
                suited = idle.pop(at)
                idle.append(last)
                return suited
        return last

    def wait(self, holder: Holder, timeout: float) -> None:
        """``holder`` is offered a backend in its turn, or refused after ``timeout`` seconds (0: no limit)."""
        self.counters.waits += 1
        self.queue.join(holder, timeout)
        # This is called for each query where the pool is full, and nothing can be opened then; nor in a fleet, where
        # others have the rest of it and places have been asked for.
        if self.stale or not (self._is_full or (self.allowance is not None and self.allowance.waits)):
            self._maintain()

    @property
    def _is_full(self) -> bool:
        return 0 < self.limits.size <= len(self.backends) + len(self._opening) + self.wanted

    def leave(self, holder: Holder) -> None:
        """``holder`` does not wait any more."""
        self.waiting.pop(holder, None)

    def _give(self, backend: Backend, *, checked: bool = False) -> None:
        """A backend is free: to the first who wants it, or to the idle ones."""
        backend.idle_since = now = self._loop.time()
        if self._hindered and self._hinder(backend, checked):
            return
        if now >= backend.expires and now >= self._expires(backend):
            backend.close(backend.retired or "server lifetime over")
            return
        while self.waiting:
            if self._lending:
                # One who needs nothing of it after all gives it back at once: many of those shall not nest.
                self._loop.call_soon(self._give_if_open, backend, checked)
                return
            holder, _ = self.waiting.popitem(last=False)
            backend.lease_to(holder)
            self._lending = True
            try:
                taken = holder.offer(backend)
            finally:
                self._lending = False
            if taken:
                self.counters.leases += 1
                return
        backend.holder = None
        self._keep(backend)
        if now + self.limits.soonest < self._wakes_at:
            # There is no timer, or it was set when there were no more backends than the minimum.
            self._maintain()
        if self._observed:
            self._tell_observers()

    def _hinder(self, backend: Backend, checked: bool) -> bool:
        """Whether something else becomes of a free backend than being given away."""
        if self._closed or self._paused:
            backend.close("pool closed" if self._closed else "pause mode")
        elif self.walsenders.wants(self.queue.since) or self._gives_way(backend):
            backend.close("evicted")
        elif not checked and self.limits.checks_always and not backend.retired:
            self.stale.append(backend)
            self._maintain()
            if self._observed:
                self._tell_observers()
        else:
            return False
        return True

    # -- sessions ------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """A session is logged in: the pool keeps its minimum from now on."""
        self.sessions += 1
        if self.sessions == 1 and not self.kept and self.limits.minimum:
            self._maintain()

    def exit(self) -> None:
        """A session that has entered has ended."""
        self.sessions -= 1
        self._note_use()

    async def greet(self) -> dict[str, str]:
        """The parameters to welcome a client with; waits for the first login at the server, which it causes.

        Raises the :class:`GatewayError` with which that login failed. The caller sets the deadline.
        """
        if self.greeting.welcome is not None:
            return self.greeting.welcome
        try:
            return await self.greeting.wait(self._maintain)
        finally:
            self._note_use()

    async def replicate(self, kind: Replication, settings: Mapping[str, str]) -> Walsender:
        """A connection of the caller's own; see :meth:`Walsenders.apply`."""
        try:
            return await self.walsenders.apply(kind, settings)
        finally:
            self._note_use()

    def remember(self, settings: Profile) -> None:
        """The server has taken these: the next session that wants them need not ask first."""
        if len(self.taken) >= _REMEMBERED:
            self.taken.clear()
        self.taken.add(settings)

    def entrust(self, secret: Secret, keys: ScramKeys | None) -> None:
        """A client has logged in as this pool's user: see :meth:`Target.entrust`."""
        before = self.target.credentials
        self.target = self.target.entrust(secret, keys)
        if self.target.credentials != before:
            # What failed for want of them may succeed now.
            self._backoff.succeeded()

    @property
    def trouble(self) -> str:
        """Why no connection can be opened just now, as the end of a DETAIL; "" where one could be."""
        error = self._backoff.last_error or self.host.backoff.last_error
        return "" if error is None else f" The last connection failed: {error.message}."

    def _too_long(self) -> GatewayError:
        detail = (
            f"Pool {self.key} has {len(self.backends)} of {self.limits.size or 'unlimited'} backends{self._here}, "
            f"{self.busy} of them in use; {len(self.waiting)} more sessions wait."
        )
        return QueryWaitTimeout(
            "query_wait_timeout: no backend became free in time",
            detail=detail + self.full + self.trouble,
            hint=self._remedy(),
            severity="ERROR",
            log="query_wait_timeout",
        )

    @property
    def _here(self) -> str:
        return "" if self.allowance is None else " in this worker"

    def _remedy(self) -> str:
        """What would spare sessions the wait, as a HINT."""
        if self.trouble:
            return "Mend what keeps the gateway from opening connections, or raise query_wait_timeout."
        limits = [account.setting for account in self.accounts if account.excess] or ["default_pool_size"]
        return f"Raise query_wait_timeout or {' and '.join(limits)}, or make transactions shorter."

    # -- the verbs -----------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether nobody gets a backend; see :meth:`pause`."""
        return self._paused

    def pause(self) -> None:
        """Gives nobody a backend until :meth:`resume`, and closes each that is not leased, or not any more.

        Who waits goes on waiting, and the time does not count.
        """
        if self._paused or self._closed:
            return
        self._paused = True
        self.queue.stop()
        self.contend()
        self._give_up_opening()
        for backend in list(self.backends.values()):
            if backend.state in ERRANDS:
                backend.close("pause mode")
        self._maintain()

    def resume(self) -> None:
        """The end of :meth:`pause`."""
        if not self._paused:
            return
        self._paused = False
        self.queue.go_on()
        self.contend()
        self._maintain()

    async def wait_idle(self) -> None:
        """Returns when no backend is leased, or between two sessions. The caller sets the deadline."""
        await self._until(lambda: not self.busy)

    async def wait_closed(self) -> None:
        """Returns when all are closed that are retired (RECONNECT, or a reload). The caller sets the deadline."""
        await self._until(lambda: not any(backend.retired for backend in self.backends.values()))

    def reconnect(self, *, fast: bool = False) -> None:
        """Closes all backends: idle ones now, leased ones at the end of their lease.

        ``fast`` (server_fast_close): now too, where a session in session mode is outside a transaction.
        """
        self._give_up_opening()
        self._replace(self.backends.values(), "database configuration changed", fast=fast)
        self._maintain()

    def kill(self, error: GatewayError) -> None:
        """Closes all backends at once, and refuses those who wait.

        But those in which something still runs for a session that was killed before: Postgres would go on with that,
        until it has something to say. They are closed as soon as its cancel has ended it.
        """
        # Those who wait first: else it would open connections for them instead of those that it gives up.
        self.queue.end(error)
        self.greeting.failed(error)
        self.walsenders.refuse(error)
        self._give_up_opening()
        for backend in list(self.backends.values()):
            if backend.state is BackendState.RECOVERING:
                backend.retire(error.message)
            else:
                backend.close(error.message)

    def reconfigure(self, target: Target, limits: PoolLimits, *, host: Host, kept: bool) -> None:
        """Other values from now on. Backends of another target are closed as soon as they are free."""
        lifetime, check = self.limits.lifetime, self.limits.check_query
        moved = target != self.target or limits.connect_query != self.limits.connect_query
        target = target.succeeding(self.target)
        self.target, self.limits, self.kept = target, limits, kept
        if host is not self.host:
            self.host.tenants.discard(self)
            self.host = host
            host.tenants.add(self)
        if limits.lifetime != lifetime:
            for backend in self.backends.values():
                backend.expires = 0.0 if backend.retired else self._end_of_life(backend)
        for backend in self.backends.values():
            backend.replies.prepared.limit = limits.prepared
        if limits.check_query != check:
            self.idle[:0], self.stale[:] = self.stale, []
        self._configure()
        if moved:
            self._backoff.succeeded()
            self.taken.clear()
            self.reconnect()
        self._maintain()
        self._shrink()

    def _shrink(self) -> None:
        """Where sessions wait all the time, no backend is ever idle: a smaller pool would stay as large as it was."""
        limits = self.limits
        staying = [backend for backend in self.backends.values() if not backend.retired]
        if limits.size:
            # Walsenders stay, and count first: there is no moment at which one is free.
            staying.sort(key=lambda backend: not isinstance(backend, Walsender))
            for backend in staying[limits.size + limits.reserve :]:
                backend.retire("too many servers in the pool")

    # -- the end -------------------------------------------------------------------------------------------------------

    def shut(self, error: GatewayError, reason: str = "pooler is shutting down", *, gently: bool = False) -> None:
        """Refuses those who wait, closes idle backends and drops the others, and opens no more.

        ``gently``: a backend that ends what a session has left running is closed when it has, as in :meth:`kill`.
        """
        self._closed = True
        self.contend()
        if self._timer is not None:
            self._timer.cancel()
        self.walsenders.refuse(error)
        self.walsenders.stop()
        self._give_up_opening()
        self.queue.end(error)
        self.greeting.failed(error)
        for backend in list(self.backends.values()):
            if gently and backend.state is BackendState.RECOVERING:
                backend.retire(reason)
            else:
                backend.close(reason)
        self.host.tenants.discard(self)
        if self.allowance is not None:
            self.allowance.leave(self)
        for account in self.accounts:
            account.leave(self)

    async def close(self, error: GatewayError) -> None:
        """:meth:`shut`, and returns when nothing is left of it."""
        self.shut(error)
        await self._opening.ended()
        await self.walsenders.ended()
