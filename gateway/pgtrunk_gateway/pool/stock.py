"""The backends of one pool: opened when sessions wait for them, checked, aged, closed.

The shell around :mod:`~pgtrunk_gateway.pool.decisions`: it counts, decides, and acts. The base of
:class:`~pgtrunk_gateway.pool.pool.Pool`, which lends the backends to sessions, and says what becomes of one that is
free.

What it shares with other pools: the server's state (:class:`Host`), and limits that span pools (:class:`Account`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from pgtrunk_gateway.pool.backend import Backend, BackendState, Errand
from pgtrunk_gateway.pool.counts import PoolCounts, count
from pgtrunk_gateway.pool.decisions import Check, Close, Connect, Idle, Situation, Stale, Wake, decide
from pgtrunk_gateway.pool.filling import Filling
from pgtrunk_gateway.pool.waiting import Waiting
from pgtrunk_gateway.pool.walsenders import Walsenders

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import PoolKey
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.accounts import Account
    from pgtrunk_gateway.pool.allowance import Allowance
    from pgtrunk_gateway.pool.connect import Deriver, SocketTuner
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.pool.limits import PoolLimits
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["ERRANDS", "Stock"]

log = logging.getLogger(__name__)

ERRANDS: Final = frozenset({BackendState.STARTING, BackendState.CHECKING, BackendState.RESETTING})
"""The states of a backend that will be free in a moment."""


class Stock(Filling):
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
        super().__init__(key, target, limits, derive=derive, tune=tune, host=host)
        self.accounts = accounts
        self.allowance = allowance
        self.kept = kept
        self.sessions = 0
        """Sessions that are logged in."""
        self.idle: list[Backend] = []
        """Those that can be given away at once; the last one is the next."""
        self.stale: list[Backend] = []
        """Those that are idle too, but have to be checked first."""
        self.taken: set[Profile] = set()
        """Settings, as clients spelt them, that the server has taken."""
        self.queue = Waiting(refusal=self._too_long, overdue=self.maintain)
        self.waiting = self.queue.holders
        """Who waits, in order."""
        self.walsenders = Walsenders(self, derive=derive, tune=tune, lost=self._lost)
        self.on_unused: Callable[[], None] | None = None
        """Told when the last session and the last backend are gone."""
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = float("inf")
        """When the timer rings."""
        self._closed = False
        self._paused = False
        self._maintaining = False
        self._keep: Callable[[Backend], None]
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

    # -- the end of backends -------------------------------------------------------------------------------------------

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
