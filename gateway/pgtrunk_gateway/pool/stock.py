"""The backends of one pool: opened when sessions wait for them, checked, aged, closed.

The shell around :mod:`~pgtrunk_gateway.pool.decisions`: it counts, decides, and acts. The base of
:class:`~pgtrunk_gateway.pool.pool.Pool`, which lends the backends to sessions, and says what becomes of one that is
free.

What it shares with other pools: the server's state (:class:`Host`), and limits that span pools (:class:`Account`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from pgtrunk_gateway.errors import BackendRefused, GatewayError
from pgtrunk_gateway.pool.accounts import Account, admit
from pgtrunk_gateway.pool.backend import Backend, BackendState, Errand
from pgtrunk_gateway.pool.backoff import Backoff, is_down, is_for_now
from pgtrunk_gateway.pool.counts import PoolCounters, PoolCounts, count
from pgtrunk_gateway.pool.decisions import Check, Close, Connect, Idle, Situation, Stale, Wake, decide, expires_at
from pgtrunk_gateway.pool.following import Following
from pgtrunk_gateway.pool.greeting import Greeting
from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.limited import Limited
from pgtrunk_gateway.pool.opening import Opening
from pgtrunk_gateway.pool.waiting import Waiting
from pgtrunk_gateway.pool.walsenders import Walsenders
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import PoolKey
    from pgtrunk_gateway.pool.allowance import Allowance
    from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner
    from pgtrunk_gateway.pool.limits import PoolLimits
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["ERRANDS", "Stock"]

log = logging.getLogger(__name__)

ERRANDS: Final = frozenset({BackendState.STARTING, BackendState.CHECKING, BackendState.RESETTING})
"""The states of a backend that will be free in a moment."""


class Stock(Following, Limited):
    """A pool's backends. All of it runs in one event loop, in callbacks; only opening a connection is a task.

    ``accounts``: the limits that it shares with other pools; ``allowance``: what it has of those that hold for a whole
    fleet. ``kept``: whether it keeps its minimum without sessions.
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
        allowance: Allowance | None = None,
        kept: bool = True,
    ) -> None:
        self.key = key
        self.target = target
        self.limits = limits
        self.host = host or Host(lambda: self.limits.retry)
        super().__init__()
        self.accounts = accounts
        self.allowance = allowance
        self.kept = kept
        self.counters = PoolCounters()
        self.stats = PoolStats()
        self.sessions = 0
        """Sessions that are logged in."""
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
        self.walsenders = Walsenders(self, derive=derive, tune=tune, lost=self._lost)
        self.on_unused: Callable[[], None] | None = None
        """Told when the last session and the last backend are gone."""
        self._opening = Opening(str(key), derive=derive, tune=tune, opened=self._opened, failed=self._failed)
        self._backoff = Backoff()
        """For what is this login's fault alone."""
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = float("inf")
        """When the timer rings."""
        self._closed = False
        self._paused = False
        self._maintaining = False
        self._warned = False
        """Of a password that crosses the network in clear."""
        self._keep: Callable[[Backend], None]
        self._loop = asyncio.get_running_loop()
        self.host.tenants.add(self)
        if allowance is not None:
            allowance.attach(self)
        for account in accounts:
            account.members.add(self)
        self._configure()

    @property
    def busy(self) -> int:
        """Backends that are not idle: leased, or between two sessions."""
        return len(self.backends) - len(self.idle) - len(self.stale)

    @property
    def connecting(self) -> int:
        return len(self._opening) + self.walsenders.opening

    @property
    def count(self) -> int:
        """Backends, those being opened included."""
        return len(self.backends) + self.connecting

    @property
    def oldest(self) -> float:
        """Since when the first session waits, for a backend, the first login, or a place; infinity: nobody does."""
        return min(self.queue.since, self.greeting.since, self.walsenders.since)

    @property
    def maxwait(self) -> float:
        """How long the first session has waited, in seconds; 0: nobody waits."""
        oldest = self.oldest
        return max(0.0, self._loop.time() - oldest) if oldest < float("inf") else 0.0

    @property
    def welcome(self) -> dict[str, str] | None:
        """The parameters that the last login at the server reported."""
        return self.greeting.welcome

    def counts(self) -> PoolCounts:
        """Its backends by state."""
        return count(self.backends.values(), self.connecting, len(self.idle), len(self.stale))

    def _too_long(self) -> GatewayError:
        raise NotImplementedError

    def _configure(self) -> None:
        limits = self.limits
        self._keep = self.idle.append
        if limits.checks_always:
            self._keep = self.stale.append
        elif limits.round_robin:
            self._keep = partial(self.idle.insert, 0)
        self.queue.configure(notify=limits.notify, patience=limits.reserve_timeout if limits.reserve else 0.0)
        self.contend()

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Opens what the minimum asks for, closes what is too old."""
        self._maintain()

    def _maintain(self) -> None:
        # Closing a backend leads back here; then what was decided is done first.
        if self._closed or self._maintaining:
            return
        self._maintaining = True
        connect: Connect | None = None
        try:
            if not self._paused:
                self.walsenders.advance()
            for decision in decide(self._situation()):
                match decision:
                    case Connect() if self.allowance is not None:
                        connect = decision
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
            if self.allowance is not None:
                self.draw(self.allowance, connect)
        finally:
            self._maintaining = False

    def _situation(self) -> Situation:
        now = self._loop.time()
        errands = sum(backend.state in ERRANDS for backend in self.backends.values())
        waiting = len(self.waiting) + bool(self.greeting.waiting)
        return Situation(
            now=now,
            limits=self.limits,
            idle=self.idlers(),
            busy=self.busy - errands + self.walsenders.opening,
            connecting=len(self._opening),
            checking=errands,
            waiting=waiting,
            overdue=self.queue.overdue(now) if self.limits.reserve else 0,
            retry_at=max(self._backoff.retry_at, self.host.backoff.retry_at),
            admits=self.host.admits,
            used=self.kept or self.sessions > 0 or waiting > 0,
            paused=self._paused,
            shared_floor=self.allowance.floor if self.allowance is not None else None,
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
        self._wakes_at = at

    def _woken(self) -> None:
        self._timer = None
        self._wakes_at = float("inf")
        self._maintain()

    def _check(self, backend: Backend) -> None:
        self.stale.remove(backend)
        errand = Errand("server_check_query", self._checked)
        backend.run(self.limits.check_query or "", BackendState.CHECKING, errand, self.limits.connect_timeout)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _connect(self, decision: Connect) -> None:
        log.debug("%s: opening %d connections to %s: %s", self.key, decision.count, self.target, decision.reason)
        if self.allowance is not None:
            self._owed += decision.count
            return
        for number in range(decision.count):
            if self.accounts and not admit(self, self.accounts, evict=decision.waited_for):
                log.debug("%s:%s", self.key, self.full)
                return
            if number >= decision.count - decision.reserve:
                log.warning("%s: taking connection from reserve_pool", self.key)
            self._begin()

    def _begin(self) -> None:
        self._opening.begin(self.target, self.host, self.limits.connect_timeout)

    def _opened(self, opened: Opened) -> None:
        self._backoff.succeeded()
        backend = self._add(opened)
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

    def _add(self, opened: Opened) -> Backend:
        handshake = opened.handshake
        replies = Replies(Prepared(self.limits.prepared), handshake.parameters)
        target = handshake.target
        backend = Backend(opened.transport, target, handshake.key, replies, on_free=self._give, on_lost=self._lost)
        self._listen_to(backend)
        self.enroll(backend, opened)
        return backend

    def enroll(self, backend: Backend, opened: Opened) -> None:
        """``backend``, made of ``opened``, is one of the pool from now on."""
        backend.stats = self.stats
        backend.born = self._loop.time()
        backend.expires = self._end_of_life(backend)
        self.backends[backend.id] = backend
        self.counters.opened += 1
        if self.allowance is not None:
            backend.lingers = True
            self.allowance.opened(backend, opened)
        log.info(
            "S-%d: %s@%s new connection to server (from %s, pid=%d)",
            backend.id, self.key, backend.target, opened.origin, backend.pid,
        )  # fmt: skip
        if opened.exposed and not self._warned:
            self._warned = True
            log.warning("%s@%s password sent in clear, as the server wants it, without TLS", self.key, backend.target)

    def _started(self, backend: Backend) -> None:
        self.greeting.arrived(backend.replies.parameters)
        self._give_if_open(backend)

    def _end_of_life(self, backend: Backend) -> float:
        return expires_at(backend.born, self.limits, random.random()) if self.limits.lifetime else 0.0

    def _failed(self, error: GatewayError, began: float, attempt: object) -> None:
        self.counters.failed += 1
        self.unbook()
        if is_down(error):
            self.host.failed(attempt, error, began)
            pause = self.host.backoff.retry_at - self._loop.time()
        else:
            self._backoff.failed(error, began=began, now=self._loop.time(), retry=self.limits.retry)
            pause = self._backoff.retry_at - self._loop.time()
            # It has answered, at least.
            self.host.succeeded()
            if not is_for_now(error):
                self._refused(error)
        reason, age = error.log or error.message, int(self._loop.time() - began)
        log.warning(
            "%s@%s closing because: %s (age=%ds); next attempt in %.1f s",
            self.key, self.target, reason, age, max(0.0, pause),
        )  # fmt: skip
        self._maintain()
        self._note_use()

    def _refused(self, error: GatewayError) -> None:
        """Another login would be refused just the same; who waits is told why. Unless some backend will serve them."""
        self.greeting.failed(error)
        if isinstance(error, BackendRefused) and not self.backends:
            self.queue.end(error)

    def _lost(self, backend: Backend, reason: str) -> None:
        if backend in self.idle:
            self.idle.remove(backend)
        elif backend in self.stale:
            self.stale.remove(backend)
        if self.backends.pop(backend.id, None) is not None:
            self.unbook(backend)
        self.counters.closed += 1
        age = self._loop.time() - backend.born
        log.info("S-%d: %s@%s closing because: %s (age=%ds)", backend.id, self.key, backend.target, reason, int(age))
        self._left(backend, reason)
        self._maintain()
        if self._observed:
            self._tell_observers()
        self._note_use()

    def _note_use(self) -> None:
        if self.on_unused is not None and self.unused:
            self.on_unused()

    @property
    def unused(self) -> bool:
        """Whether it has neither sessions nor backends, nor opens any."""
        waiting = self.waiting or self.greeting.waiting or self.walsenders.waiting
        return not (self.sessions or self.backends or self._opening or waiting)

    def _give_up_opening(self) -> None:
        for _ in range(self._opening.give_up() + self.walsenders.give_up()):
            self.unbook()
