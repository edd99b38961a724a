"""The clock of a session: whose turn it is and since when, what is counted of it, and what may not last longer.

The base of :class:`~pgtrunk_gateway.relay.lifecycle.Lifecycle`. A session that has no timeout pays for two time stamps
per transaction, its beginning here and its end, which the pool takes anyway; inside a transaction there are two more
per query, since the client's turns are not the query's time. A timeout is one timer that is hardly ever set
(:class:`LazyTimer`), and query_timeout one stamp more.

Four things may last too long, each in the situation that its name says and in no other:

query_timeout            from the request to its answer, the wait for a backend included
transaction_timeout      from the first request of a transaction, once there is a backend, to its end; and from BEGIN
                         where that has been answered without one
idle_transaction_timeout the client's turn, while a transaction, a batch or a message is open
client_idle_timeout      no backend is held, no transaction has begun and nothing is asked; who keeps a backend in
                         session mode is not idle
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import (
    GatewayError,
    IdleSessionTimeout,
    IdleTransactionTimeout,
    QueryCanceled,
    TransactionTimeout,
)
from pgtrunk_gateway.relay.lazy_timer import LazyTimer
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.session.inbound import Inbound
    from pgtrunk_gateway.session.requests import Requests
    from pgtrunk_gateway.stats.stages import StageTimes

__all__ = ["Pacing"]

_RESTS = frozenset({State.IDLE, State.SKIPPING})


class Pacing(asyncio.Protocol):
    """The times of a session, all by the loop's clock; 0.0: not now."""

    state: State
    backend: Backend | None
    requests: Requests
    _inbound: Inbound

    def __init__(self) -> None:
        self.terms = Terms()
        self.stats = PoolStats()
        """Of the session's pool, once it has one."""
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._particular = False
        """Whether the terms ask for more than every session gets."""
        self._asked_at = 0.0
        """When what is waited for, or runs, was asked."""
        self._waits_since = 0.0
        """When it began to wait for a backend."""
        self._begun_at = 0.0
        """When the transaction got a backend; 0.0 between two of them in session mode."""
        self._busy_at = 0.0
        """When the backend was handed what it runs, or has run last."""
        self._block_at = 0.0
        """When the client was told that its transaction has begun, without a backend; for transaction_timeout."""
        self._turn_at = 0.0
        """Since when it is the client's turn, while a backend is held."""
        self._idle_at = 0.0
        """Since when nothing is asked, and no backend held."""
        self._times: StageTimes | None = None
        """Where the times of executions and of waits for a backend go: to a client that wants them."""
        self._executed: Callable[[float], None] | None = None
        """Is told the time of an execution that has ended."""
        self._query_timer = LazyTimer(self._loop, self._query_due, self._query_late)
        self._transaction_timer = LazyTimer(self._loop, self._transaction_due, self._transaction_late)
        self._turn_timer = LazyTimer(self._loop, self._turn_due, self._turn_late)
        self._idle_timer = LazyTimer(self._loop, self._idle_due, self._idle_late)
        self._timers = (self._query_timer, self._transaction_timer, self._turn_timer, self._idle_timer)

    def _report_to(self, times: StageTimes | None) -> None:
        """The client wants to know how long its queries take here; None: it does not."""
        self._times = times
        self._executed = None if times is None else times.executions.append

    def _note_wait(self, seconds: float, times: StageTimes) -> None:
        """A request has waited for its backend. That is told with its execution, since a client lays the two beside
        what the request took it."""

        def executed(execution: float) -> None:
            times.waits.append(seconds)
            times.executions.append(execution)
            self._executed = times.executions.append

        self._executed = executed

    def fail(self, error: GatewayError) -> None:
        """Ends the session with ``error``."""
        raise NotImplementedError

    def _agree(self, terms: Terms) -> None:
        """These are its terms from now on; what is going on is measured by them as well."""
        before, self.terms = self.terms, terms
        now = self._time()
        # What nobody needed has not been noted, and begins now.
        if terms.query_timeout and not before.query_timeout:
            self._asked_at = now
        if not self._particular:
            self._idle_at = now
        if not terms.transaction_timeout:
            self._block_at = 0.0
        self._particular = terms.particular
        for timer in self._timers:
            timer.stop()
            timer.start()

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.stop()

    # -- what happens --------------------------------------------------------------------------------------------------

    def _asks(self, now: float) -> None:
        """A request came from a client whose terms are particular."""
        if self.terms.query_timeout:
            self._asked_at = now
            self._query_timer.start()

    def _begins(self, now: float) -> None:
        """A transaction begins."""
        self._begun_at = now
        if self.terms.transaction_timeout:
            self._transaction_timer.start()

    def _begins_idle(self, now: float) -> None:
        """A transaction begins, and no backend knows of it."""
        if self.terms.transaction_timeout:
            self._block_at = now
            self._transaction_timer.start()

    def _ends(self, now: float) -> None:
        """A transaction has ended."""
        self._block_at = 0.0
        stats = self.stats
        stats.xact_count += 1
        stats.xact_time += now - self._begun_at
        if self._executed is not None:
            self._executed(now - self._busy_at)

    def _clients_turn(self) -> None:
        """A transaction, a batch or a message is open, and the client has to go on."""
        if self._turn_at:
            # It was something that the backend said by itself.
            return
        self._turn_at = self._time()
        if not self.requests.open and not self._inbound.rest:
            self.stats.inner_query_count += 1
            if self._executed is not None:
                self._executed(self._turn_at - self._busy_at)
        if self.terms.idle_transaction_timeout:
            self._turn_timer.start()

    def _turn_ends(self) -> None:
        """The client goes on."""
        now = self._time()
        if self._begun_at:
            self.stats.think_time += now - self._turn_at
        else:
            self._begins(now)
        self._turn_at = 0.0
        self._busy_at = now
        if self._particular:
            self._asks(now)

    def _rests(self, now: float) -> None:
        """The backend is given back, and nothing is asked."""
        self._idle_at = now
        if self.state is State.BEGUN:
            if self.terms.idle_transaction_timeout:
                self._turn_timer.start()
        elif self.terms.client_idle_timeout:
            self._idle_timer.start()

    # -- what may not last longer --------------------------------------------------------------------------------------

    def _query_due(self) -> float | None:
        timeout = self.terms.query_timeout
        runs = self.state is State.WAITING or (self.backend is not None and not self._turn_at)
        return self._asked_at + timeout if timeout and runs else None

    def _query_late(self) -> None:
        self.fail(
            QueryCanceled(
                "query_timeout" if self.state is State.WAITING else "query timeout",
                detail=f"query_timeout = {self.terms.query_timeout:g} s.",
                hint="Raise query_timeout, or make the query faster.",
                severity="FATAL",
            )
        )

    def _transaction_due(self) -> float | None:
        timeout = self.terms.transaction_timeout
        since = self._block_at or (self._begun_at if self.backend is not None else 0.0)
        return since + timeout if timeout and since else None

    def _transaction_late(self) -> None:
        self.fail(
            TransactionTimeout(
                detail=f"transaction_timeout = {self.terms.transaction_timeout:g} s.",
                hint="Commit or roll back sooner, or raise transaction_timeout.",
            )
        )

    def _turn_due(self) -> float | None:
        timeout = self.terms.idle_transaction_timeout
        since = self._idle_at if self.state is State.BEGUN else self._turn_at if self._begun_at else 0.0
        return since + timeout if timeout and since else None

    def _turn_late(self) -> None:
        self.fail(
            IdleTransactionTimeout(
                detail=f"idle_transaction_timeout = {self.terms.idle_transaction_timeout:g} s.",
                hint="Commit or roll back sooner, or raise idle_transaction_timeout.",
            )
        )

    def _idle_due(self) -> float | None:
        timeout = self.terms.client_idle_timeout
        return self._idle_at + timeout if timeout and self.state in _RESTS else None

    def _idle_late(self) -> None:
        self.fail(
            IdleSessionTimeout(
                detail=f"client_idle_timeout = {self.terms.client_idle_timeout:g} s.",
                hint="Raise client_idle_timeout, or let the client's pool close connections sooner.",
            )
        )
