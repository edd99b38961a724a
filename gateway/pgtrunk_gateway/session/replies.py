"""What a backend still owes, and which of its bytes the session gets.

Rules, which everything here follows:

1.  Every request that goes to a backend leaves an entry in :attr:`Replies.queue` (:mod:`~pgtrunk_gateway.session.owed`)
    in the order of the requests; the backend answers in that order. An entry ends with the message that answers it:
    Parse with ParseComplete, Sync and Query with ReadyForQuery, and so on ("Message Flow" in the PostgreSQL
    documentation).
2.  An entry is forwarded, hidden (the gateway asked, not the client), or given (no request went out: the gateway gives
    the answer itself when the entry comes to the head).
3.  After ErrorResponse to a message of the extended protocol, the backend skips to Sync, over queries too. So does the
    queue: what is dropped is undone, both what the backend was thought to have and what the client's names mean.
4.  While COPY FROM STDIN runs, the backend ignores Sync: an entry for one sent too early is dropped, and the batch is
    open again. Where it cannot be told which Syncs were too early, the backend is not :attr:`Replies.in_step` any more.
5.  Whatever a session does not get is cut out of the chunk; what it gets is never copied, split or re-encoded. Messages
    that matter here are held back until they are complete, or of a long one its beginning; all others pass in parts.
6.  An error names statements as the client does. It also makes it doubtful which unnamed statement the backend has.

A whole batch in which nothing is hidden or given is one entry, ``BATCH``: that is the hot path, and it looks at
ReadyForQuery alone. Bytes in, bytes out; who reads and writes is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session import owed as entries
from pgtrunk_gateway.session.copying import COPY_BOTH, COPY_IN
from pgtrunk_gateway.session.cutting import BEGINNING, LARGE, UNSIGNED_HEAD
from pgtrunk_gateway.session.failing import Failing
from pgtrunk_gateway.session.noting import DISCARDED
from pgtrunk_gateway.session.owed import Again, Applying, Asking, Closing, Describing, Naming, Owed, Parsing
from pgtrunk_gateway.session.refusing import IDLE

if TYPE_CHECKING:
    from pgtrunk_gateway.session.statements import Prepared, Statement

__all__ = ["IDLE", "Replies"]

_READY: Final = ord("Z")
_ROW: Final = ord("D")
_COMPLETE: Final = ord("C")
_ERROR: Final = ord("E")
_PARAMETER: Final = ord("S")
_PARAMETERS: Final = ord("t")
_NOTIFICATION: Final = ord("A")
_ASYNC = frozenset(b"NAS")
_ROWS = frozenset(b"Dd")
"""The messages that may be long and many: never held back."""

_LONGEST_TAG: Final = 40
_TAGS = bytes(
    {16: 1, 19: 1, 9: 1, 8: 2, 10: 2}.get(length, 3 if length > 13 else 0) for length in range(_LONGEST_TAG + 1)
)
"""By the length of CommandComplete: 1 for DISCARD ALL, DEALLOCATE ALL and LOAD, 2 for SET and RESET, 3 for what begins
with ALTER or DROP, of which the second letter then says whether it is that; no count of rows below 10 is as long."""
_MOVING: Final = b"LR"
_MOVES: Final = (b"ALTER ", b"DROP ")
_BEGUN: Final = entries.BEGIN[2]
_BLOCK: Final = ord("T")
_WATCHED = bytes(kind in b"ZCSGWEA" for kind in range(256))


class Replies(Failing):
    """The reply side of one backend, over all the sessions that it serves in turn."""

    __slots__ = ("_parsed",)

    def __init__(self, prepared: Prepared, parameters: dict[str, str]) -> None:
        super().__init__(prepared, parameters)
        self._parsed: list[Statement] = []
        """What was parsed in the batch whose answers are coming."""

    @property
    def settled(self) -> bool:
        """Nothing is owed, and no message has come in part."""
        return not self.queue and not self.partial

    # -- requests ------------------------------------------------------------------------------------------------------

    def push(self, owed: Owed) -> None:
        """A request of the gateway's own has been sent."""
        if owed.ready:
            self.batch += 1
        if owed.syncs or not self.skipping:
            self.extend([owed])

    def extend(self, sent: list[Owed]) -> None:
        """These requests have been sent (or need not be, for what is given)."""
        if sent:
            # Of what is skipped nothing comes here: if the backend does skip, the first is a Sync.
            self.skipping = False
            self.queue.extend(sent)

    def take_given(self) -> bytes:
        """The answers at the head whose turn has come without the backend having to say anything."""
        answers = b""
        while self.queue and self.queue[0].given:
            owed = self.queue.popleft()
            answers += owed.message
            if isinstance(owed, Naming) and owed.before is not None and self.asker is not None:
                self.asker.redo(owed)
        return answers

    # -- the backend's bytes ------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Takes what the backend sent -> what the session gets of it.

        Hot, and plain for it: in a batch without anything hidden or made, only ReadyForQuery and a few others matter,
        and the rest is hopped over.
        """
        pos = 0
        if self.partial:
            if self._carry and not (data := self._carried(data)):
                return data
            pos = self._need
            if self._dropping == _ROW:
                self._collect(data[:pos])
            if pos > len(data):
                self._need = pos - len(data)
                return b"" if self._dropping else data
            self._need = 0
            self.partial = False
            if self._dropping:
                self._dropping = 0
                self._cut = pos
        size = len(data)
        queue = self.queue
        plain = bool(queue) and queue[0].plain
        head, watched, last = UNSIGNED_HEAD, _WATCHED, size - 5
        while pos <= last:
            kind, length = head(data, pos)
            if plain and not watched[kind]:
                pos += length + 1
                continue
            end = pos + length + 1
            if plain and kind == _COMPLETE:
                # The tags that matter are known by their lengths first.
                if (
                    length > _LONGEST_TAG
                    or not (matters := _TAGS[length])
                    or (matters > 1 and not (self.others if matters == 2 else data[pos + 6 : pos + 7] in _MOVING))
                ):
                    pos = end
                    continue
            elif end > size and kind in _ROWS:
                if self._hides():
                    self._dropping = kind
                    self._emit(data, pos, size)
                    self._collect(data[pos + 5 :], begins=True)
                pos = end
                break
            if end > size:
                if kind in LARGE and size - pos >= BEGINNING:
                    # What is there of it says what it is; the rest passes, or is left out, as that does.
                    self._message(kind, data, pos, size)
                    self._dropping = kind if self._cut == size else 0
                    pos = end
                break
            if plain and kind == _READY and length == 5:
                queue.popleft()
                self.status = data[pos + 5]
                self.copying = False
                if end == size and not queue and not self._cut and not self._out:
                    return data
                if queue and queue[0].given:
                    self._insert(data, end, self.take_given())
            else:
                self._message(kind, data, pos, end)
            plain = bool(queue) and queue[0].plain
            pos = end
        if queue:
            self.passed = self.batch
        if pos == size and not self._cut and not self._out:
            return data
        return self._rest(data, pos, size)

    def _dialect_moves(self) -> None:
        # What is parsed behind the command that did it does not mean what it is filed under: nobody shall rely on it.
        for statement in self._parsed:
            self.prepared.suspect(statement)
        for owed in self.queue:
            if isinstance(owed, Parsing):
                owed.moved = True

    def _hides(self) -> bool:
        return bool(self.queue) and self.queue[0].hidden

    def _message(self, kind: int, data: bytes, start: int, end: int) -> None:
        """One complete message that matters, or any while the head of the queue is not plain."""
        if kind in _ASYNC:
            self._asynchronous(kind, data, start, end)
        elif kind == _ERROR:
            self._error(data, start, end)
        elif kind in (COPY_IN, COPY_BOTH):
            self._copy_started(kind)
        elif not self.queue:
            self._out_of_step()
        elif kind == _READY:
            self._ready(data, start, end)
        else:
            self._answer(kind, data, start, end)

    def _asynchronous(self, kind: int, data: bytes, start: int, end: int) -> None:
        # Unless the session keeps the backend, who listened may have given it back long ago: it is for nobody here.
        hidden = not self.notifies if kind == _NOTIFICATION else self._hides()
        if hidden:
            self._emit(data, start, end)
        if kind == _PARAMETER:
            self._parameter(data, start, end, hidden=hidden)

    def _answer(self, kind: int, data: bytes, start: int, end: int) -> None:
        if kind == _COMPLETE:
            self._tag(data[start + 5 : end])
        owed = self.queue[0]
        if isinstance(owed, Describing):
            self._describes(owed, kind, data, start, end)
        elif owed.hidden or (kind == _PARAMETERS and owed is entries.DESCRIBE_AGAIN):
            self._emit(data, start, end)
            if kind == _ROW:
                self._collect(data[start + 5 : end], begins=True)
        if kind not in owed.ends:
            return
        self.queue.popleft()
        self.copying = False
        if isinstance(owed, Parsing):
            self.prepared.confirm(owed.statement, owed.batch)
            self._parsed.append(owed.statement)
            if owed.moved:
                self.prepared.suspect(owed.statement)
            if owed.before is not None and self.asker is not None:
                self.asker.redo(owed)
        elif isinstance(owed, Closing):
            self.prepared.closed(owed.statement, owed.batch)
        elif owed is _BEGUN:
            # What ReadyForQuery would say if there were one.
            self.status = _BLOCK
        if self.queue and self.queue[0].given:
            self._insert(data, end, self.take_given())

    def _collect(self, part: bytes, *, begins: bool = False) -> None:
        """A row that the session does not get, or part of one: it may be one that the gateway has asked for."""
        asking = self.queue[0] if self.queue else None
        if isinstance(asking, Asking):
            if begins:
                asking.rows.append(bytearray())
            asking.rows[-1] += part

    def _tag(self, body: bytes) -> None:
        self._settings_tag(body)
        if body.startswith(_MOVES):
            self.moved = self.noted = True
        if body == b"LOAD\0":
            self.loaded = self.noted = True
        if body in (DISCARDED, b"DEALLOCATE ALL\0"):
            self.prepared.clear()
            if self.asker is not None:
                self.asker.forget_all([owed for owed in self.queue if isinstance(owed, Naming)])

    def _ready(self, data: bytes, start: int, end: int) -> None:
        if end - start == 6:
            self.status = data[start + 5]
        else:
            self._out_of_step()
        self.copying = False
        while not (owed := self.queue.popleft()).ready:
            if owed.simple:
                # Some command of the query gave no tag.
                self._drop([owed])
            else:
                self._out_of_step()
            if not self.queue:
                return
        if isinstance(owed, Again) and self.queue:
            self._insert(data, start, owed.message)
        elif owed.hidden and owed is not entries.TOLD:
            self._emit(data, start, end)
        if isinstance(owed, Again) and not self.queue:
            self.again = self.noted = True
        self._parsed.clear()
        if isinstance(owed, Applying) and not owed.failed:
            self._has(owed.others)
            self.parameters_changed = True
        elif isinstance(owed, Asking):
            self._answered(owed)
        elif owed is entries.HIDDEN_QUERY:
            # A setting that was made without a change of value is not reported; the session wanted it all the same.
            self.parameters_changed = self.profile_changed = self.noted = True
        if self.queue and self.queue[0].given:
            self._insert(data, end, self.take_given())
