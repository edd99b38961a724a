"""The connections that a pool opens, and what comes of them: a backend more, or an attempt that has failed.

The base of :class:`~pgtrunk_gateway.pool.stock.Stock`, which says how many are opened, and when. Each has its place
under the limits of all before it is begun, and gives it back when it fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import BackendRefused, GatewayError
from pgtrunk_gateway.pool.accounts import admit
from pgtrunk_gateway.pool.backend import Backend, BackendState, Errand
from pgtrunk_gateway.pool.backoff import Backoff, is_down, is_for_now
from pgtrunk_gateway.pool.counts import PoolCounters
from pgtrunk_gateway.pool.decisions import Connect, Idle, expires_at
from pgtrunk_gateway.pool.following import Following
from pgtrunk_gateway.pool.greeting import Greeting
from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.limited import Limited
from pgtrunk_gateway.pool.opening import Opening
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import PoolKey
    from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner
    from pgtrunk_gateway.pool.limits import PoolLimits
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.pool.waiting import Waiting

__all__ = ["Filling"]

log = logging.getLogger(__name__)


class Filling(Following, Limited):
    """For the arguments see :class:`~pgtrunk_gateway.pool.stock.Stock`."""

    queue: Waiting

    def __init__(
        self,
        key: PoolKey,
        target: Target,
        limits: PoolLimits,
        *,
        derive: Deriver,
        tune: SocketTuner,
        host: Host | None,
    ) -> None:
        self.key = key
        self.target = target
        self.limits = limits
        self.host = host or Host(lambda: self.limits.retry)
        super().__init__()
        self.counters = PoolCounters()
        self.stats = PoolStats()
        self.backends: dict[int, Backend] = {}
        self.greeting = Greeting()
        self._opening = Opening(str(key), derive=derive, tune=tune, opened=self._opened, failed=self._failed)
        self._backoff = Backoff()
        """For what is this login's fault alone."""
        self._warned = False
        """Of a password that crosses the network in clear."""
        self._loop = asyncio.get_running_loop()

    def idlers(self) -> list[Idle]:
        """Its idle backends, those that have been idle longest first."""
        raise NotImplementedError

    def _maintain(self) -> None:
        raise NotImplementedError

    def _note_use(self) -> None:
        raise NotImplementedError

    def _lost(self, backend: Backend, reason: str) -> None:
        raise NotImplementedError

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
