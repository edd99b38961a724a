"""What a session's texts may leave behind, noted when they are sent.

Between :class:`~pgtrunk_gateway.session.preparing.Preparing` and
:class:`~pgtrunk_gateway.session.commanding.Commanding`. What is noted is asked of the backend when the transaction is
over (:mod:`~pgtrunk_gateway.session.inquiry`); or the text is refused, where session_state says so. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.parameters import escapes
from pgtrunk_gateway.session.preparing import Preparing
from pgtrunk_gateway.session.sql.bodies import OVERLAP, traces_within
from pgtrunk_gateway.session.sql.text import Reading, glance, read
from pgtrunk_gateway.session.sql.traces import NOTHING, Traces

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.config.settings import SessionState
    from pgtrunk_gateway.session.replies import Replies
    from pgtrunk_gateway.session.sql.traces import Pin
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["ERROR_DETAIL", "ERROR_HINT", "FAILS", "NO_READING", "Tracing", "needs", "refusal"]

FAILS: Final = b"pgtrunk refuses this: session_state = error"
"""What is sent in the place of a text that is refused: Postgres reads no further than the first word."""
NO_READING: Final = Reading()
"""Of nearly every text."""
ERROR_DETAIL: Final = (
    "session_state = error, and the server connection goes to other sessions when the transaction is over."
)
ERROR_HINT: Final = "Let session_state be pin for this gateway, or pool_mode be session for this user or database."


class Tracing(Preparing):
    """The traces of one session."""

    __slots__ = ("_only_prepares", "_stir", "_tail", "keeps", "session_state", "touched", "tracked")

    def __init__(self, catalogue: Catalogue, *, tracked: bool, stir: Callable[[Traces], None] | None) -> None:
        super().__init__(catalogue)
        self.tracked = tracked
        """Whether named statements follow the session."""
        self.keeps = False
        """The session keeps its backend between transactions: nothing has to be done to give it back sooner."""
        self.session_state: SessionState | None = None
        """What becomes of what cannot be carried; None: in session mode, nothing has to be carried."""
        self.touched: Traces = NOTHING
        """What has been noted since it was last asked after."""
        self._stir = stir
        """Told of each trace, before what leaves it is sent."""
        self._tail = b""
        """The end of what was there of a text that comes in parts."""
        self._only_prepares = True
        """So does the batch up to here: it could be ended by a Sync of the gateway's."""

    def take_touched(self) -> Traces:
        """What has been noted, which is forgotten here."""
        touched, self.touched = self.touched, NOTHING
        return touched

    def read_on(self, part: bytes, *, more: bool) -> None:
        """The next part of a message that was planned in part goes out; ``more``: it is not the last."""
        if self._tail:
            text = self._tail + part
            self._tail = text[-OVERLAP:]
            self._touch(traces_within(text, more=more))

    def _read(self, data: bytes, start: int, end: int) -> Reading:
        """What there is in the text at ``start``, which ends before ``end``."""
        if not start < end or not (self.tracked or self.session_state):
            return NO_READING
        if end >= len(data):
            if self.session_state is None:
                return NO_READING
            text = data[start:]
            self._tail = text[-OVERLAP:]
            return Reading(traces=traces_within(text, more=True))
        if not glance(data, start, end) or data.find(0, start, end + 1) != end:
            return NO_READING
        found = read(data[start:end], escapes=escapes(self.dialect))
        return found if found.naming or found.traces else NO_READING

    def _refuses(self, traces: Traces | None) -> bool:
        return self.session_state == "error" and traces is not None and bool(traces.pins)

    def _touch(self, traces: Traces) -> None:
        """Something that may leave these is about to be sent."""
        if self.session_state is None:
            return
        traces = traces.resolved()
        if self.session_state == "ignore" and not self.keeps:
            traces = traces.carried
        if traces and self._stir is not None:
            self.touched |= traces
            self._stir(traces)

    def _leaves_by_any_name(self, data: bytes, pos: int, body_at: int, end: int, replies: Replies) -> bool:
        """A Parse whose name is the server's: what it may leave is noted here, since later it is not known
        -> whether it is refused."""
        traces = self._read(data, body_at, data.find(0, body_at, end)).traces
        if self._refuse_parse(b"?", traces, data, pos, end, replies):
            return True
        if traces:
            self._only_prepares = False
            self._touch(traces)
        return False

    def _refuse_parse(
        self, name: bytes, traces: Traces | None, data: bytes, pos: int, end: int, replies: Replies
    ) -> bool:
        if traces is None or not self._refuses(traces):
            return False
        before = None
        if not name:
            before, self.unnamed = self.unnamed, None
        replies.unnamed = None
        self._plain = False
        self._owe(owed.Refused(b"1", before, refusal(traces.pins)))
        self._replace(data, pos, end, client.parse(b"", FAILS))
        return True


def needs(pins: Pin) -> str:
    """What to say of a session that would leave these."""
    return f"{pins.words}: this needs a server connection of the session's own"


def refusal(pins: Pin) -> bytes:
    """The error that the client gets for a text that leaves these."""
    return server.error("0A000", needs(pins), severity="ERROR", detail=ERROR_DETAIL, hint=ERROR_HINT)
