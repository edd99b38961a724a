"""What a session has beyond its transactions, and the backend that it keeps for it.

Between :class:`~pgtrunk_gateway.relay.leasing.Leasing` and :class:`~pgtrunk_gateway.relay.begun.Begun`. When a
transaction is over that may have left something (:mod:`~pgtrunk_gateway.session.sql.traces`), the backend is asked what
that is before it is given back (:mod:`~pgtrunk_gateway.session.inquiry`). The client has its answer by then, and does
not wait for this one; what it asks meanwhile is held until it is there, since it may have to run under other settings.

Settings become the session's own and follow it. What cannot be carried *pins* the session: it keeps the backend until
the answer to a later inquiry is that nothing is left of it. A backend of a pinned session that ends is reset. So is one
whose session ends before it was asked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.errors import NotSupported
from pgtrunk_gateway.relay.leasing import Leasing
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.inquiry import KNOWN, inquire
from pgtrunk_gateway.session.parameters import changed, dialect, is_lasting, pack, profile, unpack, with_value
from pgtrunk_gateway.session.sql.traces import NOTHING, Pin, Traces
from pgtrunk_gateway.session.state import Event, State
from pgtrunk_gateway.session.tracing import ERROR_DETAIL, ERROR_HINT, needs

if TYPE_CHECKING:
    import asyncio

    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.relay.terms import Terms
    from pgtrunk_gateway.session.inquiry import Answer, Inquiry

__all__ = ["Lasting"]

log = logging.getLogger(__name__)

_RESET: Final = "DISCARD ALL"
"""Whatever server_reset_query is: it has to undo what is known to be there."""
_ATTEMPTS: Final = 3
"""How often a backend is asked: once in passing, then without the session's statement_timeout."""


