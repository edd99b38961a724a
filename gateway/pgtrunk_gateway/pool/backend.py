"""One connection to Postgres, once it is logged in.

A backend serves one session at a time, its *holder*, from :meth:`Pool.take` or :meth:`Holder.offer` until it is
settled: nothing is owed, no transaction is open, no cancel is under way. It hands every chunk through
:class:`~pgtrunk_gateway.session.replies.Replies`, which says what of it the holder gets.

Between two sessions it may run an *errand*: a query of the gateway's own, connect_query, server_check_query or
server_reset_query, after which it is given back.

A backend whose holder vanishes is *recovered*: what runs is cancelled, what is owed is drained, an open transaction is
rolled back; then it is as good as new. It is closed instead where that cannot be done, or takes too long.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.errors import BackendLost, GatewayError, ShuttingDown
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.parameters import Profile, profile
from pgtrunk_gateway.session.replies import IDLE
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.holder import Holder
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.session.replies import Replies

__all__ = ["OUT_OF_STEP", "Backend", "BackendState", "Errand", "ids"]

log = logging.getLogger(__name__)

ids: Final = itertools.count(1)
"""Of backends and sessions together, as in PgBouncer: a number in the log or the console means one of them."""
_IDLE: Final = IDLE
OUT_OF_STEP: Final = "server answers cannot be told apart"
_UNTOLD: Final = "it cannot be told what its last session has left"
_AHEAD: Final = (*owed.BEGIN, owed.FAILING)
_GONE: Final = b"the client is gone"
"""No SQL, whatever the server's version."""


class BackendState(enum.Enum):
    """Beside ``holder``: whether it is usable, lost, or between two sessions."""

    OPEN = "open"
    STARTING = "runs connect_query"
    CHECKING = "being checked"
    RESETTING = "being reset"
    RECOVERING = "being recovered"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Errand:
    """A query of the gateway's own: from which setting it is, and what comes after it."""

    setting: str
    done: Callable[[Backend], None]
    lenient: bool = False
    """Whether an error is only logged; else it closes the backend."""


