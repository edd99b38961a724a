"""Transactions that the client has begun, and of which no backend knows yet.

Between :class:`~pgtrunk_gateway.relay.lasting.Lasting` and :class:`~pgtrunk_gateway.relay.measuring.Measuring`. A BEGIN
by itself would take a backend, which then waits for the client's next request, one round trip of a WAN away. So it is
answered at once, and travels with that request (lazy_begin). What is different: the snapshot, now() and Postgres' own
limits on the time of a transaction begin there, and so does the wait for a backend. Everything else is as Postgres has
it: a text that is not quite plain, and a BEGIN within a transaction, go to a backend.

While a transaction is begun so, the session is in BEGUN and holds nothing.

BEGIN does not travel as the simple query that it was, but in the extended protocol and without a Sync: should it fail,
which takes somebody on the server who cancels just that, Postgres skips what came with it. Otherwise it would run by
itself, and be committed. Its answers are flushed all the same, so that it is known when BEGIN is over, and a cancel
means the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import HEAD
from pgtrunk.wire.frontend import FLUSH_MESSAGE, QUERY, bind, close_portal, execute, parse, query
from pgtrunk_gateway.errors import GatewayError
from pgtrunk_gateway.relay.lasting import Lasting
from pgtrunk_gateway.relay.pausing import UNREAD
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.skipping import skip_idle
from pgtrunk_gateway.session.sql.blocks import BlockCommand, block_command
from pgtrunk_gateway.session.state import Event

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["Begun"]

_QUERY: Final = bytes((QUERY,))
_RUN: Final = bind(b"", b"") + execute() + close_portal(b"") + FLUSH_MESSAGE
"""What follows the Parse of BEGIN. The portal would outlive it, and answer who asks for one that does not exist."""
_FAILS: Final = query(b"pgtrunk refused a request of this transaction")
"""Fails in Postgres as well, and with it the transaction."""


class Begun(Lasting):
    """The transaction that a session has begun without a backend."""

    _begin_text = b""
    """With which it was begun; empty: there is none."""
    _begin_failed = False
    """It has failed: a request of it was refused before it had a backend."""

    def _begins_lazily(self, data: bytes) -> bool:
        """Whether ``data``, one Query, only begins a transaction; then that is done."""
        command = block_command(data[5:]) if self.terms.lazy_begin else None
        if command is None or not command.begins or (command.may_fail and self._may_recover):
            return False
        self._begin_text = data[5:-1]
        self.stats.inner_query_count += 1
        self._handle(Event.BEGUN)
        self._begins_idle(self._answer(data, command.tag, b"T"))
        if self.context.closing_idle:
            self.end_if_idle()
        return True

    @property
    def _may_recover(self) -> bool:
        """Whether the server may be one that only follows another, and refuses some modes."""
        return self._pool.is_mixed or (self._pool.welcome or {}).get("in_hot_standby") != "off"

    def _within(self, data: bytes) -> bytes:
        """Takes what comes in BEGUN -> what is left of it, for a backend, or for the state that there is then.

        A transaction that ends as it began has been nowhere.
        """
        data = skip_idle(data)
        if data[:1] != _QUERY:
            return data
        end = HEAD(data, 0)[1] + 1
        command = block_command(data[5:end]) if end <= len(data) else None
        if command is None or command.begins:
            return data
        self._end_here(command, data[:end])
        return data[end:]

    def _end_here(self, command: BlockCommand, data: bytes) -> None:
        tag = "ROLLBACK" if self._begin_failed else command.tag
        self._begin_text, self._begin_failed = b"", False
        self._block_at = 0.0
        self.stats.xact_count += 1
        self._handle(Event.ENDED)
        self._answer(data, tag, b"I")
        if self.context.closing_idle:
            self.end_if_idle()

    def _answer(self, data: bytes, tag: str, status: bytes) -> float:
        """Answers without a backend -> the time."""
        # As with any simple query.
        self.requests.unnamed = None
        answer = server.command_complete(tag) + server.ready(status)
        self.stats.received += len(data)
        self.stats.sent += len(answer)
        self.transport.write(answer)
        if self._client_full:
            # No backend is there to be stopped.
            self._pause(UNREAD)
        self._asked_at = now = self._time()
        self._rests(now)
        return now

    def _begin_now(self, backend: Backend) -> bytes:
        """The transaction gets its backend -> what has to go ahead of its first request."""
        ahead, self._begin_text = parse(b"", self._begin_text) + _RUN, b""
        failed, self._begin_failed = self._begin_failed, False
        replies = backend.replies
        replies.asker = self.requests
        replies.unnamed = None
        replies.extend([*owed.BEGIN])
        if failed:
            replies.push(owed.FAILING)
            ahead += _FAILS
        return ahead

    def _heed(self, backend: Backend) -> None:
        if (failed := backend.replies.unbegun) is None:
            super()._heed(backend)
            return
        fields = server.parse_error(failed)
        self.fail(
            GatewayError(
                fields.message,
                sqlstate=fields.sqlstate,
                detail="BEGIN failed, which was sent with the first request of its transaction: lazy_begin = 1.",
                hint="Begin again; that request has not been run.",
            )
        )

    def _synced(self) -> None:
        """The Sync has come up to which things are skipped, after a request was refused."""
        self._begin_failed = bool(self._begin_text)
        self._handle(Event.SYNCED_BEGUN if self._begin_failed else Event.SYNCED)
        if self._begin_failed:
            self._rests(self._time())

    def _ready(self) -> None:
        self.transport.write(server.ready(b"E" if self._begin_failed else b"I"))
