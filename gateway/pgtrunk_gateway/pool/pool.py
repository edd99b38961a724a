"""The backends of one (database, user), and the sessions that wait for one.

The shell around :mod:`~pgtrunk_gateway.pool.decisions`: it counts, decides, and acts. A backend that becomes free is
offered to the sessions in the order in which they came; one that nobody takes is kept, most recently used first out.
No coroutine ever holds a backend: leases begin and end in callbacks, so no cancellation can lose one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from pgtrunk_gateway.errors import BackendRefused, GatewayError, QueryWaitTimeout
from pgtrunk_gateway.pool.backend import Backend, BackendState
from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner, log_in
from pgtrunk_gateway.pool.decisions import Close, Connect, Idle, Situation, Wake, decide, expires_at, pause_after
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import PoolKey
    from pgtrunk_gateway.pool.holder import Holder
    from pgtrunk_gateway.pool.limits import PoolLimits
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["Pool", "PoolCounters"]

log = logging.getLogger(__name__)

_NOT_NOW = frozenset({"57P03", "53300", "53400"})
"""Postgres refuses a login with these only for now: starting up, shutting down, or full."""
_REMEMBERED = 1000
"""Sets of settings; what clients want without end, such as a new search_path each, is not kept without end."""


@dataclass(slots=True)
class PoolCounters:
    """Totals since the pool was made."""

    leases: int = 0
    waits: int = 0
    """Leases that had to wait."""
    opened: int = 0
    closed: int = 0
    failed: int = 0
    """Connections that could not be opened."""


class Pool:
    """One pool. All of it runs in one event loop, in callbacks; only opening a connection is a task."""

    def __init__(self, key: PoolKey, target: Target, limits: PoolLimits, *, derive: Deriver, tune: SocketTuner) -> None:
        self.key = key
        self.target = target
        self.limits = limits
        self.counters = PoolCounters()
        self.welcome: dict[str, str] | None = None
        """The parameters that the first login at the server reported."""
        self.idle: list[Backend] = []
        """Least recently used first."""
        self.backends: dict[int, Backend] = {}
        self.taken: set[Profile] = set()
        """Settings, as clients spelt them, that the server has taken."""
        self.waiting: OrderedDict[Holder, float] = OrderedDict()
        """Who waits, in order, and until when."""
        self._connecting: set[asyncio.Task[None]] = set()
        self._greeting: asyncio.Future[dict[str, str]] | None = None
        self._greeters = 0
        self._failures = 0
        self._failed_at = 0.0
        self._retry_at = 0.0
        self._last_error: GatewayError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self._lending = False
        self._maintaining = False
        self._derive = derive
        self._tune = tune
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return (
            f"<Pool {self.key} idle={len(self.idle)} busy={self.busy} connecting={len(self._connecting)} "
            f"waiting={len(self.waiting)} size={self.limits.size}>"
        )

    @property
    def busy(self) -> int:
        """Backends that are leased, or recover from their last session."""
        return len(self.backends) - len(self.idle)

    @property
    def connecting(self) -> int:
        return len(self._connecting)

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
        deadline = self._loop.time() + timeout if timeout else float("inf")
        self.waiting[holder] = deadline
        if timeout and (self._expiry is None or deadline < self._expiry.when()):
            self._expire_at(deadline)
        # Nothing can be opened when the pool is full, which is when this is called for each query.
        if not self.limits.size or len(self.backends) + len(self._connecting) < self.limits.size:
            self._maintain()

    def leave(self, holder: Holder) -> None:
        """``holder`` does not wait any more."""
        self.waiting.pop(holder, None)

    def _give(self, backend: Backend) -> None:
        """A backend is free: to the first who wants it, or to the idle ones."""
        backend.idle_since = now = self._loop.time()
        if self._closed or (now >= backend.expires and now >= self._expires(backend)):
            backend.close(backend.retired or ("pool closed" if self._closed else "server lifetime over"))
            return
        while self.waiting:
            if self._lending:
                # One who needs nothing of it after all gives it back at once: many of those shall not nest.
                self._loop.call_soon(self._give_if_open, backend)
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
        self.idle.append(backend)
        if self._timer is None or self._is_late(now):
            self._maintain()

    def _give_if_open(self, backend: Backend) -> None:
        if backend.state is BackendState.OPEN:
            self._give(backend)

    def _is_late(self, now: float) -> bool:
        # The timer may have been set when there were no more backends than the minimum, for the end of their lifetime.
        idle, timer = self.limits.idle_timeout, self._timer
        return idle > 0 and timer is not None and now + idle < timer.when() and len(self.backends) > self.limits.minimum

    # -- waiting ends --------------------------------------------------------------------------------------------------

    def _expire_at(self, deadline: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        # One timer for all who wait: it looks at each of them when the earliest deadline has passed.
        self._expiry = None
        now = self._loop.time()
        for holder in [holder for holder, deadline in self.waiting.items() if deadline <= now]:
            if self.waiting.pop(holder, None) is not None:
                holder.refuse(self._too_long())
        if (earliest := min(self.waiting.values(), default=float("inf"))) < float("inf"):
            self._expire_at(earliest)

    def _too_long(self) -> GatewayError:
        detail = (
            f"Pool {self.key} has {len(self.backends)} of {self.limits.size or 'unlimited'} backends, "
            f"{self.busy} of them in use; {len(self.waiting)} more sessions wait."
        )
        return QueryWaitTimeout(
            "query_wait_timeout: no backend became free in time",
            detail=detail + self.trouble,
            hint="Raise query_wait_timeout or default_pool_size, or make transactions shorter.",
            severity="ERROR",
            log="query_wait_timeout",
        )

    @property
    def trouble(self) -> str:
        """Why no connection can be opened just now, as the end of a DETAIL; "" where one could be."""
        return "" if self._last_error is None else f" The last connection failed: {self._last_error.message}."

    # -- the first login -----------------------------------------------------------------------------------------------

    async def greet(self) -> dict[str, str]:
        """The parameters to welcome a client with; waits for the first login at the server, which it causes.

        Raises the :class:`GatewayError` with which that login failed. The caller sets the deadline.
        """
        if self.welcome is not None:
            return self.welcome
        if self._greeting is None:
            self._greeting = self._loop.create_future()
        self._greeters += 1
        try:
            self._maintain()
            return await asyncio.shield(self._greeting)
        finally:
            self._greeters -= 1

    def _greeted(self, parameters: dict[str, str]) -> None:
        self.welcome = dict(parameters)
        if self._greeting is not None:
            self._greeting.set_result(self.welcome)
            self._greeting = None

    def _not_greeted(self, error: GatewayError) -> None:
        if self._greeting is not None:
            self._greeting.set_exception(error)
            # Whoever waited may be gone by now; nobody else reads it.
            self._greeting.exception()
            self._greeting = None

    def remember(self, settings: Profile) -> None:
        """The server has taken these: the next session that wants them need not ask first."""
        if len(self.taken) >= _REMEMBERED:
            self.taken.clear()
        self.taken.add(settings)

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
                    case Connect(count, reason):
                        self._connect(count, reason)
                    case Close(id, reason):
                        self.backends[id].close(reason)
                    case Wake(at):
                        self._wake_at(at)
                    case _:
                        assert_never(decision)
        finally:
            self._maintaining = False

    def _situation(self) -> Situation:
        return Situation(
            now=self._loop.time(),
            limits=self.limits,
            idle=[Idle(b.id, b.idle_since, self._expires(b)) for b in self.idle],
            busy=self.busy,
            connecting=len(self._connecting),
            waiting=len(self.waiting) + bool(self._greeters),
            retry_at=self._retry_at,
        )

    def _expires(self, backend: Backend) -> float:
        # server_lifetime = 0 is one lease; but that one it shall have.
        return backend.expires if self.limits.lifetime or backend.lease else float("inf")

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._maintain()

    # -- opening -------------------------------------------------------------------------------------------------------

    def _connect(self, count: int, reason: str) -> None:
        log.debug("%s: opening %d connections to %s: %s", self.key, count, self.target, reason)
        for _ in range(count):
            # Counted before the first await, or the next decision would see room for one more.
            task = self._loop.create_task(self._open(), name=f"open {self.key}")
            self._connecting.add(task)

    async def _open(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        opened: Opened | GatewayError
        began = self._loop.time()
        try:
            timeout = self.limits.connect_timeout
            opened = await log_in(self.target, timeout=timeout, derive=self._derive, tune=self._tune)
        except GatewayError as error:
            opened = error
        finally:
            self._connecting.discard(task)
        if isinstance(opened, Opened):
            self._opened(opened)
        else:
            self._failed(opened, began)

    def _opened(self, opened: Opened) -> None:
        handshake = opened.handshake
        replies = Replies(Prepared(self.limits.prepared), handshake.parameters)
        backend = Backend(opened.transport, self.target, handshake.key, replies, on_free=self._give, on_lost=self._lost)
        self._failures = 0
        self._retry_at = 0.0
        self._last_error = None
        backend.born = self._loop.time()
        backend.expires = expires_at(backend.born, self.limits, random.random()) if self.limits.lifetime else 0.0
        self.backends[backend.id] = backend
        self.counters.opened += 1
        log.info("S-%d: %s@%s new connection to server (pid=%d)", backend.id, self.key, self.target, backend.pid)
        opened.transport.set_protocol(backend)
        # Before it is given away: a session whose client does not read has it pause again.
        opened.transport.resume_reading()
        self._greeted(handshake.parameters)
        if opened.rest:
            backend.data_received(opened.rest)
        self._give_if_open(backend)

    def _failed(self, error: GatewayError, began: float) -> None:
        self.counters.failed += 1
        # Those that were opened together fail together: that is one failure.
        self._failures += began >= self._failed_at
        self._failed_at = self._loop.time()
        self._last_error = error
        pause = pause_after(self._failures, self.limits)
        self._retry_at = self._failed_at + pause
        log.warning("%s@%s %s; next attempt in %.1f s", self.key, self.target, error.message, pause)
        if error.sqlstate not in _NOT_NOW:
            self._not_greeted(error)
            # Another login would be refused just the same; who waits is told why. Unless some backend will serve them.
            if isinstance(error, BackendRefused) and not self.backends:
                self._refuse_all(error)
        self._maintain()

    def _refuse_all(self, error: GatewayError) -> None:
        while self.waiting:
            holder, _ = self.waiting.popitem(last=False)
            holder.refuse(error)

    def _lost(self, backend: Backend, reason: str) -> None:
        if backend in self.idle:
            self.idle.remove(backend)
        self.backends.pop(backend.id, None)
        self.counters.closed += 1
        age = self._loop.time() - backend.born
        log.info("S-%d: %s@%s closing because: %s (age=%ds)", backend.id, self.key, self.target, reason, int(age))
        self._maintain()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self, error: GatewayError) -> None:
        """Refuses those who wait, closes idle backends and drops the others, ends all tasks."""
        self._closed = True
        for timer in (self._timer, self._expiry):
            if timer is not None:
                timer.cancel()
        self._refuse_all(error)
        self._not_greeted(error)
        for backend in list(self.backends.values()):
            backend.close("pooler is shutting down")
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
