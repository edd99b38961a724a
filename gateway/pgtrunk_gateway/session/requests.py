"""What a session asks, rewritten for the backend that it holds.

The request side of one session: its statements, and :meth:`Requests.plan`, which takes whole messages and gives the
bytes to send, while it leaves one entry per answer in the backend's :class:`~pgtrunk_gateway.session.replies.Replies`.

- A named statement has the gateway's name on every backend; one that this backend lacks is prepared in the same flight.
- Parse of a statement that this backend has is answered by the gateway; so is Close, since others may use it.
- The unnamed statement follows its session: when the backend's is another, it is parsed again before it is used.
- Parse and Describe with Flush, outside a transaction (how asyncpg prepares), would keep the backend until the client's
  Sync. They are sent with a Sync instead, whose ReadyForQuery the client does not see.
- What the gateway does not know is sent as it is: Postgres then gives the very error that it would give without us.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.backend import CLOSE_COMPLETE_MESSAGE, PARSE_COMPLETE_MESSAGE
from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk_gateway.session import replies as owed
from pgtrunk_gateway.session.statements import Statement

if TYPE_CHECKING:
    from pgtrunk_gateway.session.replies import Owed, Replies
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["EXECUTION", "OTHER", "QUERY", "BrokenRequest", "Requests", "shape_of"]

OTHER: Final = 0
QUERY: Final = 1
EXECUTION: Final = 2

_SYNC: Final = client.SYNC_MESSAGE
_EXECUTE_UNNAMED: Final = b"E\0\0\0\x09\0"
_DESCRIBE_UNNAMED: Final = b"D\0\0\0\x06P\0"
_TAIL: Final = 15
"""Octets of Execute of the unnamed portal, with Sync."""
_LONG_TAIL: Final = 22
"""The same with Describe of that portal ahead."""
_IDLE: Final = ord("I")
_BIND: Final = ord("B")
_QUERY: Final = ord("Q")
_CLOSED = owed.made(CLOSE_COMPLETE_MESSAGE)
_PARSED = owed.made(PARSE_COMPLETE_MESSAGE)


def shape_of(data: bytes) -> int:
    """QUERY: exactly one Query. EXECUTION: exactly Bind of the unnamed portal to a named statement, its Execute, Sync;
    libpq has a Describe of the portal before its Execute.

    Nearly all queries have one of these shapes, which show without going through the messages. Hot.
    """
    size = len(data)
    if size < HEADER_SIZE:
        return OTHER
    kind, length = HEAD(data, 0)
    if kind == _QUERY:
        return QUERY if length + 1 == size else OTHER
    if (
        kind == _BIND
        and (
            length == size - _TAIL - 1
            or (length == size - _LONG_TAIL - 1 and data[-_LONG_TAIL:-_TAIL] == _DESCRIBE_UNNAMED)
        )
        and data[5] == 0
        and data[6]
        and data[-_TAIL : 6 - _TAIL] == _EXECUTE_UNNAMED
        and data[-5:] == _SYNC
    ):
        return EXECUTION
    return OTHER


class BrokenRequest(ProtocolViolation):
    """A message that no client may send. ``before``: the bytes for the backend of what came before it."""

    def __init__(self, message: str, before: bytes) -> None:
        super().__init__(message)
        self.before = before


class Requests:
    """The request side of one session."""

    __slots__ = (
        "_entries",
        "_only_prepares",
        "_out",
        "_plain",
        "_start",
        "catalogue",
        "open",
        "statements",
        "terminated",
        "tracked",
        "unnamed",
        "unpinned",
    )

    def __init__(self, catalogue: Catalogue, *, tracked: bool = True) -> None:
        """``tracked``: named statements follow the session; otherwise they are sent as they are."""
        self.catalogue = catalogue
        self.tracked = tracked
        self.statements: dict[bytes, Statement] = {}
        """By the client's names."""
        self.unnamed: Statement | None = None
        self.open = False
        """A batch has been sent in part: its Sync is still to come."""
        self.unpinned = False
        """The last plan put a Sync in the place of the client's Flush."""
        self.terminated = False
        """The client said Terminate."""
        self._out: list[bytes] = []
        self._entries: list[Owed] = []
        self._start = 0
        self._plain = True
        self._only_prepares = True

    def forget(self, names: list[bytes]) -> None:
        """The Parse of these failed."""
        for name in names:
            self.statements.pop(name, None)

    def forget_all(self) -> None:
        """DISCARD ALL or DEALLOCATE ALL ran."""
        self.statements.clear()

    def retire(self) -> None:
        """The columns of one of them changed, and it is not known which: whoever parses them again gets new ones."""
        for name, statement in self.statements.items():
            self.catalogue.retire(len(name), statement)

    def plan(self, data: bytes, replies: Replies, shape: int = OTHER) -> bytes:
        """``data``: whole messages, or the beginning of one too large to collect -> the bytes for the backend.

        ``shape`` is what :func:`shape_of` says of it, where it was asked. Raises :class:`BrokenRequest` at the first
        message that no client may send.
        """
        # What Replies.push would do for these two is written out: every query comes through here.
        if shape == QUERY:
            replies.unnamed = None
            replies.batch += 1
            replies.skipping = self.open = False
            replies.queue.append(owed.QUERY)
            return data
        if shape == EXECUTION and not self.open:
            end = data.index(0, 6)
            statement = self.statements.get(data[6:end])
            if statement is not None and replies.prepared.usable(statement, replies.batch):
                name = statement.name
                if len(name) == end - 6:
                    replies.batch += 1
                    replies.skipping = False
                    replies.queue.append(owed.BATCH)
                    return data[:6] + name + data[end:]
        size = len(data)
        self.unpinned = False
        self._entries = []
        self._start = 0
        self._plain = not self.open
        self._only_prepares = not self.open and replies.status == _IDLE and not replies.queue
        pos = 0
        while pos < size:
            kind, length = HEAD(data, pos)
            end = pos + length + 1
            if kind != client.COPY_DATA:
                try:
                    _HANDLERS[kind](self, data, pos, min(end, size), replies)
                except (ProtocolViolation, ValueError, LookupError) as error:
                    reason = str(error) if isinstance(error, ProtocolViolation) else f"invalid message {chr(kind)!r}"
                    raise BrokenRequest(reason, self._end(data, pos, replies)) from error
            pos = end
        return self._end(data, size, replies)

    def _end(self, data: bytes, upto: int, replies: Replies) -> bytes:
        self._commit(replies)
        self._cut(data, upto, b"")
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    # -- building ------------------------------------------------------------------------------------------------------

    def _cut(self, data: bytes, upto: int, instead: bytes) -> None:
        # What was kept so far, then something of our own; the caller moves _start behind what it stands for.
        if self._start < upto:
            self._out.append(data[self._start : upto])
        if instead:
            self._out.append(instead)
        self._start = upto

    def _replace(self, data: bytes, start: int, end: int, instead: bytes) -> None:
        self._cut(data, start, instead)
        self._start = end

    def _owe(self, entry: Owed) -> None:
        self._entries.append(entry)
        self.open = True

    def _commit(self, replies: Replies) -> None:
        for entry in self._entries:
            replies.push(entry)
        self._entries = []

    def _finish(self, replies: Replies, end: Owed) -> None:
        """The batch ends here: as one entry if all of it is here and the session gets every answer as it is."""
        if end is owed.SYNC and self._plain and self._entries:
            self._entries = []
            end = owed.BATCH
        self._commit(replies)
        replies.push(end)
        self.open = False
        self._plain = True

    # -- preparing -----------------------------------------------------------------------------------------------------

    def _ensure(self, statement: Statement, data: bytes, pos: int, replies: Replies) -> None:
        """Sees to it that the backend has ``statement`` when the message at ``pos`` comes."""
        if statement.name:
            if replies.prepared.usable(statement, replies.batch):
                return
            self._owe(self._prepare(statement, None, data, pos, replies))
        elif replies.unnamed is not statement:
            replies.unnamed = statement
            self._owe(owed.HIDDEN_PARSE_UNNAMED)
        else:
            return
        self._plain = False
        self._cut(data, pos, statement.parse)

    def _prepare(self, statement: Statement, name: bytes | None, data: bytes, pos: int, replies: Replies) -> Owed:
        """Sends ahead what has to be closed before ``statement`` is parsed -> the entry for its Parse."""
        unsure = replies.prepared.unsure(statement)
        if unsure:
            # Sent in an earlier batch of this pipeline, which may have failed before it: Close does no harm either way.
            self._owe(owed.HIDDEN_CLOSE)
            self._cut(data, pos, client.close_statement(statement.name))
        oldest = replies.prepared.expect(statement, replies.batch)
        if oldest is not None:
            self._owe(owed.Closing(oldest))
            self._cut(data, pos, client.close_statement(oldest.name))
        return owed.Parsing(statement, name, unsure=unsure)

    def _known(self, name: bytes) -> Statement | None:
        return self.statements.get(name) if name else self.unnamed

    # -- one handler per message type; ``end`` is the end of what there is of it ---------------------------------------

    def _parse(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        name, body_at = client.text(data, pos + 5)
        body = data[body_at:end]
        if not name:
            self.unnamed = replies.unnamed = Statement(b"", body)
            self._owe(owed.PARSE_UNNAMED)
            return
        if not self.tracked:
            self._owe(owed.PARSE_UNNAMED)
            return
        self._plain = False
        duplicate = self.statements.get(name)
        if duplicate is not None:
            self._ensure(duplicate, data, pos, replies)
            self._owe(owed.Parsing(duplicate, name, duplicate=True))
            self._replace(data, pos, end, duplicate.parse)
            return
        statement = self.statements[name] = self.catalogue.intern(len(name), body)
        if replies.prepared.usable(statement, replies.batch):
            self._owe(_PARSED)
            self._replace(data, pos, end, b"")
            return
        self._owe(self._prepare(statement, name, data, pos, replies))
        self._replace(data, pos, end, statement.parse)

    def _bind(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = False
        name_at = data.index(0, pos + 5, end) + 1
        rest_at = data.index(0, name_at, end)
        name = data[name_at:rest_at]
        statement = self._known(name)
        if statement is not None:
            self._ensure(statement, data, pos, replies)
            if statement.name != name:
                length = HEAD(data, pos)[1] + len(statement.name) - len(name)
                head = b"B" + length.to_bytes(4, "big") + data[pos + 5 : name_at] + statement.name
                self._replace(data, pos, rest_at, head)
        self._owe(owed.BIND)

    def _describe(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        if data[pos + 5] == ord("S"):
            name, _ = client.text(data, pos + 6)
            statement = self._known(name)
            if statement is not None:
                self._ensure(statement, data, pos, replies)
                if statement.name != name:
                    self._replace(data, pos, end, client.describe_statement(statement.name))
        else:
            self._only_prepares = False
        self._owe(owed.DESCRIBE)

    def _close(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        if data[pos + 5] == ord("S"):
            name, _ = client.text(data, pos + 6)
            if not name:
                self.unnamed = replies.unnamed = None
            elif self.statements.pop(name, None) is not None:
                self._plain = False
                self._owe(_CLOSED)
                self._replace(data, pos, end, b"")
                return
        else:
            self._only_prepares = False
        self._owe(owed.CLOSE)

    def _execute(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = False
        self._owe(owed.EXECUTE)

    def _sync(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = False
        if replies.copying:
            return
        self._finish(replies, owed.SYNC)

    def _flush(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        if self._only_prepares and end == len(data) and self._entries:
            self._replace(data, pos, end, _SYNC)
            self._finish(replies, owed.HIDDEN_SYNC)
            self.unpinned = True

    def _query(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        # A simple query ends a batch as Sync does, and destroys the unnamed statement.
        self._only_prepares = False
        replies.unnamed = None
        self._plain = False
        self._finish(replies, owed.QUERY)

    def _copy_end(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = False
        replies.copying = False

    def _terminate(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        # Never for the backend: it goes on to the next session.
        self._only_prepares = False
        self.terminated = True
        self._replace(data, pos, end, b"")


_HANDLERS = {
    client.PARSE: Requests._parse,
    client.BIND: Requests._bind,
    client.DESCRIBE: Requests._describe,
    client.CLOSE: Requests._close,
    client.EXECUTE: Requests._execute,
    client.SYNC: Requests._sync,
    client.FLUSH: Requests._flush,
    client.QUERY: Requests._query,
    client.FUNCTION_CALL: Requests._query,
    client.COPY_DONE: Requests._copy_end,
    client.COPY_FAIL: Requests._copy_end,
    client.TERMINATE: Requests._terminate,
}