class Backend(asyncio.Protocol):
    """Made from a transport on which the login is done. ``key`` is None for a server that gave none."""

    __slots__ = (
        "_abandoned",
        "_errand",
        "_executes",
        "_loop",
        "_on_free",
        "_on_lost",
        "_recovery",
        "_reset",
        "_unfinished",
        "born",
        "cancels",
        "expires",
        "holder",
        "id",
        "idle_since",
        "key",
        "lease",
        "profile",
        "replies",
        "retired",
        "state",
        "stats",
        "target",
        "transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        target: Target,
        key: server.BackendKeyData | None,
        replies: Replies,
        *,
        on_free: Callable[[Backend], None],
        on_lost: Callable[[Backend, str], None],
    ) -> None:
        self.id = next(ids)
        """Unique in this process, over all servers: pids may collide."""
        self.transport = transport
        self.target = target
        self.key = key
        self.replies = replies
        self.profile: Profile = profile(replies.parameters, replies.others)
        """The settings that it has now."""
        self.stats = PoolStats()
        """Of its pool, once it is in one."""
        self.holder: Holder | None = None
        self.state = BackendState.OPEN
        self.lease = 0
        """Number of the lease, to tell whether the one that a cancel was meant for is over."""
        self.cancels = 0
        """Cancel requests under way; until they have ended, nobody else may get this backend."""
        self.born = self.idle_since = self.expires = 0.0
        self.retired = ""
        """Why it is to be closed when it is free."""
        self._loop = asyncio.get_running_loop()
        self._on_free = on_free
        self._on_lost = on_lost
        self._recovery: asyncio.TimerHandle | None = None
        self._errand: Errand | None = None
        self._reset: tuple[str, float] | None = None
        """What :meth:`reset` is to be called with at the end of a recovery."""
        self._abandoned = ""
        """Why it is dropped as soon as it has nothing to do any more."""
        self._unfinished = 0
        """How many of the answers owed will not come: to a message that ends nowhere, or in the same batch."""
        self._executes = False
        """Something of that batch may run, and no cancel has been there."""

    @property
    def runs(self) -> bool:
        """Whether it has something to do that a cancel could end."""
        queue = self.replies.queue
        if len(queue) == 1 and isinstance(queue[0], owed.Asking):
            return False
        return len(queue) > self._unfinished or self._executes

    @property
    def is_setting(self) -> bool:
        """Whether it is at what the gateway sends for a session, and not at what the session asks."""
        queue = self.replies.queue
        return bool(queue) and (isinstance(queue[0], (owed.Applying, owed.Asking)) or queue[0] in _AHEAD)

    @property
    def pid(self) -> int:
        """Process id in Postgres, 0 where unknown."""
        return self.key.pid if self.key is not None else 0

    def __repr__(self) -> str:
        target = self.target
        use = "leased" if self.holder is not None else self.state.value
        return f"<Backend S-{self.id} {target.dbname}/{target.user}@{target} pid={self.pid} {use}>"

    # -- hot: bytes from Postgres --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        replies = self.replies
        out = replies.feed(data)
        holder = self.holder
        if holder is None:
            self._unheld()
            return
        if out:
            self.stats.sent += len(out)
            holder.relay(out)
        if not replies.queue and not replies.partial:
            if replies.profile_changed:
                self.profile = profile(replies.parameters, replies.others)
            holder.settled()

    # -- leases --------------------------------------------------------------------------------------------------------

    def lease_to(self, holder: Holder) -> None:
        """``holder`` has it from now on."""
        self.holder = holder
        self.lease += 1

    def release(self) -> None:
        """The holder gives it back: settled, outside a transaction, and without a cancel on its way to it."""
        self.holder = None
        self._on_free(self)

    def retire(self, reason: str) -> None:
        """Its pool closes it at the end of this lease."""
        self.retired = reason
        self.expires = 0.0

    # -- errands -------------------------------------------------------------------------------------------------------

    def reset(self, sql: str, timeout: float) -> None:
        """As :meth:`release`, but others get it only when it has run ``sql``; closed after ``timeout`` seconds."""
        self.run(sql, BackendState.RESETTING, Errand("server_reset_query", self._on_free), timeout)

    def run(self, sql: str, state: BackendState, errand: Errand, timeout: float) -> None:
        """Runs ``sql`` for nobody. Settled, outside a transaction, and not held by others than the caller."""
        self.holder = None
        self.state = state
        self._errand = errand
        if timeout:
            self._recovery = self._loop.call_later(timeout, self._errand_too_slow, errand.setting, timeout)
        replies = self.replies
        replies.asker = None
        replies.notifies = False
        replies.unnamed = None
        replies.push(owed.HIDDEN_QUERY)
        self.transport.write(client.query(sql.encode()))

    def _errand_further(self, errand: Errand) -> None:
        replies = self.replies
        if not replies.settled:
            return
        error, replies.hidden_error = replies.hidden_error, None
        if error is not None:
            reason = f"{errand.setting} failed: {server.parse_error(error).message}"
            if not errand.lenient:
                self.close(reason)
                return
            log.warning("S-%d: %s", self.id, reason)
        # The rest is as after a recovery: a transaction that it left open is rolled back.
        self.state = BackendState.RECOVERING
        self._recover_further()

    def _errand_too_slow(self, setting: str, timeout: float) -> None:
        self._recovery = None
        self.close(f"{setting}: no answer within {timeout:g} s")

    def cancel_ended(self) -> None:
        """A cancel request is over: Postgres has closed its connection, or it was never sent."""
        self.cancels -= 1
        self._executes = False
        if self.cancels or self.state is BackendState.CLOSED:
            return
        if self.holder is not None:
            if self.replies.settled:
                self.holder.settled()
        elif self.state is BackendState.RECOVERING:
            self._recover_further()

    # -- recovery ------------------------------------------------------------------------------------------------------

    def recover(self, *, open_batch: bool, timeout: float, reset: str | None = None) -> bool:
        """The holder is gone -> whether something still runs.

        ``open_batch``: it had sent part of a batch, without Sync. After ``timeout`` seconds the backend is closed.
        ``reset``: what it has to be reset with before anybody else gets it, as in :meth:`reset`.
        """
        self._reset = None if reset is None else (reset, timeout)
        self.holder = None
        self.state = BackendState.RECOVERING
        self.resume_reading()
        replies = self.replies
        replies.take_notes()
        replies.asker = None
        replies.notifies = False
        running = self.runs
        self._recovery = self._loop.call_later(timeout, self._too_slow, timeout)
        if replies.queue or open_batch:
            self._end_what_runs(open_batch)
        else:
            self._recover_further()
        return running

    def _end_what_runs(self, open_batch: bool) -> None:
        # CopyFail and Sync are ignored where they do not apply: outside COPY, and in the simple protocol, where Sync
        # only makes one more ReadyForQuery. But the Sync of an open batch would commit what the client never did
        # commit, so something that fails goes before it.
        replies = self.replies
        replies.copying = False
        ending = client.copy_fail(_GONE)
        if open_batch:
            replies.unnamed = None
            replies.push(owed.HIDDEN_PARSE)
            ending += client.parse(b"", _GONE)
        replies.push(owed.HIDDEN_SYNC)
        self.transport.write(ending + client.SYNC_MESSAGE)

    def _recover_further(self) -> None:
        replies = self.replies
        if self._abandoned:
            if not self.cancels and (not self.runs or replies.copying):
                self.drop(self._abandoned)
            return
        if self.cancels or not replies.settled:
            return
        if replies.status != _IDLE:
            if replies.hidden_error is not None:
                self.close("ROLLBACK failed")
                return
            replies.push(owed.HIDDEN_QUERY)
            self.transport.write(client.query(b"ROLLBACK"))
            return
        self._end_recovery()
        if replies.failed_inquiry:
            self.retire(_UNTOLD)
        replies.take_notes()
        if not replies.in_step:
            self.retire(OUT_OF_STEP)
        self.profile = profile(replies.parameters, replies.others)
        self.state = BackendState.OPEN
        errand, self._errand = self._errand, None
        reset, self._reset = self._reset, None
        if reset is not None and not self.retired:
            self.reset(*reset)
            return
        (self._on_free if errand is None else errand.done)(self)

    def _end_recovery(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None

    def _too_slow(self, timeout: float) -> None:
        self.close(f"cancel_wait_timeout: not idle again {timeout:g} s after its client vanished")

    # -- the end -------------------------------------------------------------------------------------------------------

    def _unheld(self) -> None:
        # Nobody holds it: what comes is the rest of a recovery, or Postgres has something to say by itself.
        replies = self.replies
        if self.state is BackendState.RECOVERING:
            self._recover_further()
        elif replies.fatal is not None:
            # Nobody shall get it between this and the end of the connection.
            self.close(server.parse_error(replies.fatal).message)
        elif self._errand is not None:
            self._errand_further(self._errand)
        elif not replies.in_step:
            self.close(OUT_OF_STEP)
        elif replies.profile_changed:
            # A reload of postgresql.conf reports changed settings to idle connections too.
            replies.take_notes()
            self.profile = profile(replies.parameters, replies.others)

    def abandon(self, reason: str, *, unfinished: int, timeout: float) -> bool:
        """The holder is gone in the middle of a message, to which the last ``unfinished`` answers would be
        -> whether something of before still runs, and should be cancelled.

        The backend is dropped when that is over, or after ``timeout`` seconds: it will take nothing more.
        """
        batch = list(self.replies.queue)
        del batch[len(batch) - unfinished :]
        while batch and not batch[-1].ready:
            # Postgres keeps its answer to this until the end of the batch, so that it cannot be waited for.
            self._executes |= batch.pop() is owed.EXECUTE
        self._unfinished = len(self.replies.queue) - len(batch)
        if not self.runs or self.replies.copying:
            self.drop(reason)
            return False
        self.holder = None
        self.state = BackendState.RECOVERING
        self._abandoned = reason
        self.resume_reading()
        self.replies.take_notes()
        self.replies.asker = None
        self.replies.notifies = False
        self._recovery = self._loop.call_later(timeout, self.drop, reason)
        return True

    def drop(self, reason: str) -> None:
        """The holder gives it up in the middle of a message, which Terminate would only complete."""
        self.holder = None
        self.transport.abort()
        self._lost(reason)

    def close(self, reason: str) -> None:
        """Ends the connection. A holder hears of it as of any loss."""
        if self.state is BackendState.CLOSED:
            return
        if self.state is BackendState.OPEN and self.holder is None:
            self.transport.write(client.TERMINATE_MESSAGE)
            self.transport.close()
        else:
            # Terminate would wait for the end of what runs.
            self.transport.abort()
        self._lost(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        fatal = self.replies.fatal
        if fatal is not None:
            self._lost(server.parse_error(fatal).message, told=True)
        else:
            self._lost(f"server conn crashed? ({exc})" if exc else "server conn crashed?")

    def _lost(self, reason: str, *, told: bool = False) -> None:
        if self.state is BackendState.CLOSED:
            return
        self._end_recovery()
        self._errand = None
        self.state = BackendState.CLOSED
        holder, self.holder = self.holder, None
        self._on_lost(self, reason)
        if holder is not None:
            holder.backend_lost(self._loss(reason), told)

    def _loss(self, reason: str) -> GatewayError:
        if reason == self.retired:
            return ShuttingDown(reason, detail=f"Backend pid {self.pid} is closed by an administrator.")
        return BackendLost(
            "server connection was lost",
            detail=f"Backend pid {self.pid}: {reason}.",
            hint="What was not committed is rolled back; whether a commit that was under way took place is not known.",
            log=reason,
        )

    # -- backpressure --------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        if self.holder is not None:
            self.holder.backend_full()

    def resume_writing(self) -> None:
        if self.holder is not None:
            self.holder.backend_drained()

    def pause_reading(self) -> None:
        """The holder's socket is full."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The holder's socket drains again, or nobody is there any more to wait for."""
        if not self.transport.is_closing():
            self.transport.resume_reading()
