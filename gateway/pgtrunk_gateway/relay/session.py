"""One session: a client's transport on one side, a pool on the other.

The same for every front: a QUIC stream, a TCP or a unix socket. What it may do when is in
:mod:`~pgtrunk_gateway.session.state`, what goes to the backend and comes back in ``requests`` and ``replies``; this
shell reads, writes, pauses and resumes. All of it runs in callbacks; only the login is a task.

Backpressure: a session that waits for a backend, or whose backend's socket is full, stops reading its client; one whose
client does not read stops reading its backend. So nothing is held here but what came in one read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.frontend import SYNC, TERMINATE
from pgtrunk_gateway.errors import GatewayError, MessageTooLarge, NotSupported, ProtocolError
from pgtrunk_gateway.relay.leasing import STATEMENT
from pgtrunk_gateway.relay.login import SessionLogin
from pgtrunk_gateway.relay.measuring import Measuring
from pgtrunk_gateway.relay.pausing import HELD
from pgtrunk_gateway.session.parameters import dialect
from pgtrunk_gateway.session.replies import IDLE
from pgtrunk_gateway.session.requests import BrokenRequest
from pgtrunk_gateway.session.shapes import OTHER, QUERY
from pgtrunk_gateway.session.skipping import skip_batch, skip_idle, skip_refused
from pgtrunk_gateway.session.sql.blocks import MAY_BEGIN
from pgtrunk_gateway.session.state import Event, State

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.relay.admission import Admission
    from pgtrunk_gateway.relay.visiting import Visit

__all__ = ["Session"]

log = logging.getLogger(__name__)

_IDLE: Final = IDLE
_TERMINATE: Final = b"X"
_T: Final = (b"t", b"T")
_STATE_IDLE: Final = State.IDLE
_STATE_LEASED: Final = State.LEASED
_HOLD: Final = 16 << 10
"""Octets that a session holds at most before it stops reading. Until then it reads on, to see a client that leaves."""


class Session(Measuring):
    """A client's session over any front."""

    def _start_login(self) -> None:
        self.login = SessionLogin(self.context, self)

    def admitted(self, admission: Admission, rest: bytes) -> None:
        """The login is complete; ``rest`` came behind its last message."""
        self.login = None
        self.admission = admission
        self._pool = admission.pool
        self.profile = self._initial = admission.profile
        self.requests.speak(dialect(self.profile))
        self._certain = admission.certain or admission.profile in admission.pool.taken
        self.stats = self.requests.stats = admission.pool.stats
        self.stats.login_count += 1
        self._handle(Event.ADMITTED)
        self._agree(admission.terms)
        if self.context.config.log_connections:
            self._log_login(admission.database, admission.user)
        if rest:
            self._data_received(rest)

    def _log_login(self, database: str, user: str) -> None:
        tls = self.tls or "no"
        log.info("%s login attempt: db=%s user=%s tls=%s front=%s", self, database, user, tls, self.front)

    def visits(self, visit: Visit, rest: bytes, *, over: bool) -> None:
        """It has logged in to the console, which goes on with the transport; ``rest`` as above."""
        assert self.context.console is not None
        if self.context.config.log_connections:
            self._log_login(visit.database, visit.user)
        self.login = None
        self.context.session_ends(self)
        self.context.console.enter(self, visit, rest, over=over)

    def served(self) -> None:
        """It was no session but a cancel request, which has been acted on."""
        self._reason = "cancel request"
        self._handle(Event.LEFT)

    # -- the client's bytes: hot ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        inbound = self._inbound
        state = self.state
        if (state is _STATE_IDLE or state is _STATE_LEASED) and not inbound.rest and not inbound.held:
            shape = self._shape_of(data)
            if shape:
                if state is _STATE_IDLE:
                    self._begin(data, shape)
                else:
                    self._send(data, shape)
                return
        self._data_received(data)

    def _begin(self, data: bytes, shape: int) -> None:
        """A request comes and no backend is held. IDLE or BEGUN -> LEASED where one is free, as the table has it."""
        may = MAY_BEGIN[data[5]] if shape == QUERY else 0
        if may and (may == 1 or data[6:7] in _T) and self.state is _STATE_IDLE and self._begins_lazily(data):
            return
        backend = self._pool.take(self)
        if backend is None:
            self._request = data
            self._shape = shape
            self._handle(Event.REQUEST)
            return
        self.backend = backend
        self.state = _STATE_LEASED
        self._begun_at = self._busy_at = self._time()
        if self._particular:
            self._lease_particularly(backend)
        self._send(data, shape, fresh=True)

    def _send(self, data: bytes, shape: int = OTHER, *, fresh: bool = False) -> None:
        """Sends whole messages to the backend that is held; ``fresh``: the first of the lease."""
        backend = self.backend
        assert backend is not None
        replies = backend.replies
        settings = b""
        if not fresh and self._turn_at:
            self._turn_ends()
            fresh = self._undone and self._begins_anew(backend)
        if fresh and (self._client_full or self.profile is not backend.profile):
            settings = self._begin_lease(backend)
            if settings and not self._certain:
                self._send_settings_alone(settings, data, shape)
                return
        if self._begin_text:
            settings += self._begin_now(backend)
        self.stats.received += len(data)
        try:
            out = self.requests.plan(data, replies, shape)
        except BrokenRequest as error:
            if settings or error.before:
                backend.transport.write(settings + error.before)
            self.fail(ProtocolError(str(error)))
            return
        if settings:
            out = settings + out
        if out:
            backend.transport.write(out)
        if shape:
            # The backend answers all of it, and nothing else comes with it.
            return
        queue = replies.queue
        if queue and queue[0].given and (answers := replies.take_given()):
            self.transport.write(answers)
        self._sent(backend)

    def _sent(self, backend: Backend) -> None:
        # What only a request of several messages can have brought.
        if self.requests.terminated:
            self._leave_politely()
        elif self.requests.unpinned:
            self.requests.unpinned = False
            self._handle(Event.UNPINNED)
        elif not backend.replies.queue:
            # Nothing was owed for it: what the client sent late for a COPY that had failed, say.
            self.settled()

    # -- the backend's bytes: hot --------------------------------------------------------------------------------------

    def settled(self) -> None:
        backend = self.backend
        assert backend is not None
        replies = backend.replies
        if replies.noted:
            self._heed(backend)
            if self.backend is None or replies.queue:
                return
        if replies.status != _IDLE or self.requests.open or (self._inbound.rest and not self._request):
            if replies.status != _IDLE and self.terms.pool_mode == STATEMENT:
                self.fail(_no_blocks())
            elif self.state is State.HOLDING and self._request:
                self._handle(Event.INSPECTED)
            else:
                self._clients_turn()
            return
        is_plain = self.state is _STATE_LEASED and not (self._client_full or self._paused or self._particular)
        is_ending = replies.fatal is not None and not (replies.unasked and is_plain)
        if (backend.cancels and not (self._request or self._cancels_what_is_held)) or is_ending:
            # It will be released when the cancels have ended, or is about to be lost. But what is held while the
            # gateway sets or asks something goes out, for the cancel to find it.
            return
        if not is_plain:
            self._settle(backend)
        else:
            # LEASED -> IDLE, as the table has it.
            self.state = _STATE_IDLE
            self.backend = None
            backend.release()
            # _ends, written out; the pool has looked at the clock.
            stats = self.stats
            stats.xact_count += 1
            stats.xact_time += backend.idle_since - self._begun_at
            if self._executed is not None:
                self._executed(backend.idle_since - self._busy_at)
        if self.context.closing_idle:
            self.end_if_idle()

    # -- the client's bytes, all other cases ---------------------------------------------------------------------------

    def _data_received(self, data: bytes) -> None:
        if self.state is State.LOGIN:
            assert self.login is not None
            self.login.data_received(data)
        elif self.state in (State.WAITING, State.HOLDING):
            self._late += data
            if len(self._late) > _HOLD:
                self._pause(HELD)
        elif self.state is not State.CLOSED:
            self._take(data)
        elif self._unwanted:
            self._drop(data)

    def _take(self, data: bytes) -> None:
        try:
            if self._inbound.rest:
                data = self._pass_rest(data)
            if data:
                self._dispatch(self._inbound.feed(data))
            if self._inbound.rest and self.backend is not None:
                # Half a message keeps the backend, as a transaction does.
                self._clients_turn()
        except MessageTooLarge as error:
            self._unwanted = error.missing
            self.fail(error)
        except GatewayError as error:
            self.fail(error)
        except ProtocolViolation as error:
            self.fail(ProtocolError(str(error)))

    def _pass_rest(self, data: bytes) -> bytes:
        # Of a request that was refused, nobody wants the rest.
        part, data = self._inbound.pass_rest(data)
        if self._turn_at:
            self._turn_ends()
        if self.backend is not None:
            self.stats.received += len(part)
            self.requests.read_on(part, more=bool(self._inbound.rest))
            self.backend.transport.write(part)
            if not self._inbound.rest and self.backend.replies.settled:
                # The answer came before the end of the message: an error, in COPY above all.
                self.settled()
        return data

    def _dispatch(self, data: bytes) -> None:
        """Whole messages, or the beginning of a large one."""
        while data:
            if self.state is State.LEASED:
                self._send(data)
                return
            if self.state is State.BEGUN:
                data = self._within(data)
            if self.state is State.IDLE or self.state is State.BEGUN:
                data = skip_idle(data)
                if data[:1] == _TERMINATE:
                    self._leave_politely()
                elif data:
                    self._begin(data, self._shape_of(data))
                return
            if self.state is not State.SKIPPING:
                return
            data = self._skipped(*skip_batch(data))

    def _skipped(self, kind: int, data: bytes) -> bytes:
        if kind == SYNC:
            self._synced()
        elif kind == TERMINATE:
            self._leave_politely()
        return data

    def _leave_politely(self) -> None:
        self._reason = "client close request"
        self._handle(Event.LEFT)

    def _postpone(self, rest: bytes, inspects: bool) -> None:
        self.stats.received -= len(rest)
        if inspects:
            self._request, self._shape = rest, OTHER
            self._handle(Event.UNPINNED)
        else:
            self._inbound.put_back(rest)

    # -- what was held -------------------------------------------------------------------------------------------------

    def _send_request(self) -> None:
        data, self._request = self._request, b""
        self._send(data, self._shape, fresh=True)
        if self._late or self._paused:
            self._take_late()

    def _resume_held(self) -> None:
        data, self._request = self._request, b""
        if data and self.state is State.LEASED:
            # Its settings went ahead of it.
            self._send(data, self._shape)
        elif data:
            self._dispatch(self._skipped(*skip_refused(data)))
        self._take_late()

    def _take_late(self) -> None:
        # Taking it may bring the session to where it has to hold things again.
        if self.state in (State.WAITING, State.HOLDING):
            return
        data, self._late = self._late, b""
        if data and self.state is not State.CLOSED:
            self._take(data)
        if len(self._late) <= _HOLD:
            self._resume(HELD)


def _no_blocks() -> GatewayError:
    return NotSupported(
        "transaction blocks not allowed in statement pooling mode",
        severity="FATAL",
        detail="pool_mode = statement.",
        hint="Do without BEGIN, or let pool_mode be transaction for this user or database.",
    )
