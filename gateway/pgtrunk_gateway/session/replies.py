"""What a backend still owes, and which of its bytes the session gets.

Rules, which everything here follows:

1.  Every request that goes to a backend leaves an entry in :attr:`Replies.queue` in the order of the requests; the
    backend answers in that order. An entry ends with the message that answers it: Parse with ParseComplete, Sync and
    Query with ReadyForQuery, and so on ("Message Flow" in the PostgreSQL documentation).
2.  An entry is forwarded, hidden (the gateway asked, not the client), or made (no request went out: the gateway gives
    the answer itself when the entry comes to the head).
3.  After ErrorResponse the backend skips to Sync. So does the queue: the entries up to the next one that ends with
    ReadyForQuery are dropped, hidden and made ones too; a Parse among them has not prepared anything.
4.  While COPY FROM STDIN runs, the backend ignores Sync: an entry for one sent too early is dropped.
5.  Whatever a session does not get is cut out of the chunk; what it gets is never copied, split or re-encoded. Messages
    that matter here are held back until they are complete; all others pass in parts.

A whole batch in which nothing is hidden or made is one entry, ``BATCH``: that is the hot path, and it looks at
ReadyForQuery alone. Bytes in, bytes out; who reads and writes is not known here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import HEAD

if TYPE_CHECKING:
    from pgtrunk_gateway.session.statements import Prepared, Statement

__all__ = [
    "BATCH",
    "BIND",
    "CLOSE",
    "DESCRIBE",
    "EXECUTE",
    "HIDDEN_CLOSE",
    "HIDDEN_PARSE_UNNAMED",
    "HIDDEN_QUERY",
    "HIDDEN_SYNC",
    "PARSE_UNNAMED",
    "QUERY",
    "SYNC",
    "Closing",
    "Owed",
    "Parsing",
    "Replies",
    "made",
]

IDLE: Final = ord("I")
_READY: Final = ord("Z")
_COMPLETE: Final = ord("C")
_ERROR: Final = ord("E")
_PARAMETER: Final = ord("S")
_COPY_IN: Final = ord("G")
_COPY_BOTH: Final = ord("W")
_ASYNC = frozenset(b"NAS")
_ROWS = frozenset(b"Dd")
"""The messages that may be long and many: never held back."""

# A field begins where another ended, which no text can imitate.
_FATAL = (b"\0VFATAL\0", b"\0VPANIC\0")
_STALE_PLAN = b"\0RRevalidateCachedQuery\0"
"""The routine that finds a plan to return other columns than before; its SQLSTATE, 0A000, is that of much else."""
_WATCHED = bytes(kind in b"ZCSGWE" for kind in range(256))


class Owed:
    """One answer that the backend owes. ``ends`` are the message types that complete it."""

    __slots__ = ("ends", "hidden", "label", "message", "plain", "ready")

    def __init__(
        self, label: str, ends: bytes, *, hidden: bool = False, message: bytes = b"", plain: bool = False
    ) -> None:
        self.label = label
        self.ends = ends
        self.hidden = hidden
        self.message = message
        """The answer itself, of a made one."""
        self.plain = plain
        """A whole batch or query, of which the session gets all."""
        self.ready = ends == b"Z"
        """Whether ReadyForQuery ends it, which is where skipping after an error stops."""

    def __repr__(self) -> str:
        return f"<{self.label}>"


class Parsing(Owed):
    """A Parse of the named ``statement``. ``name`` is the client's name for it, None where the gateway injected it.

    ``unsure``: an earlier batch of the pipeline sent it too, so a Close went ahead; if both are skipped, the backend
    has it or not. ``duplicate``: the client parses a name it has in use; the backend will refuse it, and the error
    shall show the client's name.
    """

    __slots__ = ("duplicate", "name", "statement", "unsure")

    def __init__(
        self, statement: Statement, name: bytes | None, *, unsure: bool = False, duplicate: bool = False
    ) -> None:
        super().__init__("parse", b"1", hidden=name is None)
        self.statement = statement
        self.name = name
        self.unsure = unsure
        self.duplicate = duplicate


class Closing(Owed):
    """An injected Close of ``statement``, which had to make room."""

    __slots__ = ("statement",)

    def __init__(self, statement: Statement) -> None:
        super().__init__("close", b"3", hidden=True)
        self.statement = statement


def made(message: bytes) -> Owed:
    """An answer that no request went out for: ``message`` is given when its turn comes."""
    return Owed("made", b"", message=message)


BATCH = Owed("batch", b"Z", plain=True)
QUERY = Owed("query", b"Z", plain=True)
SYNC = Owed("sync", b"Z")
HIDDEN_SYNC = Owed("hidden sync", b"Z", hidden=True)
HIDDEN_QUERY = Owed("hidden query", b"Z", hidden=True)
PARSE_UNNAMED = Owed("parse", b"1")
HIDDEN_PARSE_UNNAMED = Owed("hidden parse", b"1", hidden=True)
HIDDEN_CLOSE = Owed("hidden close", b"3", hidden=True)
BIND = Owed("bind", b"2")
CLOSE = Owed("close", b"3")
DESCRIBE = Owed("describe", b"Tn")
EXECUTE = Owed("execute", b"CIs")


class Replies:
    """The reply side of one backend, over all the sessions that it serves in turn."""

    __slots__ = (
        "_carry",
        "_cut",
        "_dropping",
        "_need",
        "_out",
        "batch",
        "copying",
        "failed_names",
        "failed_unpinned",
        "fatal",
        "hidden_error",
        "noted",
        "parameters",
        "parameters_changed",
        "prepared",
        "queue",
        "skipping",
        "stale_plan",
        "statements_dropped",
        "status",
        "unnamed",
    )

    def __init__(self, prepared: Prepared, parameters: dict[str, str]) -> None:
        self.queue: deque[Owed] = deque()
        self.prepared = prepared
        self.parameters = parameters
        """The last ParameterStatus of each name."""
        self.unnamed: Statement | None = None
        """The unnamed statement that the backend has, as far as it is known."""
        self.status = IDLE
        """Of the last ReadyForQuery: I, T or E."""
        self.batch = 1
        """Number of the batch that is being sent; see :class:`Prepared`."""
        self.copying = False
        """COPY FROM STDIN runs."""
        self.skipping = False
        """The backend skips all that is sent, up to the Sync that has not been sent yet."""
        self.fatal: bytes | None = None
        """Body of the ErrorResponse with which the backend goes away."""
        self._carry = b""
        self._need = 0
        self._dropping = False
        self._out: list[bytes] = []
        self._cut = 0
        self.take_notes()

    def take_notes(self) -> None:
        """Resets what :meth:`feed` noted for the session: to be called when it has been acted on."""
        self.noted = False
        """Any of the following."""
        self.failed_names: list[bytes] = []
        """The client's names of statements whose Parse failed."""
        self.failed_unpinned = False
        """A batch failed whose end was a Sync that only the gateway sent."""
        self.statements_dropped = False
        """DISCARD ALL or DEALLOCATE ALL ran."""
        self.stale_plan = False
        """A statement failed since its columns are not what they were when it was prepared."""
        self.parameters_changed = False
        """A ParameterStatus came, hidden or not, or a hidden query ended, which may have set what was set already."""
        self.hidden_error: bytes | None = None
        """Body of an ErrorResponse to something hidden that the client has to hear of."""

    @property
    def settled(self) -> bool:
        """Nothing is owed, and no message has come in part."""
        return not self.queue and not self.partial

    @property
    def partial(self) -> bool:
        """A message has come in part."""
        return bool(self._need or self._carry)

    def push(self, owed: Owed) -> None:
        """A request has been sent (or need not be, for what is made)."""
        if owed.ready:
            self.batch += 1
            self.skipping = False
        elif self.skipping:
            self._skip(owed)
            return
        self.queue.append(owed)

    def flush_made(self) -> bytes:
        """The made answers at the head, whose turn has come without the backend having to say anything."""
        answers = b""
        while self.queue and self.queue[0].message:
            answers += self.queue.popleft().message
        return answers

    # -- the backend's bytes ------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Takes what the backend sent -> what the session gets of it.

        Hot, and plain for it: in a batch without anything hidden or made, only ReadyForQuery and a few others matter,
        and the rest is hopped over.
        """
        if self._carry:
            data = self._carry + data
            self._carry = b""
        size = len(data)
        pos = self._need
        if pos:
            if pos >= size:
                self._need = pos - size
                return b"" if self._dropping else data
            self._need = 0
            if self._dropping:
                self._dropping = False
                self._cut = pos
        queue = self.queue
        plain = bool(queue) and queue[0].plain
        head, watched, last = HEAD, _WATCHED, size - 5
        while pos <= last:
            kind, length = head(data, pos)
            if plain and not watched[kind]:
                pos += length + 1
                continue
            end = pos + length + 1
            if plain and kind == _COMPLETE:
                # DISCARD ALL and DEALLOCATE ALL are known by the length of their tags first.
                if length != 16 and length != 19:
                    pos = end
                    continue
            elif end > size and kind in _ROWS:
                self._dropping = self._hides()
                if self._dropping:
                    self._emit(data, pos, size)
                pos = end
                break
            if end > size:
                break
            if plain and kind == _READY:
                queue.popleft()
                self.status = data[pos + 5]
                self.copying = False
                if queue and queue[0].message:
                    self._insert(data, end, self.flush_made())
            else:
                self._message(kind, data, pos, end)
            plain = bool(queue) and queue[0].plain
            pos = end
        if pos == size and not self._cut and not self._out:
            return data
        return self._rest(data, pos, size)

    def _rest(self, data: bytes, pos: int, size: int) -> bytes:
        # Hold back a partial header or a partial message that matters; count what is missing of one that passes.
        if pos > size:
            self._need = pos - size
            pos = size
        elif pos < size:
            self._carry = data[pos:]
        cut, self._cut = self._cut, 0
        if not self._out:
            return data[cut:pos]
        out, self._out = self._out, []
        if cut < pos:
            out.append(data[cut:pos])
        return b"".join(out)

    def _emit(self, data: bytes, start: int, end: int) -> None:
        # Leaves data[start:end] out of what the session gets.
        if start > self._cut:
            self._out.append(data[self._cut : start])
        self._cut = end

    def _insert(self, data: bytes, at: int, message: bytes) -> None:
        self._emit(data, at, at)
        self._out.append(message)

    def _hides(self) -> bool:
        return bool(self.queue) and self.queue[0].hidden

    def _message(self, kind: int, data: bytes, start: int, end: int) -> None:
        """One complete message that matters, or any while the head of the queue is not plain."""
        if kind in _ASYNC:
            self._asynchronous(kind, data, start, end)
        elif kind == _ERROR:
            self._error(data, start, end)
        elif kind in (_COPY_IN, _COPY_BOTH):
            self._copy_started(kind)
        elif kind == _READY:
            self._ready(data, start, end)
        else:
            self._answer(kind, data, start, end)

    def _asynchronous(self, kind: int, data: bytes, start: int, end: int) -> None:
        if kind == _PARAMETER:
            name, value = server.parse_parameter_status(data[start + 5 : end])
            self.parameters[name] = value
            self.parameters_changed = self.noted = True
        if self._hides():
            self._emit(data, start, end)

    def _answer(self, kind: int, data: bytes, start: int, end: int) -> None:
        if kind == _COMPLETE:
            self._tag(data[start + 5 : end])
        if not self.queue:
            return
        owed = self.queue[0]
        if owed.hidden:
            self._emit(data, start, end)
        if kind not in owed.ends:
            return
        self.queue.popleft()
        self.copying = False
        if isinstance(owed, Parsing):
            self.prepared.confirm(owed.statement)
        if self.queue and self.queue[0].message:
            self._insert(data, end, self.flush_made())

    def _tag(self, body: bytes) -> None:
        if body in (b"DISCARD ALL\0", b"DEALLOCATE ALL\0"):
            self.prepared.clear()
            self.statements_dropped = self.noted = True

    def _ready(self, data: bytes, start: int, end: int) -> None:
        self.status = data[start + 5]
        self.copying = False
        if not self.queue:
            return
        while not (owed := self.queue.popleft()).ready:
            # Only Execute of a portal that ended in COPY can be left here; nothing else ends without its answer.
            self._skip(owed)
            if not self.queue:
                return
        if owed.hidden:
            self._emit(data, start, end)
        if owed is HIDDEN_QUERY:
            # A setting that was made without a change of value is not reported; the session wanted it all the same.
            self.parameters_changed = self.noted = True
        if self.queue and self.queue[0].message:
            self._insert(data, end, self.flush_made())

    def _copy_started(self, kind: int) -> None:
        self.copying = True
        queue = self.queue
        if not queue or kind != _COPY_IN:
            return
        if queue[0] is BATCH:
            queue[0] = EXECUTE
        elif queue[0] is EXECUTE:
            while len(queue) > 1 and queue[1].label == "sync":
                del queue[1]

    # -- errors -------------------------------------------------------------------------------------------------------

    def _error(self, data: bytes, start: int, end: int) -> None:
        queue = self.queue
        self.copying = False
        if not queue or any(severity in data[start:end] for severity in _FATAL):
            self.fatal = data[start + 5 : end]
            self.noted = True
        if _STALE_PLAN in data[start:end]:
            self.stale_plan = self.noted = True
        if not queue:
            return
        head = queue[0]
        if head is HIDDEN_QUERY:
            self.hidden_error = data[start + 5 : end]
            self.noted = True
            self._emit(data, start, end)
            return
        if isinstance(head, Parsing) and head.duplicate and head.name is not None:
            named = data[start:end].replace(b'"' + head.statement.name + b'"', b'"' + head.name + b'"', 1)
            self._emit(data, start, end)
            self._out.append(_with_length(named))
        self._skip_to_sync()

    def _skip_to_sync(self) -> None:
        queue = self.queue
        if queue and isinstance(queue[0], Parsing):
            self._refused(queue.popleft())
        while queue and not queue[0].ready:
            self._skip(queue.popleft())
        if not queue:
            self.skipping = True
        elif queue[0] is HIDDEN_SYNC:
            self.failed_unpinned = self.noted = True

    def _refused(self, parsing: Owed) -> None:
        # The backend did try this Parse.
        if isinstance(parsing, Parsing) and not parsing.duplicate:
            self.prepared.forget(parsing.statement)
            self._forget_name(parsing)

    def _skip(self, owed: Owed) -> None:
        if isinstance(owed, Parsing) and not owed.duplicate:
            if owed.unsure:
                self.prepared.doubt(owed.statement)
            else:
                self.prepared.forget(owed.statement)
            self._forget_name(owed)
        elif isinstance(owed, Closing):
            self.prepared.confirm(owed.statement)

    def _forget_name(self, parsing: Parsing) -> None:
        if parsing.name is not None:
            self.failed_names.append(parsing.name)
            self.noted = True


def _with_length(message: bytes) -> bytes:
    # Renaming may have changed the length of the message.
    return message[:1] + (len(message) - 1).to_bytes(4, "big") + message[5:]
