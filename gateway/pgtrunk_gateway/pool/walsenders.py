"""The replication connections of one pool: who waits for one, and those that are being opened.

They are never kept, and count like all others in pool_size, max_db_connections and max_user_connections. So a client
that replicates waits for a place, not for a backend. Rules:

1.  Places go to those who wait, sessions and replication alike, in the order in which they came.
2.  For a place that is missing, idle backends are closed: those of this pool first, then those of others that share the
    limit which is reached. Of backends in use, the first that is given back is closed, unless it is due to a session
    that has waited longer.
3.  A place in the reserve is for who has waited for reserve_pool_timeout, as it is for sessions.
4.  While the server is down, one connection tries for all pools, as ever. But what Postgres refuses is told to the
    client that wanted it, and to nobody else: whether somebody may replicate says nothing about other logins.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from pgtrunk_gateway.errors import LoginRefused
from pgtrunk_gateway.pool.accounts import admit
from pgtrunk_gateway.pool.backoff import is_down
from pgtrunk_gateway.pool.opening import Opening
from pgtrunk_gateway.pool.walsender import Replication, Walsender

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner
    from pgtrunk_gateway.pool.stock import Stock
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Walsenders"]

log = logging.getLogger(__name__)

_NEVER: Final = float("inf")
_LONGEST_STARTUP: Final = 9_500
"""Octets of settings; PostgreSQL takes 10,000 of a startup packet, and hangs up on more without a word."""


class _Applicant:
    """A client that waits: since when, for what, and what becomes of it."""

    __slots__ = ("kind", "opening", "outcome", "settings", "since")

    def __init__(self, kind: Replication, settings: Mapping[str, str], since: float) -> None:
        self.kind = kind
        self.settings = tuple(settings.items())
        self.since = since
        self.opening: Opening
        self.outcome: asyncio.Future[Walsender] = asyncio.get_running_loop().create_future()

    def refuse(self, error: GatewayError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class Walsenders:
    """Those of ``pool``, which calls :meth:`advance` whenever something may have become possible."""

    def __init__(
        self, pool: Stock, *, derive: Deriver, tune: SocketTuner, lost: Callable[[Backend, str], None]
    ) -> None:
        self._pool = pool
        self._lost = lost
        self._derive = derive
        self._tune = tune
        self._queue: dict[_Applicant, None] = {}
        self._opening: dict[_Applicant, None] = {}
        self._openings: WeakSet[Opening] = WeakSet()
        """With what was given up, and has not ended yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = _NEVER
        """When the timer rings."""
        self._loop = asyncio.get_running_loop()

    @property
    def waiting(self) -> int:
        """How many clients wait, those included whose connection is being opened."""
        return len(self._queue) + len(self._opening)

    @property
    def queued(self) -> int:
        """How many of them have no place yet."""
        return len(self._queue)

    @property
    def overdue(self) -> int:
        """How many of those who have no place have waited for so long that the reserve is for them too."""
        limits = self._pool.limits
        if not limits.reserve or not limits.reserve_timeout:
            return 0
        return sum(applicant.since + limits.reserve_timeout <= self._loop.time() for applicant in self._queue)

    @property
    def opening(self) -> int:
        return len(self._opening)

    @property
    def count(self) -> int:
        """How many connections there are."""
        return sum(isinstance(backend, Walsender) for backend in self._pool.backends.values())

    @property
    def since(self) -> float:
        """Since when the first one waits for a place; infinity: nobody does."""
        for applicant in self._queue:
            return applicant.since
        return _NEVER

    async def apply(self, kind: Replication, settings: Mapping[str, str]) -> Walsender:
        """A new connection, with ``settings`` in its startup packet behind those of the pool.

        Raises what Postgres, or the end of the pool, has to say instead. The caller sets the deadline, and closes it.
        """
        applicant = _Applicant(kind, settings, self._loop.time())
        applicant.opening = Opening(
            str(self._pool.key),
            derive=self._derive,
            tune=self._tune,
            opened=partial(self._opened, applicant),
            failed=partial(self._failed, applicant),
        )
        _check_length(self._target(applicant))
        self._openings.add(applicant.opening)
        self._queue[applicant] = None
        self._pool.contend()
        self._pool.maintain()
        try:
            return await applicant.outcome
        except BaseException:
            self._withdraw(applicant)
            raise

    def _withdraw(self, applicant: _Applicant) -> None:
        """Nobody waits for it any more, or it was refused."""
        if applicant in self._opening:
            del self._opening[applicant]
            applicant.opening.give_up()
            self._pool.unbook()
        self._queue.pop(applicant, None)
        outcome = applicant.outcome
        if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
            # Its connection was there, and who wanted it left before he could know.
            outcome.result().close("replication client left")
        self._pool.contend()
        self._pool.maintain()

    # -- places --------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Opens a connection for each who waits, in their order, as far as there is room. The pool is not paused."""
        while self._queue and self._begin(next(iter(self._queue))):
            pass

    def wants(self, oldest: float) -> bool:
        """Whether a backend that was given back is in the way of one who has waited longer than since ``oldest``."""
        return self.since < oldest and not self._is_held_up()

    def _begin(self, applicant: _Applicant) -> bool:
        pool = self._pool
        if self._is_held_up():
            self._look_again(pool.host.backoff.retry_at)
            return False
        if not self._has_place(applicant):
            return False
        if pool.allowance is None and pool.limits.size and pool.count >= pool.limits.size:
            log.warning("%s: taking connection from reserve_pool", pool.key)
        del self._queue[applicant]
        self._opening[applicant] = None
        pool.contend()
        log.debug("%s: opening a connection to %s: %s replication", pool.key, pool.target, applicant.kind.value)
        applicant.opening.begin(self._target(applicant), pool.host, pool.limits.connect_timeout)
        return True

    def _is_held_up(self) -> bool:
        """Whether the server is down, and it is not its turn to be tried."""
        host = self._pool.host
        return self._loop.time() < host.backoff.retry_at or host.admits == 0

    def _has_place(self, applicant: _Applicant) -> bool:
        pool = self._pool
        if pool.allowance is None:
            return self._make_room(applicant) and admit(pool, pool.accounts, evict=True)
        if pool.allowance.spare <= self._ahead(applicant):
            if pool.limits.reserve and pool.limits.reserve_timeout:
                self._look_again(applicant.since + pool.limits.reserve_timeout)
            return False
        pool.book(pool.allowance)
        return True

    def _make_room(self, applicant: _Applicant) -> bool:
        """Closes what is idle in this pool and in the way -> whether pool_size allows one more."""
        pool = self._pool
        idle = pool.idlers()
        excess = self._excess(applicant)
        if excess > len(idle):
            return False
        for backend in idle[: max([excess, *(account.excess for account in pool.accounts)])]:
            pool.evict(backend.id)
        return True

    def _excess(self, applicant: _Applicant) -> int:
        """How many backends of the pool are in the way of one more."""
        pool, limits = self._pool, self._pool.limits
        if not limits.size:
            return 0
        places = limits.size
        if limits.reserve and limits.reserve_timeout:
            overdue_at = applicant.since + limits.reserve_timeout
            if overdue_at <= self._loop.time():
                places += limits.reserve
            else:
                self._look_again(overdue_at)
        return max(0, pool.count + self._ahead(applicant) + 1 - places)

    def _ahead(self, applicant: _Applicant) -> int:
        """Places that are due to sessions which came before it, as far as it matters."""
        pool = self._pool
        # What is idle, or comes, serves them first.
        serving = pool.count - pool.busy - self.opening
        older = int(pool.greeting.since <= applicant.since)
        for waiter in itertools.islice(pool.queue.holders.values(), pool.limits.size + serving):
            if waiter.since > applicant.since:
                break
            older += 1
        return max(0, older - serving)

    def _look_again(self, at: float) -> None:
        if at <= self._loop.time():
            # Somebody tries already, and how that ends will be told.
            return
        if at < self._looks_at:
            self.stop()
            self._timer = self._loop.call_at(at, self._woken)
            self._looks_at = at

    def _woken(self) -> None:
        self._timer, self._looks_at = None, _NEVER
        self._pool.maintain()

    # -- opening -------------------------------------------------------------------------------------------------------

    def _target(self, applicant: _Applicant) -> Target:
        target = self._pool.target
        return replace(target, settings=(*target.settings, *applicant.settings))

    def _opened(self, applicant: _Applicant, opened: Opened) -> None:
        del self._opening[applicant]
        if applicant.outcome.done():
            # Who wanted it has just left, and has not come to withdraw yet.
            opened.transport.abort()
            self._pool.unbook()
            return
        walsender = Walsender(opened, applicant.kind, on_lost=self._lost)
        self._pool.enroll(walsender, opened)
        opened.transport.set_protocol(walsender)
        applicant.outcome.set_result(walsender)

    def _failed(self, applicant: _Applicant, error: GatewayError, began: float, attempt: object) -> None:
        pool = self._pool
        pool.counters.failed += 1
        del self._opening[applicant]
        self._pool.unbook()
        age = int(self._loop.time() - began)
        log.warning("%s@%s closing because: %s (age=%ds)", pool.key, pool.target, error.log or error.message, age)
        if is_down(error):
            # It was the first before, and is again.
            self._queue = {applicant: None, **self._queue}
            pool.host.failed(attempt, error, began)
        else:
            # It has answered, at least.
            pool.host.succeeded()
            applicant.refuse(error)
        pool.contend()
        pool.maintain()

    # -- the end -------------------------------------------------------------------------------------------------------

    def give_up(self) -> int:
        """Ends the connections that are being opened; who wanted them waits on -> how many those were."""
        given_up, self._opening = self._opening, {}
        for applicant in given_up:
            applicant.opening.give_up()
        # Those who were refused meanwhile know, and come to withdraw.
        self._queue = {each: None for each in (*given_up, *self._queue) if not each.outcome.done()}
        return len(given_up)

    def refuse(self, error: GatewayError) -> None:
        """All who wait get ``error``; :meth:`give_up` ends what was being opened for them."""
        for applicant in (*self._queue, *self._opening):
            applicant.refuse(error)
        self._queue.clear()

    def stop(self) -> None:
        """It does not look again by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._looks_at = None, _NEVER

    async def ended(self) -> None:
        """Returns when what was given up has left nothing."""
        await asyncio.gather(*(opening.ended() for opening in list(self._openings)))


def _check_length(target: Target) -> None:
    size = sum(len(f"{name}{value}".encode("utf-8", "surrogateescape")) + 2 for name, value in target.settings)
    if size > _LONGEST_STARTUP:
        raise LoginRefused(
            "the settings of a replication connection are too long",
            sqlstate="54000",
            detail=f"They have {size} octets; the server takes {_LONGEST_STARTUP}.",
        )
