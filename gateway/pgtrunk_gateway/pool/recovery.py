"""What a backend does between two sessions, so that the next one finds it as new.

It may run an *errand*: a query of the gateway's own, connect_query, server_check_query or server_reset_query, after
which it is given back.

A backend whose holder vanishes is *recovered*: what runs is cancelled, what is owed is drained, an open transaction is
rolled back; then it is as good as new. It is closed instead where that cannot be done, or takes too long.

The lower half of :class:`~pgtrunk_gateway.pool.backend.Backend`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.pool.backend_state import BackendState
from pgtrunk_gateway.pool.errand import Errand
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.parameters import Profile, profile
from pgtrunk_gateway.session.replies import IDLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.holder import Holder
    from pgtrunk_gateway.session.replies import Replies

__all__ = ["OUT_OF_STEP", "Recoverable"]

log = logging.getLogger(__name__)

OUT_OF_STEP: Final = "server answers cannot be told apart"
_UNTOLD: Final = "it cannot be told what its last session has left"
_IDLE: Final = IDLE
_GONE: Final = b"the client is gone"
"""No SQL, whatever the server's version."""


class Recoverable(asyncio.Protocol):
    """A backend that somebody may hold, and its way back when they do not any more."""

    __slots__ = (
        "_abandoned",
        "_errand",
        "_executes",
        "_loop",
        "_on_free",
        "_recovery",
        "_reset",
        "_unfinished",
        "cancels",
        "holder",
        "id",
        "profile",
        "replies",
        "retired",
        "state",
        "transport",
    )

    def __init__(
        self, number: int, transport: asyncio.Transport, replies: Replies, *, on_free: Callable[[Backend], None]
    ) -> None:
        self.id = number
        """Unique in this process, over all servers: pids may collide."""
        self.transport = transport
        self.replies = replies
        self.profile: Profile = profile(replies.parameters, replies.others)
        """The settings that it has now."""
        self.holder: Holder | None = None
        self.state = BackendState.OPEN
        self.cancels = 0
        """Cancel requests under way; until they have ended, nobody else may get this backend."""
        self.retired = ""
        """Why it is to be closed when it is free."""
        self._loop = asyncio.get_running_loop()
        self._on_free = on_free
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

    def close(self, reason: str) -> None:
        """Ends the connection."""
        raise NotImplementedError

    def drop(self, reason: str) -> None:
        """Ends it in the middle of a message."""
        raise NotImplementedError

    def retire(self, reason: str) -> None:
        """It is to be closed when it is free."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """Nobody is there any more for whom it would wait."""
        raise NotImplementedError

    def _is_free(self, errand: Errand | None) -> None:
        """Between two sessions it has nothing more to do; ``errand`` is what it has done."""
        raise NotImplementedError

    @property
    def runs(self) -> bool:
        """Whether it has something to do that a cancel could end."""
        queue = self.replies.queue
        if len(queue) == 1 and isinstance(queue[0], owed.Asking):
            return False
        return len(queue) > self._unfinished or self._executes

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
        self._is_free(errand)

    def _end_recovery(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None

    def _too_slow(self, timeout: float) -> None:
        self.close(f"cancel_wait_timeout: not idle again {timeout:g} s after its client vanished")

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

    # -- bytes that come while nobody holds it -------------------------------------------------------------------------

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
