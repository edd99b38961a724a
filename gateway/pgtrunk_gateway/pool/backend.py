"""One connection to Postgres, once it is logged in.

A backend serves one session at a time, its *holder*, from :meth:`Pool.take` or :meth:`Holder.offer` until it is
settled: nothing is owed, no transaction is open, no cancel is under way. It hands every chunk through
:class:`~pgtrunk_gateway.session.replies.Replies`, which says what of it the holder gets.

What it does between two sessions is in :mod:`~pgtrunk_gateway.pool.recovery`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.hints import SENT
from pgtrunk_gateway.errors import BackendLost, GatewayError, ShuttingDown
from pgtrunk_gateway.pool.backend_state import BackendState
from pgtrunk_gateway.pool.errand import Errand
from pgtrunk_gateway.pool.numbers import Numbers
from pgtrunk_gateway.pool.recovery import OUT_OF_STEP, Recoverable
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.parameters import profile
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pgtrunk_gateway.pool.holder import Holder
    from pgtrunk_gateway.pool.target import Target
    from pgtrunk_gateway.session.replies import Replies

__all__ = ["OUT_OF_STEP", "Backend", "BackendState", "Errand", "ids"]

ids: Final = Numbers()
"""Of backends and sessions together, as in PgBouncer: a number in the log or the console means one of them, in a fleet
too."""
_AHEAD: Final = (*owed.BEGIN, owed.FAILING)


class Backend(Recoverable):
    """Made from a transport on which the login is done. ``key`` is None for a server that gave none."""

    __slots__ = (
        "_on_lost",
        "born",
        "expires",
        "hung_up",
        "idle_since",
        "key",
        "lease",
        "lingers",
        "stats",
        "target",
        "watch",
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
        super().__init__(next(ids), transport, replies, on_free=on_free)
        self.target = target
        self.key = key
        self.stats = PoolStats()
        """Of its pool, once it is in one."""
        self.lease = 0
        """Number of the lease, to tell whether the one that a cancel was meant for is over."""
        self.born = self.idle_since = self.expires = 0.0
        self.watch: Callable[[Backend], None] | None = None
        """Told when it has reported a setting, or refused to write: its server may not be what it was."""
        self.lingers = False
        """Whether the connection stays open at its end, until Postgres has closed it (:mod:`.parting`)."""
        self.hung_up = False
        """Whether Postgres has closed it."""
        self._on_lost = on_lost

    @property
    def is_setting(self) -> bool:
        """Whether it is at what the gateway sends for a session, and not at what the session asks."""
        queue = self.replies.queue
        if not queue:
            return False
        head, last = queue[0], queue[-1]
        if head.hidden and last.hidden and isinstance(last, owed.Describing):
            # It looks at a statement before it sends what the session wants with it.
            return True
        return isinstance(head, (owed.Applying, owed.Asking)) or head in _AHEAD

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
                if self.watch is not None:
                    self.watch(self)
            holder.settled()

    # -- leases --------------------------------------------------------------------------------------------------------

    def lease_to(self, holder: Holder) -> None:
        """``holder`` has it from now on."""
        self.holder = holder
        self.lease += 1

    def release(self) -> None:
        """The holder gives it back: settled, outside a transaction, and without a cancel on its way to it."""
        self.holder = None
        if (fatal := self.replies.fatal) is not None:
            # It has said that it goes away: nobody shall get it before it does.
            self.idle_since = self._loop.time()
            self.close(server.parse_error(fatal).message)
            return
        self._on_free(self)

    def _is_free(self, errand: Errand | None) -> None:
        (self._on_free if errand is None else errand.done)(self)

    def retire(self, reason: str) -> None:
        """Its pool closes it at the end of this lease."""
        self.retired = reason
        self.expires = 0.0

    # -- the end -------------------------------------------------------------------------------------------------------

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
            if not self.lingers:
                self.transport.close()
        else:
            # Terminate would wait for the end of what runs.
            self.transport.abort()
        self._lost(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self.hung_up = True
        fatal = self.replies.fatal
        if fatal is not None:
            self._lost(server.parse_error(fatal).message, told=not self.replies.unasked)
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
            hint=SENT,
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
