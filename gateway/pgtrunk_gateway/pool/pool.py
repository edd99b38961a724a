"""The backends of one (database, user), and the sessions that wait for one.

The shell around :mod:`~pgtrunk_gateway.pool.decisions`: it counts, decides, and acts. A backend that becomes free is
offered to the sessions in the order in which they came; one that nobody takes is kept, most recently used first out.
No coroutine ever holds a backend: leases begin and end in callbacks, so no cancellation can lose one.

What it shares with other pools: the server's state (:class:`Host`), and limits that span pools (:class:`Account`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, assert_never

from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, GatewayError, QueryWaitTimeout
from pgtrunk_gateway.pool.accounts import Account, admit
from pgtrunk_gateway.pool.backend import Backend, BackendState, Errand
from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner
from pgtrunk_gateway.pool.counts import PoolCounters, PoolCounts, count
from pgtrunk_gateway.pool.decisions import (
    Check,
    Close,
    Connect,
    Idle,
    Situation,
    Stale,
    Wake,
    decide,
    expires_at,
    pause_after,
)
from pgtrunk_gateway.pool.greeting import Greeting
from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.opening import Opening
from pgtrunk_gateway.pool.waiting import Waiting
from pgtrunk_gateway.session.replies import IDLE, Replies
from pgtrunk_gateway.session.statements import Prepared
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import PoolKey
    from pgtrunk_gateway.pool.holder import Holder
    from pgtrunk_gateway.pool.limits import PoolLimits
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["Pool", "PoolCounters"]

log = logging.getLogger(__name__)

_DOWN = frozenset({"57P01", "57P02", "57P03"})
"""Postgres refuses all logins with these: it stops, has crashed, or starts."""
_NOT_NOW = _DOWN | {"53000", "53100", "53200", "53300", "53400"}
"""It refuses a login with these only for now."""
_REMEMBERED = 1000
"""Sets of settings; what clients want without end, such as a new search_path each, is not kept without end."""
_ERRANDS = frozenset({BackendState.STARTING, BackendState.CHECKING, BackendState.RESETTING})


class Pool:
    """One pool. All of it runs in one event loop, in callbacks; only opening a connection is a task.

    ``accounts``: the limits that it shares with other pools. ``kept``: whether it keeps its minimum without sessions.
    """

    def __init__(
        self,
        key: PoolKey,
        target: Target,
        limits: PoolLimits,
        *,
        derive: Deriver,
        tune: SocketTuner,
        host: Host | None = None,
        accounts: tuple[Account, ...] = (),
        kept: bool = True,
    ) -> None:
        self.key = key
        self.target = target
        self.limits = limits
        self.host = host or Host(lambda: self.limits.retry)
        self.accounts = accounts
        self.kept = kept
        self.counters = PoolCounters()
        self.stats = PoolStats()
        self.sessions = 0
        """Sessions that are logged in; see :meth:`enter`."""
        self.idle: list[Backend] = []
        """Those that can be given away at once; the last one is the next."""
        self.stale: list[Backend] = []
        """Those that are idle too, but have to be checked first."""
        self.backends: dict[int, Backend] = {}
        self.taken: set[Profile] = set()
        """Settings, as clients spelt them, that the server has taken."""
        self.queue = Waiting(refusal=self._too_long, overdue=self.maintain)
        self.waiting = self.queue.holders
        """Who waits, in order."""
        self.greeting = Greeting()
        self.on_unused: Callable[[Pool], None] | None = None
        """Told when the last session and the last backend are gone."""
        self._opening = Opening(str(key), derive=derive, tune=tune, opened=self._opened, failed=self._failed)
        self._failures = 0
        self._failed_at = 0.0
        self._retry_at = 0.0
        self._last_error: GatewayError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._paused = False
        self._hindered = False
        """Whether a free backend may have to be closed or checked, and not just given away."""
        self._observed = False
        """Whether others want to know of a backend that is idle."""
        self._observers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._lending = False
        self._maintaining = False
        self._keep: Callable[[Backend], None]
        self._loop = asyncio.get_running_loop()
        self.host.tenants.add(self)
        for account in accounts:
            account.members.add(self)
        self._configure()

    def __repr__(self) -> str:
        return (
            f"<Pool {self.key} idle={len(self.idle) + len(self.stale)} busy={self.busy} connecting={self.connecting} "
            f"waiting={len(self.waiting)} size={self.limits.size}>"
        )

    @property
    def busy(self) -> int:
        """Backends that are not idle: leased, or between two sessions."""
        return len(self.backends) - len(self.idle) - len(self.stale)

    @property
    def connecting(self) -> int:
        return len(self._opening)

    @property
    def count(self) -> int:
        """Backends, those being opened included."""
        return len(self.backends) + len(self._opening)

    @property
    def oldest(self) -> float:
        """Since when the first session waits, for a backend or for the first login; infinity: nobody does."""
        return min(self.queue.since, self.greeting.since)

    @property
    def maxwait(self) -> float:
        """How long the first session has waited, in seconds; 0: nobody waits."""
        return max(0.0, self._loop.time() - self.oldest) if self.waiting or self.greeting.waiting else 0.0

    @property
    def welcome(self) -> dict[str, str] | None:
        """The parameters that the last login at the server reported."""
        return self.greeting.welcome

    def counts(self) -> PoolCounts:
        """Its backends by state."""
        return count(self.backends.values(), len(self._opening), len(self.idle), len(self.stale))

    # -- leases: hot ---------------------------------------------------------------------------------------------------

    def take(self, holder: Holder) -> Backend | None:
        """A backend at once, or None: then :meth:`wait`."""
        if not self.idle or self.waiting:
            return None
        backend = self.idle.pop()
        # As lease_to does.
        backend.holder = holder
        backend.lease += 1
        self.counters.leases += 1
        return backend

    def wait(self, holder: Holder, timeout: float) -> None:
        """``holder`` is offered a backend in its turn, or refused after ``timeout`` seconds (0: no limit)."""
        self.counters.waits += 1
        self.queue.join(holder, timeout)
        # Nothing can be opened when the pool is full, which is when this is called for each query.
        if not self.limits.size or self.stale or len(self.backends) + len(self._opening) < self.limits.size:
            self._maintain()

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
        if self._timer is None or self._is_late(now):
            self._maintain()
        if self._observed:
            self._tell_observers()

    def _give_if_open(self, backend: Backend, checked: bool = False) -> None:
        if backend.state is BackendState.OPEN:
            self._give(backend, checked=checked)

    def _is_late(self, now: float) -> bool:
        # The timer may have been set when there were no more backends than the minimum, for the end of their lifetime.
        return self._timer is not None and now + self.limits.soonest < self._timer.when()

    def _hinder(self, backend: Backend, checked: bool) -> bool:
        """Whether something else becomes of a free backend than being given away."""
        if self._closed or self._paused:
            backend.close("pool closed" if self._closed else "pause mode")
        elif any(account.blocked and account.gives_way(self) for account in self.accounts):
            backend.close("evicted")
        elif not checked and self.limits.checks_always and not backend.retired:
            self.stale.append(backend)
            self._maintain()
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

    def remember(self, settings: Profile) -> None:
        """The server has taken these: the next session that wants them need not ask first."""
        if len(self.taken) >= _REMEMBERED:
            self.taken.clear()
        self.taken.add(settings)

    def _too_long(self) -> GatewayError:
        detail = (
            f"Pool {self.key} has {len(self.backends)} of {self.limits.size or 'unlimited'} backends, "
            f"{self.busy} of them in use; {len(self.waiting)} more sessions wait."
        )
        return QueryWaitTimeout(
            "query_wait_timeout: no backend became free in time",
            detail=detail + self.full + self.trouble,
            hint="Raise query_wait_timeout or default_pool_size, or make transactions shorter.",
            severity="ERROR",
            log="query_wait_timeout",
        )

    @property
    def full(self) -> str:
        """Which limits over several pools are reached, as the end of a DETAIL; "" where none is."""
        return "".join(
            f" {account.setting} = {account.limit} is reached." for account in self.accounts if account.excess
        )

    @property
    def trouble(self) -> str:
        """Why no connection can be opened just now, as the end of a DETAIL; "" where one could be."""
        error = self._last_error or self.host.last_error
        return "" if error is None else f" The last connection failed: {error.message}."

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Opens what the minimum asks for, closes what is too old."""
        self._maintain()

    def _maintain(self) -> None:
        # Closing a backend leads back here; then what was decided is done first.
        if self._closed or self._maintaining:
            return
        self._maintaining = True
        try:
            for decision in decide(self._situation()):
                match decision:
                    case Connect():
                        self._connect(decision)
                    case Close(id, reason):
                        self.backends[id].close(self.backends[id].retired or reason)
                    case Stale(id):
                        self.idle.remove(self.backends[id])
                        self.stale.append(self.backends[id])
                    case Check(id):
                        self._check(self.backends[id])
                    case Wake(at):
                        self._wake_at(at)
                    case _:
                        assert_never(decision)
        finally:
            self._maintaining = False

    def _situation(self) -> Situation:
        now = self._loop.time()
        errands = sum(backend.state in _ERRANDS for backend in self.backends.values())
        waiting = len(self.waiting) + bool(self.greeting.waiting)
        return Situation(
            now=now,
            limits=self.limits,
            idle=self.idlers(),
            busy=self.busy - errands,
            connecting=len(self._opening),
            checking=errands,
            waiting=waiting,
            overdue=self.queue.overdue(now) if self.limits.reserve else 0,
            retry_at=max(self._retry_at, self.host.retry_at),
            admits=self.host.admits,
            used=self.kept or self.sessions > 0 or waiting > 0,
            paused=self._paused,
        )

    def idlers(self) -> list[Idle]:
        """Its idle backends, those that have been idle longest first."""
        idle = [Idle(b.id, b.idle_since, self._expires(b)) for b in self.idle]
        idle += [Idle(b.id, b.idle_since, self._expires(b), stale=True) for b in self.stale]
        return sorted(idle, key=lambda backend: backend.since)

    def _expires(self, backend: Backend) -> float:
        # server_lifetime = 0 is one lease; but that one it shall have.
        return backend.expires if self.limits.lifetime or backend.lease or backend.retired else float("inf")

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._maintain()

    def _check(self, backend: Backend) -> None:
        self.stale.remove(backend)
        errand = Errand("server_check_query", partial(self._give, checked=True))
        backend.run(self.limits.check_query or "", BackendState.CHECKING, errand, self.limits.connect_timeout)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _connect(self, decision: Connect) -> None:
        log.debug("%s: opening %d connections to %s: %s", self.key, decision.count, self.target, decision.reason)
        for number in range(decision.count):
            if self.accounts and not admit(self, self.accounts, evict=decision.waited_for):
                log.debug("%s:%s", self.key, self.full)
                return
            if number >= decision.count - decision.reserve:
                log.warning("%s: taking connection from reserve_pool", self.key)
            self._opening.begin(self.target, self.host, self.limits.connect_timeout)

    def _opened(self, opened: Opened) -> None:
        handshake = opened.handshake
        replies = Replies(Prepared(self.limits.prepared), handshake.parameters)
        backend = Backend(opened.transport, self.target, handshake.key, replies, on_free=self._give, on_lost=self._lost)
        self._failures = 0
        self._retry_at = 0.0
        self._last_error = None
        backend.stats = self.stats
        backend.born = self._loop.time()
        backend.expires = self._end_of_life(backend)
        self.backends[backend.id] = backend
        self.counters.opened += 1
        log.info("S-%d: %s@%s new connection to server (pid=%d)", backend.id, self.key, self.target, backend.pid)
        opened.transport.set_protocol(backend)
        # Before it is given away: a session whose client does not read has it pause again.
        opened.transport.resume_reading()
        if opened.rest:
            backend.data_received(opened.rest)
        query = self.limits.connect_query
        if query is None or backend.state is not BackendState.OPEN:
            self._started(backend)
        else:
            errand = Errand("connect_query", self._started, lenient=True)
            backend.run(query, BackendState.STARTING, errand, self.limits.connect_timeout)

    def _started(self, backend: Backend) -> None:
        self.greeting.arrived(backend.replies.parameters)
        self._give_if_open(backend)

    def _end_of_life(self, backend: Backend) -> float:
        return expires_at(backend.born, self.limits, random.random()) if self.limits.lifetime else 0.0

    def _failed(self, error: GatewayError, began: float, attempt: object) -> None:
        self.counters.failed += 1
        self._unbook()
        if isinstance(error, BackendUnavailable) or error.sqlstate in _DOWN:
            pause = self.host.failed(attempt, error, began)
        else:
            pause = self._refused(error, began)
            # It has answered, at least.
            self.host.succeeded(attempt)
        log.warning("%s@%s %s; next attempt in %.1f s", self.key, self.target, error.message, pause)
        self._maintain()
        self._note_use()

    def _refused(self, error: GatewayError, began: float) -> float:
        # Those that were opened together fail together: that is one failure.
        self._failures += began >= self._failed_at
        self._failed_at = self._loop.time()
        self._last_error = error
        pause = pause_after(self._failures, self.limits.retry)
        self._retry_at = self._failed_at + pause
        if error.sqlstate not in _NOT_NOW:
            self.greeting.failed(error)
            # Another login would be refused just the same; who waits is told why. Unless some backend will serve them.
            if isinstance(error, BackendRefused) and not self.backends:
                self.queue.end(error)
        return pause

    def host_failed(self, error: GatewayError) -> None:
        """A server that was there will be there again; for one that never was, nobody waits to log in."""
        if not self.host.known and error.sqlstate not in _DOWN:
            self.greeting.failed(error)

    def _unbook(self) -> None:
        for account in self.accounts:
            account.release()

    def _lost(self, backend: Backend, reason: str) -> None:
        if backend in self.idle:
            self.idle.remove(backend)
        elif backend in self.stale:
            self.stale.remove(backend)
        if self.backends.pop(backend.id, None) is not None:
            self._unbook()
        self.counters.closed += 1
        age = self._loop.time() - backend.born
        log.info("S-%d: %s@%s closing because: %s (age=%ds)", backend.id, self.key, self.target, reason, int(age))
        self._maintain()
        if self._observed:
            self._tell_observers()
        self._note_use()

    # -- limits that it shares -----------------------------------------------------------------------------------------

    def evict(self, id: int) -> None:
        """Closes an idle backend for the sake of another pool."""
        self.backends[id].close("evicted")

    def contend(self) -> None:
        """Others have begun, or ceased, to be blocked by a limit that it shares."""
        contended = any(account.blocked for account in self.accounts)
        self._hindered = contended or self._closed or self._paused or self.limits.checks_always
        self._observed = contended or bool(self._observers)

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
            if backend.state in _ERRANDS:
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

    def reconnect(self, reason: str = "reconnect", *, fast: bool = False) -> None:
        """Closes all backends: idle ones now, leased ones at the end of their lease.

        ``fast`` (server_fast_close): now too, where a session in session mode is outside a transaction.
        """
        self._give_up_opening()
        for backend in list(self.backends.values()):
            backend.retire(reason)
            replies = backend.replies
            if backend.holder is None:
                if backend.state is not BackendState.RECOVERING:
                    backend.close(reason)
            elif fast and replies.settled and replies.status == IDLE:
                backend.close(reason)
        self._maintain()

    def kill(self, error: GatewayError) -> None:
        """Closes all backends at once, and refuses those who wait."""
        self._give_up_opening()
        self.queue.end(error)
        self.greeting.failed(error)
        for backend in list(self.backends.values()):
            backend.close(error.message)

    def reconfigure(self, target: Target, limits: PoolLimits, *, host: Host, kept: bool) -> None:
        """Other values from now on. Backends of another target are closed as soon as they are free."""
        lifetime, check = self.limits.lifetime, self.limits.check_query
        moved = target != self.target or limits.connect_query != self.limits.connect_query
        self.target, self.limits, self.kept = target, limits, kept
        if host is not self.host:
            self.host.tenants.discard(self)
            self.host = host
            host.tenants.add(self)
        if limits.lifetime != lifetime:
            for backend in self.backends.values():
                backend.expires = 0.0 if backend.retired else self._end_of_life(backend)
        if limits.check_query != check:
            self.idle[:0], self.stale[:] = self.stale, []
        self._configure()
        if moved:
            self._failures, self._retry_at, self._last_error = 0, 0.0, None
            self.taken.clear()
            self.reconnect("database configuration changed")
        self._maintain()

    def _configure(self) -> None:
        limits = self.limits
        self._keep = self.idle.append
        if limits.checks_always:
            self._keep = self.stale.append
        elif limits.round_robin:
            self._keep = partial(self.idle.insert, 0)
        self.queue.configure(notify=limits.notify, patience=limits.reserve_timeout if limits.reserve else 0.0)
        self.contend()

    def _give_up_opening(self) -> None:
        for _ in range(self._opening.give_up()):
            self._unbook()

    async def _until(self, condition: Callable[[], bool]) -> None:
        if condition():
            return
        observer = condition, self._loop.create_future()
        self._observers.append(observer)
        self.contend()
        try:
            await observer[1]
        finally:
            self._observers.remove(observer)
            self.contend()

    def _tell_observers(self) -> None:
        for condition, future in self._observers:
            if not future.done() and condition():
                future.set_result(None)
        for account in self.accounts:
            account.turn_soon()

    def _note_use(self) -> None:
        if self.unused and self.on_unused is not None:
            self.on_unused(self)

    @property
    def unused(self) -> bool:
        """Whether it has neither sessions nor backends, nor opens any."""
        return not (self.sessions or self.backends or self._opening or self.waiting or self.greeting.waiting)

    # -- the end -------------------------------------------------------------------------------------------------------

    def shut(self, error: GatewayError, reason: str = "pooler is shutting down") -> None:
        """Refuses those who wait, closes idle backends and drops the others, and opens no more."""
        self._closed = True
        self.contend()
        if self._timer is not None:
            self._timer.cancel()
        self._give_up_opening()
        self.queue.end(error)
        self.greeting.failed(error)
        for backend in list(self.backends.values()):
            backend.close(reason)
        self.host.tenants.discard(self)
        for account in self.accounts:
            account.leave(self)

    async def close(self, error: GatewayError) -> None:
        """:meth:`shut`, and returns when nothing is left of it."""
        self.shut(error)
        await self._opening.ended()