class Lasting(Leasing):
    """The state of a session."""

    _certain_pins = Pin.NONE
    """Those of them that nobody can be asked about."""
    _inquiry: Inquiry | None = None
    """What is being asked."""
    _attempt = 0
    _unanswered = NOTHING
    """What was asked without an answer: it is asked again when the next transaction is over."""
    _asked_after = False
    """The transaction that is over has been asked after, and the backend is not given back yet."""
    _deadline: asyncio.TimerHandle | None = None

    def _agree(self, terms: Terms) -> None:
        super()._agree(terms)
        if terms.keeps:
            self.requests.take_touched()
            if self.backend is not None:
                self.backend.replies.is_followed = False
        elif self.requests.touched or self.pins or self._asked_after:
            self._particular = True

    def _stop_timers(self) -> None:
        super()._stop_timers()
        self._end_wait()

    def _stir(self, traces: Traces) -> None:
        # From here on the end of the transaction is looked at.
        self._particular = True
        backend = self.backend
        assert backend is not None
        backend.replies.is_followed = True
        if traces.pins & Pin.LISTEN:
            # A notification may come before the answer to the inquiry.
            backend.replies.notifies = True
        self._certain_pins |= traces.pins & Pin.SETTINGS

    # -- asking --------------------------------------------------------------------------------------------------------

    def _settle(self, backend: Backend) -> None:
        if self._request or not self._asks_what_is_left(backend):
            super()._settle(backend)

    def _asks_what_is_left(self, backend: Backend) -> bool:
        """Whether that has to be known first, or the session has ended over it."""
        touched = self.requests.take_touched()
        if self._begun_at and self._unanswered:
            touched |= self._unanswered
            self._unanswered = NOTHING
        if not touched and not self._certain_pins & ~self.pins:
            return False
        own, replies = unpack(self.profile[-1] or ""), backend.replies
        began_with = [name for name, _ in changed(profile(replies.began), self._initial)]
        began_with += unpack(self._initial[-1] or "")
        inquiry = inquire(
            touched, own, replies.parameters, pins=self.pins, login=backend.target.user, began_with=began_with
        )
        if inquiry is None:
            self._pin(backend, (self.pins & KNOWN) | self._certain_pins)
            return self.backend is None
        now = self._time()
        if self._begun_at:
            # For the client it is over, and so it is for the statistics and the clock.
            self._ends(now)
            self._begun_at = 0.0
        self._turn_at = self._turn_at or now
        self._asked_after = True
        self._attempt = 0
        self._inquire(backend, inquiry)
        if self.state is State.LEASED:
            self._handle(Event.UNPINNED)
        return True

    def _inquire(self, backend: Backend, inquiry: Inquiry) -> None:
        self._inquiry = inquiry
        self._attempt += 1
        replies = backend.replies
        replies.asker = self.requests
        replies.unnamed = None
        replies.push(owed.Asking(inquiry))
        backend.transport.write(query(inquiry.sql if self._attempt == 1 else inquiry.patient_sql))
        if self._client_full:
            # The answer is not for the client, which may take its time.
            backend.resume_reading()
        self._deadline = self._loop.call_later(self._patience, self._inquiry_late, backend)

    def _inquiry_late(self, backend: Backend) -> None:
        if backend.transport.is_reading():
            backend.close("cancel_wait_timeout: it does not tell what its session has left")
        else:
            self._deadline = self._loop.call_later(self._patience, self._inquiry_late, backend)

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- the answer ----------------------------------------------------------------------------------------------------

    def _heed(self, backend: Backend) -> None:
        replies = backend.replies
        if replies.discarded and not self.requests.touched.pins & Pin.SETTINGS:
            self._certain_pins &= ~Pin.SETTINGS
        if replies.loaded and self.requests.session_state in ("pin", "error"):
            # There is no way to get rid of it.
            backend.retire("LOAD")
            self._certain_pins |= Pin.LIBRARY
            self._particular = True
        inquiry, answer = self._inquiry, replies.answer
        if inquiry is None or not (answer is not None or replies.failed_inquiry):
            super()._heed(backend)
            return
        self._inquiry = None
        self._end_wait()
        if self._client_full:
            backend.pause_reading()
        super()._heed(backend)
        if self.backend is not backend:
            return
        if answer is not None:
            self._answered(backend, answer)
        else:
            self._not_answered(backend, inquiry)

    def _answered(self, backend: Backend, answer: Answer) -> None:
        if answer.settings or answer.unset:
            initial = unpack(self._initial[-1] or "")
            # As in Postgres, what is reset is what the startup packet said.
            restored = {name: initial[name] for name in answer.unset if name in initial}
            self.profile = (*self.profile[:-1], pack(answer.settings | restored))
            self._undone = self._undone or bool(restored)
            # The server has them just now; but some may be refused any day.
            self._certain = is_lasting(self.profile)
        for name, value in changed(self.profile, self._initial):
            if name in answer.restored:
                self.profile = with_value(self.profile, name, value)
                self.transport.write(server.parameter_status(name, value))
        if answer.restored:
            self.requests.speak(dialect(self.profile))
            self._undone = True
        self._pin(backend, (self.pins & KNOWN & ~answer.asked) | answer.pins | self._certain_pins)

    def _not_answered(self, backend: Backend, inquiry: Inquiry) -> None:
        if self._attempt < _ATTEMPTS and backend.replies.in_step:
            self._inquire(backend, inquiry)
            return
        log.warning("%s: S-%d does not tell what it has left there", self, backend.id)
        self._unanswered = Traces(frozenset((*inquiry.names, *inquiry.origins)), pins=inquiry.pins)
        if self.requests.session_state != "ignore":
            self._pin(backend, self.pins | Pin.SETTINGS)

    # -- pins ----------------------------------------------------------------------------------------------------------

    def _pin(self, backend: Backend, pins: Pin) -> None:
        before, self.pins = self.pins, pins
        backend.replies.notifies = bool(pins & Pin.LISTEN) or self.terms.keeps
        if pins and not before and self.requests.session_state == "error":
            # It was not seen in time to refuse it.
            self.fail(NotSupported(needs(pins), severity="FATAL", detail=ERROR_DETAIL, hint=ERROR_HINT))
        elif pins and not before:
            self.pinned_at = self._time()
            self._keeping = _RESET
            self.stats.pin_count += 1
            self.requests.keep(True, tracked=self.terms.tracked)
            log.info("%s keeps S-%d: %s", self, backend.id, pins.words)
            self.transport.write(_notice(pins))
        elif before and not pins:
            self._keeping = None
            log.info("%s need not keep S-%d any more", self, backend.id)

    def _stays(self, backend: Backend) -> bool:
        held = backend.cancels > 0 and self._cancels_what_is_held
        self._asked_after = False
        return super()._stays(backend) or bool(self.pins) or held

    @property
    def _cancels_what_is_held(self) -> bool:
        """Whether something came while the backend was asked: it goes to the same one, for a cancel to find it."""
        return self._asked_after and bool(self._late) and not self._unpinned_failed

    def _take_reset(self, backend: Backend) -> str | None:
        reset = super()._take_reset(backend)
        backend.replies.is_followed = False
        touched = self.requests.take_touched() | self._unanswered
        if (touched.pins | self._certain_pins) & Pin.LIBRARY:
            backend.retire("LOAD")
        left = self.pins or touched or (self._inquiry is not None and self._inquiry.pins)
        self.pins = self._certain_pins = Pin.NONE
        self._inquiry, self._unanswered = None, NOTHING
        return (reset or _RESET) if left else reset


def _notice(pins: Pin) -> bytes:
    return server.notice(
        "00000",
        f"this session keeps its server connection from now on: {pins.words}",
        detail="session_state = pin, and no other server connection has this.",
        hint="It is shared again when nothing is left of it; DISCARD ALL sees to that.",
    )
