"""The life of a session: its events, what they entail, and its end.

The base of :class:`~pgtrunk_gateway.relay.session.Session`, which adds the bytes. The table of states is in
:mod:`~pgtrunk_gateway.session.state`; here is how each of its effects is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from pgtrunk.wire import backend as server
from pgtrunk.wire.frontend import TERMINATE_MESSAGE
from pgtrunk_gateway.address import readable
from pgtrunk_gateway.errors import GatewayError, QueryCanceled, ShuttingDown
from pgtrunk_gateway.pool.backend import ids
from pgtrunk_gateway.relay.advice import advice_for, hint_of
from pgtrunk_gateway.relay.entering import NOBODY
from pgtrunk_gateway.relay.returning import Returning
from pgtrunk_gateway.session.inbound import Inbound
from pgtrunk_gateway.session.requests import Requests
from pgtrunk_gateway.session.shapes import OTHER
from pgtrunk_gateway.session.state import Effect, Event, State, step
from pgtrunk_gateway.stats.stages import STAGES

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.relay.admission import Admission
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.login import SessionLogin
    from pgtrunk_gateway.session.parameters import Profile
    from pgtrunk_gateway.session.sql.traces import Traces

__all__ = ["Lifecycle"]

log = logging.getLogger(__name__)


class Lifecycle(Returning):
    """A session without its bytes. ``front`` names where it came in."""

    def __init__(self, context: Context, front: str) -> None:
        super().__init__()
        self.id = next(ids)
        self.context = context
        self.front = front
        self.state = State.LOGIN
        self.backend: Backend | None = None
        """Held in LEASED and HOLDING, and in no other state."""
        tracked = context.config.max_prepared_statements > 0
        self.requests = Requests(context.catalogue, tracked=tracked, stir=self._stir, postpone=self._postpone)
        self.login: SessionLogin | None = None
        """In LOGIN."""
        self.admission: Admission | None = None
        """After LOGIN."""
        self.profile: Profile = ()
        """The settings that the client wants."""
        self.transport: asyncio.Transport
        self.peer = front
        """The client's address as the log shows it."""
        self.address: str | None = None
        """The client's IP address; None on a unix socket."""
        self.relay: Callable[[bytes], None]
        """The transport's write: bytes from the backend go straight there."""
        self._inbound = Inbound(context.config.max_packet_size)
        self._request = b""
        """What a backend is waited for with: whole messages, or the beginning of a large one."""
        self._shape = OTHER
        """Of the request, see :func:`~pgtrunk_gateway.session.shapes.shape_of`."""
        self._late = b""
        """What came after it, as it came."""
        self._unpinned_failed = False
        self._error: GatewayError | None = None
        self._advice: str | None = None
        self._reason = "client unexpected eof"
        self._linger: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        if self.admission is not None:
            name = f"{self.admission.database}/{self.admission.user}"
        else:
            name = NOBODY if self.login is None else self.login.asked
        return f"C-{self.id}: {name}@{self.peer}"

    def __repr__(self) -> str:
        return f"<Session {self} {self.front} {self.state.name}>"

    def settled(self) -> None:
        """Nothing is owed any more."""
        raise NotImplementedError

    def _stir(self, traces: Traces) -> None:
        """What is about to be sent may leave these behind."""
        raise NotImplementedError

    def _postpone(self, rest: bytes, inspects: bool) -> None:
        """``rest`` of what is being sent cannot go yet."""
        raise NotImplementedError

    # -- events --------------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        self.state, effects = step(self.state, event)
        for effect in effects:
            self._EFFECTS[effect](self)

    def fail(self, error: GatewayError) -> None:
        """Ends the session with ``error``."""
        self._advice = advice_for(self)
        self._error = error
        self._reason = error.message
        self._handle(Event.FAILED)

    def refuse(self, error: GatewayError) -> None:
        """The session waits, and gets no backend: it goes on without an answer to this request, or ends."""
        if self.state is not State.WAITING:
            return
        if error.severity == "FATAL":
            self.fail(error)
            return
        now = self._waited()
        if self._times is not None:
            self._times.waits.append(now - self._waits_since)
        self._error = error
        self._handle(Event.REFUSED)
        self._rests(now)

    def notify(self) -> None:
        """It has waited for query_wait_notify."""
        if self.state is State.WAITING:
            self.transport.write(server.notice("00000", _QUEUED))

    def cancel(self) -> None:
        """A cancel request came for it: a request that waits is refused, one that runs is cancelled in Postgres."""
        if self.state is State.WAITING:
            self.refuse(QueryCanceled())
        elif self.login is not None:
            self.login.cancel()

    def offer(self, backend: Backend) -> bool:
        if self.state is not State.WAITING:
            return False
        self.backend = backend
        self._begun_at = self._busy_at = now = self._waited()
        if self._times is not None:
            self._note_wait(now - self._waits_since, self._times)
        if self._particular:
            self._begins(now)
            self._keep(backend)
        self._handle(Event.GRANTED)
        return True

    def backend_lost(self, error: GatewayError, told: bool) -> None:
        self._advice = advice_for(self)
        self.backend = None
        self._error = None if told else error
        self._reason = error.log or error.message
        self._handle(Event.LOST)

    @property
    def is_amid(self) -> bool:
        """A message of the client's has been passed on in part."""
        return self._inbound.rest > 0

    @property
    def _between(self) -> bool:
        """A backend is kept, and there is no transaction."""
        return self.state is State.LEASED and self._turn_at > 0 and not self._begun_at

    def reconfigure(self) -> None:
        """The configuration is another one. What runs goes on; in session mode too its mode ends with a transaction."""
        if self.admission is None:
            return
        terms = self.admission.renewed()
        self._agree(terms)
        if self._keeping is None:
            self.requests.keep(False, tracked=terms.tracked)
        elif not terms.keeps:
            # Until the backend that it has kept is given back.
            self._particular = True
            if self._between:
                self.settled()

    def end_if_idle(self) -> None:
        """The gateway is stopping, and this is the moment to end: without a backend, which in transaction mode is
        outside a transaction. In session mode it is waited for, as in PgBouncer: it may keep there what it cannot lose.
        """
        if self.state in (State.LOGIN, State.IDLE, State.BEGUN, State.WAITING, State.SKIPPING):
            self.fail(ShuttingDown("server shutting down"))

    def kill(self, error: GatewayError | None = None) -> None:
        """The session ends at once, with ``error``, or since the gateway is stopping."""
        if self.state is not State.CLOSED:
            self.fail(error or ShuttingDown())

    # -- transport -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but name.
        self.transport = cast("asyncio.Transport", transport)
        self.relay = self.transport.write
        # Asked now: a transport that is closed need not know it any more.
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.address = peername[0]
            self.peer = readable(peername)
        self._report_to(transport.get_extra_info(STAGES))
        self.context.session_begins(self)
        if self.address is None and self.front == "tcp":
            # Reset already, so nobody knows any more whose it was. What came before can be read all the same, and would
            # pass for a unix socket's, where nothing is limited.
            self.vanished()
            return
        if self.context.suspended:
            # Not at once: some transports begin to read when this method has returned.
            self._loop.call_soon(self._suspend_if_still)
        self._start_login()

    def _start_login(self) -> None:
        raise NotImplementedError

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """TLS begins: from now on all that is said goes through it."""
        self.transport = transport
        self.relay = transport.write

    @property
    def tls(self) -> str:
        """Version and cipher, as in "TLSv1.3/TLS_AES_256_GCM_SHA384"; empty without TLS."""
        return self.transport.get_extra_info("tls") or ("TLSv1.3" if self.front == "quic" else "")

    def eof_received(self) -> bool:
        if self.login is not None:
            self.login.eof_received()
            return True
        self.vanished()
        return False

    def vanished(self) -> None:
        """The client is gone without a word; or with one that has been held until now."""
        if self._late == TERMINATE_MESSAGE:
            self._reason = "client close request"
            self._handle(Event.LEFT)
        self._handle(Event.VANISHED)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.state is not State.CLOSED and exc is not None:
            self._reason = f"client connection lost: {exc}"
        self._handle(Event.VANISHED)
        if self._linger is not None:
            self._linger.cancel()
        self.context.session_ends(self)

    # -- effects -------------------------------------------------------------------------------------------------------

    def _queue(self) -> None:
        assert self.admission is not None
        self._waits_since = now = self._time()
        if self._particular:
            self._asks(now)
        self.admission.pool.wait(self, self.terms.query_wait_timeout)

    def _waited(self) -> float:
        """The wait for a backend is over -> the time."""
        now = self._time()
        self.stats.wait_time += now - self._waits_since
        return now

    def _leave(self) -> None:
        assert self.admission is not None
        self.admission.pool.leave(self)

    def _send_request(self) -> None:
        raise NotImplementedError

    def _resume_held(self) -> None:
        """After a refusal, or a batch that the gateway synced."""
        raise NotImplementedError

    def _tell(self) -> None:
        error, self._error = self._error, None
        if error is None:
            return
        if error.log is not None and error.log != self._reason:
            log.info("%s %s", self, error.log)
        if self.context.config.log_pooler_errors and error.severity == "ERROR":
            log.info("%s pooler error: %s", self, error.message)
        self.transport.write(
            server.error(
                error.sqlstate,
                error.message,
                severity=error.severity,
                detail=error.detail or "",
                hint=hint_of(error, self._advice),
            )
        )

    def _ready(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        # Then whoever it was need not be who it seemed, and there may have been nobody.
        was_early = self.login is not None and self.login.is_early
        if self.login is not None:
            self.login.stop()
        self._stop_timers()
        self._request = self._late = b""
        if self.admission is not None:
            self.admission.leave()
        if self.context.config.log_disconnections and not was_early:
            log.info("%s closing because: %s (age=%ds)", self, self._reason, int(self._loop.time() - self._since))
        self.login = None
        # A client that does not read would keep it open as long as it likes.
        self._linger = self._loop.call_later(_LINGER, self.transport.abort)
        self._hang_up()

    def _hang_up(self) -> None:
        self.transport.close()

    _EFFECTS: ClassVar[dict[Effect, Callable[..., None]]] = {}

    def __init_subclass__(cls) -> None:
        cls._EFFECTS = {
            Effect.QUEUE: cls._queue,
            Effect.LEAVE: cls._leave,
            Effect.SEND: cls._send_request,
            Effect.RESUME: cls._resume_held,
            Effect.RELEASE: cls._release,
            Effect.FINISH: cls._finish,
            Effect.RECOVER: cls._recover,
            Effect.TELL: cls._tell,
            Effect.READY: cls._ready,
            Effect.CLOSE: cls._close,
        }


_QUEUED = "No server connection available in postgres backend, client being queued"
"""PgBouncer's words."""
_LINGER = 10.0
"""Seconds that a client has to take what is left for it."""
