"""Errors of a backend: which request they answer, what becomes of that, and what of them the session gets.

Between :class:`~pgtrunk_gateway.session.telling.Telling` and :class:`~pgtrunk_gateway.session.replies.Replies`, whose
rules hold here. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session import owed as entries
from pgtrunk_gateway.session.cutting import UNSIGNED_HEAD
from pgtrunk_gateway.session.owed import Applying, Asking, Describing, Refused
from pgtrunk_gateway.session.telling import Telling

if TYPE_CHECKING:
    from pgtrunk_gateway.session.statements import Prepared

__all__ = ["Failing"]

# A field begins where another ended, which no text can imitate.
_FATAL = (b"\0VFATAL\0", b"\0VPANIC\0")
_TAKEN = b"\0C42P05\0"
"""A prepared statement of this name exists."""
_STALE_PLAN = b"\0RRevalidateCachedQuery\0"
"""The routine that finds a plan to return other columns than before; its SQLSTATE, 0A000, is that of much else."""
_READ_ONLY: Final = b"\0C25006\0"
_READY_IDLE: Final = b"Z\0\0\0\x05I"
_END: Final = b"\0\0"
"""Of a text, and of an error's fields."""


class Failing(Telling):
    """What is known of this backend from its errors."""

    __slots__ = ("fatal", "notifies", "read_only", "unasked")

    def __init__(self, prepared: Prepared, parameters: dict[str, str]) -> None:
        super().__init__(prepared, parameters)
        self.notifies = False
        """The session keeps this backend: a notification is for it, since nobody else can have listened."""
        self.read_only = False
        """It has refused to write (25006): the session or the server is read-only."""
        self.fatal: bytes | None = None
        """Body of the ErrorResponse with which the backend goes away."""
        self.unasked = False
        """That came right behind the last answer, and the session, which keeps nothing there, did not get it."""

    def _error(self, data: bytes, start: int, end: int) -> None:
        """An ErrorResponse, or the beginning of one that is large."""
        message = data[start:end]
        if end - start <= UNSIGNED_HEAD(data, start)[1]:
            # Of a long one, this is the beginning.
            message += _END
        self.copying = False
        if _READ_ONLY in message:
            self.read_only = self.profile_changed = self.noted = True
        if any(severity in message for severity in _FATAL):
            self.fatal = message[5:]
            self.noted = True
            if not self.queue and data.endswith(_READY_IDLE, 0, start) and not self.notifies:
                # Read a moment later, it would have found the backend given back, and been for nobody.
                self.unasked = True
                self._emit(data, start, end)
        elif not self.queue:
            self._out_of_step()
        if not self.queue:
            return
        head = self.queue[0]
        if self.fatal is not None and head.hidden:
            # It is not the answer, and whoever has the backend hears it.
            return
        if isinstance(head, Applying):
            head.failed = True
        if isinstance(head, Asking):
            head.failed = True
            self._emit(data, start, end)
            return
        if self.unbegun is not None or head in entries.BEGIN:
            self._emit(data, start, end)
            self._never_begun(message[5:])
            return
        if head is entries.HIDDEN_QUERY or isinstance(head, Applying):
            # Whose settings they were may be gone: then nobody has to hear of it.
            if head is entries.HIDDEN_QUERY or self.asker is not None:
                self.hidden_error = message[5:]
                self.noted = True
            self._emit(data, start, end)
            return
        self.unnamed = None
        if head in (entries.TOLD, entries.FAILING):
            self._emit(data, start, end)
            return
        stale = _STALE_PLAN in message and self.asker is not None
        if stale and self._stale(head, message, self._is_first(head, data, start)):
            self._emit(data, start, end)
            return
        self._suspect(head, message)
        if isinstance(head, Describing) and not head.hidden:
            self._insert(data, start, head.parameters)
        if isinstance(head, Refused):
            self._emit(data, start, end)
            self._out.append(head.message)
        else:
            self._translate(message, data, start, end)
        if head.simple:
            self._refuse(lambda owed: owed.ready, taken=_TAKEN in message)
        elif not head.ready:
            self._skip_to_sync(taken=_TAKEN in message)
        if self.queue and self.queue[0] is entries.HIDDEN_SYNC:
            self.failed_unpinned = self.noted = True

    def _translate(self, message: bytes, data: bytes, start: int, end: int) -> None:
        if self.asker is not None and b'"~' in message and UNSIGNED_HEAD(data, start)[1] < end - start:
            message = self.asker.in_own_names(message)
            self._emit(data, start, end)
            # The names may differ in length.
            self._out.append(message[:1] + (len(message) - 1).to_bytes(4, "big") + message[5:])
