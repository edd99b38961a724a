"""What a lease begins and ends with, beside its bytes: the session's settings, and what its pool_mode asks for.

Between :class:`~pgtrunk_gateway.relay.lifecycle.Lifecycle` and :class:`~pgtrunk_gateway.relay.session.Session`. Nothing
here runs for a query whose backend has the settings already, in transaction mode and without timeouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.errors import GatewayError
from pgtrunk_gateway.pool.backend import OUT_OF_STEP
from pgtrunk_gateway.relay.lifecycle import Lifecycle
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.parameters import apply, changed, dialect, is_lasting, with_value
from pgtrunk_gateway.session.replies import IDLE
from pgtrunk_gateway.session.state import Event

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.relay.terms import Terms
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["STATEMENT", "Leasing"]

STATEMENT: Final = "statement"
_STUCK: Final = "settings cannot be changed any more"


class Leasing(Lifecycle):
    """The settings of a session, and its mode."""

    _pool: Pool
    _initial: Profile
    """The settings that it began with."""
    _certain = True
    """Whether the server is known to take the settings that the client wants."""
    _undone = False
    """Whether the backend that it keeps has lost settings that it began with, which it shall have again."""

    def _agree(self, terms: Terms) -> None:
        super()._agree(terms)
        self.requests.session_state = None if terms.keeps else terms.session_state
        # Elsewhere the bytes go straight to the transport.
        self.relay = self._relay_statement if terms.pool_mode == STATEMENT else self.transport.write

    # -- the beginning -------------------------------------------------------------------------------------------------

    def _lease_particularly(self, backend: Backend) -> None:
        self._begins(self._begun_at)
        self._asks(self._begun_at)
        self._keep(backend)

    def _begin_lease(self, backend: Backend) -> bytes:
        """What a new lease begins with -> the settings that have to be made, to be sent ahead of the request."""
        self._undone = False
        if self._client_full:
            backend.pause_reading()
        if self.profile == backend.profile:
            # From now on they are the same object, which is quicker to see.
            backend.profile = self.profile
            return b""
        sql = apply(backend.profile, self.profile)
        if not sql:
            return b""
        backend.replies.unnamed = None
        backend.replies.asker = self.requests
        backend.replies.push(owed.Applying(self.profile[-1] or ""))
        return query(sql)

    def _begins_anew(self, backend: Backend) -> bool:
        """Whether settings that were undone in session mode have to be made now: between two transactions."""
        replies = backend.replies
        return replies.status == IDLE and not replies.queue and not self.requests.open

    def _send_settings_alone(self, settings: bytes, data: bytes, shape: int) -> None:
        """Postgres would refuse the login of a client with a wrong setting: nothing of its request may run under
        another. So the request follows when the settings have been taken, this once."""
        assert self.backend is not None
        self._request, self._shape = data, shape
        self.backend.transport.write(settings)
        self._handle(Event.UNPINNED)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _settle(self, backend: Backend) -> None:
        """The end of a transaction that is not the usual one."""
        now = self._time()
        if self._begun_at and not self._request:
            self._ends(now)
        if self._stays(backend):
            self._keep_on(backend, now)
            return
        failed, self._unpinned_failed = self._unpinned_failed, False
        self._turn_at = 0.0
        self._particular = self.terms.particular
        self._handle(Event.UNPINNED_FAILED if failed else Event.SETTLED)
        self._rests(now)

    def _stays(self, backend: Backend) -> bool:
        """Whether the backend is kept, though it is settled."""
        return self.terms.keeps or bool(self._request)

    def _keep_on(self, backend: Backend, now: float) -> None:
        if self.terms.keeps and self._keeping is None:
            # Its mode was another one when it got the backend.
            self._keep(backend)
        if self._unpinned_failed:
            self._unpinned_failed = False
            backend.transport.write(self.requests.fail_on(backend.replies))
        if not self._request:
            self._begun_at = 0.0
            self._turn_at = self._turn_at or now
        self._handle(Event.KEPT)

    def _relay_statement(self, data: bytes) -> None:
        """Statement mode: what opens a transaction block is answered by :meth:`settled`, with an error."""
        backend = self.backend
        if backend is None or backend.replies.status == IDLE or not backend.replies.settled:
            self.transport.write(data)

    def _heed(self, backend: Backend) -> None:
        """Acts on what the replies have noted."""
        replies = backend.replies
        self._unpinned_failed = replies.failed_unpinned or self._unpinned_failed
        if replies.parameters_changed:
            told = self.profile
            self.profile = self._profile_after(backend)
            self.requests.speak(dialect(self.profile))
            if not self._certain and replies.hidden_error is None and is_lasting(told):
                self._certain = True
                self._pool.remember(told)
            for name, value in changed(told, self.profile):
                if name not in replies.shown:
                    self.transport.write(server.parameter_status(name, value))
        if replies.undone or replies.restored:
            # As in Postgres, where a reset goes back to the startup packet. Which of them it was is not known: all are.
            self._undone = self._undone or self._keeping is not None
        if not replies.in_step:
            backend.retire(OUT_OF_STEP)
        if replies.moved and replies.status == IDLE:
            # From now on texts may mean something else; what has been parsed means what it did.
            replies.moved = False
            self.requests.catalogue.move()
        again = replies.again
        hidden = replies.hidden_error
        if hidden is not None and backend.replies.others:
            # It may be those that cannot be undone: then it would fail for everybody to come.
            backend.retire(_STUCK)
        replies.take_notes()
        if hidden is not None:
            fields = server.parse_error(hidden)
            self.fail(
                GatewayError(fields.message, sqlstate=fields.sqlstate, detail="A setting of this session failed.")
            )
        elif again:
            self._ask_again(backend)

    def _ask_again(self, backend: Backend) -> None:
        """The plan was stale, and the client has seen nothing of it: now it will be another."""
        backend.transport.write(self.requests.again(backend.replies))
        if answers := backend.replies.take_given():
            self.transport.write(answers)

    def _profile_after(self, backend: Backend) -> Profile:
        """The session's settings when the backend has said that its own have changed."""
        reported = backend.profile
        if restored := backend.replies.restored:
            # To what the session began with, as in Postgres; to the backend that is what its login was given.
            for name, value in changed(reported, self._initial):
                if name in restored:
                    self.transport.write(server.parameter_status(name, value))
                    reported = with_value(reported, name, value)
        own = self.profile[-1]
        return reported if reported[-1] == own else (*reported[:-1], own)
