"""What a backend says beside its answers, noted for the session: above all which settings the backend has now.

What it reports it says itself. What it does not report is known because the gateway has set it, until something is
heard that may have changed it, or is asked: SET or RESET, by their tags, make it doubtful, DISCARD ALL undoes it. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk_gateway.session.cutting import Cutting
from pgtrunk_gateway.session.parameters import DIALECT, doubted, pack

if TYPE_CHECKING:
    from pgtrunk_gateway.session.inquiry import Answer
    from pgtrunk_gateway.session.owed import Asking

__all__ = ["DISCARDED", "Noting"]

DISCARDED: Final = b"DISCARD ALL\0"
_RESET: Final = b"RESET\0"
_SETTING: Final = frozenset({b"SET\0", _RESET})
_RESETS: Final = (b"C\0\0\0\x0aRESET\0", b"C\0\0\0\x10" + DISCARDED)


class Noting(Cutting):
    """The notes, and the settings that are behind them."""

    __slots__ = (
        "_resets_at",
        "again",
        "answer",
        "began",
        "discarded",
        "failed_inquiry",
        "failed_unpinned",
        "hidden_error",
        "in_step",
        "is_followed",
        "loaded",
        "moved",
        "noted",
        "others",
        "parameters",
        "parameters_changed",
        "profile_changed",
        "restored",
        "shown",
        "undone",
    )

    def __init__(self, parameters: dict[str, str]) -> None:
        super().__init__()
        self.parameters = parameters
        """The last ParameterStatus of each name."""
        self.others = ""
        """What the gateway has set of what is not reported; see :func:`~pgtrunk_gateway.session.parameters.pack`."""
        self.in_step = True
        """Whether what the backend says is known to be the answer to what it was asked."""
        self.began = dict(parameters)
        """What it began with, and goes back to by RESET."""
        self.is_followed = False
        """Whether the session that has it sees what it changes in its settings, and asks after that."""
        self._resets_at = -1
        self.moved = False
        """Something was altered or dropped, in a transaction that has not ended; this note stays until it has."""
        self.take_notes()

    def take_notes(self) -> None:
        """Resets what was noted for the session: to be called when it has been acted on."""
        self.noted = self.moved
        """Any of the following, or the backend fell out of step."""
        self.again = False
        """The last request is to be asked again: a plan was stale."""
        self.answer: Answer | None = None
        """What the session has left here, where that was asked; with ``failed_inquiry``, it is not known."""
        self.failed_inquiry = False
        self.discarded = False
        """DISCARD ALL ran."""
        self.loaded = False
        """LOAD ran."""
        self.failed_unpinned = False
        """A batch failed whose end was a Sync that only the gateway sent."""
        self.parameters_changed = False
        """A ParameterStatus came, hidden or not, or a hidden query ended, which may have set what was set already."""
        self.profile_changed = False
        """The same, or :attr:`others` have changed."""
        self.shown: set[str] = set()
        """The parameters whose last ParameterStatus the session got."""
        self.restored: set[str] = set()
        """Those of them that RESET or DISCARD ALL brought back to what the backend began with."""
        self.undone = False
        """RESET or DISCARD ALL may have undone some of the :attr:`others`."""
        self.hidden_error: bytes | None = None
        """Body of an ErrorResponse to something hidden that the client has to hear of."""

    def _out_of_step(self) -> None:
        self.in_step = False
        self.noted = True

    def _parameter(self, data: bytes, start: int, end: int, *, hidden: bool) -> None:
        try:
            name, value = server.parse_parameter_status(data[start + 5 : end])
        except ProtocolViolation:
            self._out_of_step()
            return
        self.parameters[name] = value
        self.parameters_changed = self.profile_changed = self.noted = True
        self.shown.discard(name)
        self.restored.discard(name)
        if hidden:
            return
        self.shown.add(name)
        if name in DIALECT:
            self._dialect_moves()
        # The server reports when all is done: right behind the tag of the last command.
        if self._resets_at == start or data.endswith(_RESETS, 0, start):
            self._resets_at = end
            if value == self.began.get(name) and not self.is_followed:
                self.restored.add(name)

    def _dialect_moves(self) -> None:
        """What the client asked has changed what texts mean."""
        raise NotImplementedError

    def _has(self, others: str) -> None:
        """It has these of what is not reported."""
        self.others = others
        self.profile_changed = self.noted = True

    def _answered(self, asking: Asking) -> None:
        """What a session has left here has been told, or not."""
        self.noted = True
        try:
            self.answer = None if asking.failed else asking.inquiry.read(map(bytes, asking.rows))
        except (ProtocolViolation, ValueError):
            self._out_of_step()
        self.failed_inquiry = self.answer is None
        if self.answer is not None and asking.inquiry.names:
            self._has(pack(self.answer.settings))

    def _settings_tag(self, tag: bytes) -> None:
        """A command with this tag has ended."""
        if tag == DISCARDED:
            self.discarded = self.undone = True
            self._has("")
        elif tag in _SETTING and self.others:
            self.undone = self.undone or tag == _RESET
            self.noted = True
            if not self.is_followed:
                self._has(doubted(self.others))
