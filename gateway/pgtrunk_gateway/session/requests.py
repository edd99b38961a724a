"""What a session asks, rewritten for the backend that it holds.

The request side of one session: its statements, and :meth:`Requests.plan`, which takes whole messages and gives the
bytes to send, while it leaves one entry per answer in the backend's :class:`~pgtrunk_gateway.session.replies.Replies`.

- A named statement has the gateway's name on every backend; one that this backend lacks is prepared in the same flight.
- Parse of a statement that this backend has is answered by the gateway; so is Close, since others may use it.
- The unnamed statement follows its session: when the backend's is another, it is parsed again before it is used. So is
  one whose Parse failed, since nothing says in a plain batch that it was that which failed: the client that uses it all
  the same gets the error again, and not the one that there is no such statement.
- Parse and Describe with Flush, outside a transaction (how asyncpg prepares), would keep the backend until the client's
  Sync. They are sent with a Sync instead, whose ReadyForQuery the client does not see.
- What the gateway does not know is sent as it is: Postgres then gives the very error that it would give without us.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.commanding import Commanding
from pgtrunk_gateway.session.reading import bound_values, statement_name, text_within
from pgtrunk_gateway.session.shapes import EXECUTION, OTHER, QUERY, describes
from pgtrunk_gateway.session.skipping import batch_end
from pgtrunk_gateway.session.sql.text import glance, is_ordinary
from pgtrunk_gateway.session.sql_statements import Template
from pgtrunk_gateway.session.statements import Statement, Unkept, foreign
from pgtrunk_gateway.session.tracing import FAILS, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.session.owed import Owed
    from pgtrunk_gateway.session.replies import Replies
    from pgtrunk_gateway.session.sql.traces import Traces
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["BrokenRequest", "Requests"]

_SYNC: Final = client.SYNC_MESSAGE
_IDLE: Final = ord("I")
_REPEATABLE: Final = 64 << 10
"""Octets of a request that is kept in case it has to be asked again."""
_FAILED: Final = ord("E")


class BrokenRequest(ProtocolViolation):
    """A message that no client may send. ``before``: the bytes for the backend of what came before it."""

    def __init__(self, message: str, before: bytes) -> None:
        super().__init__(message)
        self.before = before


class Requests(Commanding):
    """The request side of one session."""

    __slots__ = ("_behind", "_described", "_queried", "terminated", "unfinished", "unpinned")

    def __init__(
        self, catalogue: Catalogue, *, tracked: bool = True, stir: Callable[[Traces], None] | None = None
    ) -> None:
        """``tracked``: named statements follow the session; otherwise they are sent as they are.

        ``stir`` is told what a request may leave behind on the backend, before it is sent.
        """
        super().__init__(catalogue, tracked=tracked, stir=stir)
        self.unpinned = False
        """The last plan put a Sync in the place of the client's Flush."""
        self.terminated = False
        """The client said Terminate."""
        self.unfinished = 0
        """How many answers are owed for the last message of the last plan, if not all of it was there."""
        self._described: set[bytes] = set()
        """The client's names of statements whose columns it has been told."""
        self._behind = False
        """What was sent before has not been answered yet."""
        self._queried = False
        """A query was sent inside a batch whose Sync is still to come."""

    def keep(self, keeps: bool, *, tracked: bool) -> None:
        """Whether the backend is kept between transactions, and named statements follow the session.

        Those that do already go on doing so: a name means one thing.
        """
        self.keeps = keeps
        self.tracked = tracked or bool(self.statements)

    # -- requests ------------------------------------------------------------------------------------------------------

    def plan(self, data: bytes, replies: Replies, shape: int = OTHER) -> bytes:
        """``data``: whole messages, or the beginning of one too large to collect -> the bytes for the backend.

        ``shape`` is what :func:`~pgtrunk_gateway.session.shapes.shape_of` says of it, where it was asked. Raises
        :class:`BrokenRequest` at the first message that no client may send.
        """
        # What the general way would do for these two is written out: every query comes through here.
        if shape and not self.open:
            replies.asker = self
            if shape == QUERY:
                if not is_ordinary(data) and glance(data, 5, len(data) - 1):
                    return self._plan(data, replies)
                self.unnamed = replies.unnamed = None
                replies.last = b""
                replies.batch += 1
                replies.queue.append(owed.QUERY)
                return data
            end = data.index(0, 6)
            statement = self.statements.get(data[6:end])
            if statement is not None and not statement.traces and replies.prepared.usable(statement, replies.batch):
                name = statement.name
                if len(name) == end - 6:
                    replies.last = data
                    replies.batch += 1
                    replies.queue.append(owed.BATCH)
                    self.stats.bind_count += 1
                    return data[:6] + name + data[end:]
            elif statement is None and not self.tracked:
                replies.last = b""
                replies.batch += 1
                replies.queue.append(owed.BATCH)
                return data
        return self._plan(data, replies, shape)

    def _plan(self, data: bytes, replies: Replies, shape: int = OTHER) -> bytes:
        self._begin(replies)
        batch, begins = replies.batch, not self.open and not replies.skipping and self.tracked
        # What the backend skips changes nothing, here either.
        pos, size = batch_end(data) if replies.skipping else 0, len(data)
        while pos < size and not self.terminated:
            kind, length = HEAD(data, pos)
            end = pos + length + 1
            if end > size:
                self.unfinished = -len(self._entries)
            if kind != client.COPY_DATA or not replies.copying:
                try:
                    _HANDLERS[kind](self, data, pos, end, replies)
                except (ProtocolViolation, LookupError) as error:
                    reason = str(error) if isinstance(error, ProtocolViolation) else f"invalid message {chr(kind)!r}"
                    raise BrokenRequest(reason, self._end(data, pos, replies)) from error
            pos = end
        if pos > size:
            self.unfinished += len(self._entries)
        whole = begins and not self.open and replies.batch - batch == 1 and size <= _REPEATABLE
        repeatable = whole and (shape == EXECUTION or self._entries[-1] is not owed.BATCH)
        self._remember(data if repeatable else b"", replies)
        return self._end(data, self._start if self.terminated else size, replies)

    def _remember(self, data: bytes, replies: Replies) -> None:
        replies.last = data
        if data:
            given = next((at for at, entry in enumerate(self._entries) if not entry.given), 0)
            replies.left = len(self._entries) - given

    def may_repeat(self, head: Owed, request: bytes) -> bool:
        """As an `Asker` has it: where the request itself tells of the columns, or none has."""
        if head is owed.BATCH:
            return describes(request) or request[6 : request.index(0, 6)] not in self._described
        # Of several commands, some may have been answered.
        return head is owed.DESCRIBE or ((head.ready or head.simple) and request.find(59, 5, -2) < 0)

    def again(self, replies: Replies) -> bytes:
        """The last request, once more -> the bytes for the backend. What it parses has been answered."""
        data, pos = replies.last, 0
        while data[pos] == client.PARSE:
            pos += HEAD(data, pos)[1] + 1
        out = self._plan(data[pos:], replies)
        for at, entry in enumerate(replies.queue):
            if entry is owed.DESCRIBE and data[pos] == client.DESCRIBE:
                # ParameterDescription came before the error.
                replies.queue[at] = owed.DESCRIBE_AGAIN
                break
        replies.last = b""
        self.unpinned = False
        return out

    def _begin(self, replies: Replies) -> None:
        replies.asker = self
        queue = replies.queue
        if not queue:
            self._lost.clear()
        self.unpinned = False
        self._entries = []
        self._begun = self._start = 0
        self._tail = b""
        self._plain = not self.open
        # Whatever is under way may begin a transaction, but for our own setting of parameters.
        alone = not queue or (len(queue) == 1 and isinstance(queue[0], owed.Applying))
        self._behind = not alone
        self._only_prepares = alone and not self.open and replies.status == _IDLE and not self.keeps

    def _end(self, data: bytes, upto: int, replies: Replies) -> bytes:
        replies.extend(self._entries)
        self._cut(data, upto, b"")
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    # -- one batch after another ---------------------------------------------------------------------------------------

    def _finish(self, replies: Replies, end: Owed) -> None:
        """The batch ends here: as one entry if all of it is here and the session gets every answer as it is."""
        if end is owed.SYNC and self._plain and len(self._entries) > self._begun:
            del self._entries[self._begun :]
            end = owed.BATCH
        self._entries.append(end)
        self._begun = len(self._entries)
        replies.batch += 1
        self.open = False
        self._plain = True
        if self._unlikely:
            self.batch_ends()

    # -- one handler per message type; ``end`` may be beyond the end of what there is of it ----------------------------

    def _parse(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        name, body_at = text_within(data, pos + 5, end)
        if name is None or (name and not self.tracked):
            if name is None or not self._leaves_by_any_name(data, pos, body_at, end, replies):
                self._owe(owed.PARSE)
            return
        if end > len(data):
            # It is unnamed then (see Inbound), and not kept; so the backend is, until the client has used it.
            self._only_prepares = False
            unkept = Unkept()
            unkept.traces = self._read(data, body_at, end - 1).traces or None
            self._name_unnamed(unkept, unkept, replies)
            return
        body = data[body_at:end]
        named = self._statement(name, body, data, body_at, end)
        if self._refuse_parse(name, named.traces, data, pos, end, replies):
            return
        statement = self._resolve(named, data, pos, replies) if isinstance(named, Template) else named
        if not name:
            self._name_unnamed(named, statement, replies)
            if statement is not named:
                self._replace(data, pos, end, statement.parse)
            return
        self.stats.client_parse_count += 1
        self._described.discard(name)
        before = self.name(name, named)
        if before is not None:
            self._probe(before, body, data, pos, replies)
        if replies.prepared.sure(statement, replies.batch):
            self._plain = False
            asked = b""
            if replies.status == _FAILED or self._behind or self._begun:
                # In a failed transaction only what ends it can be parsed; and what is ahead in the pipeline may fail.
                replies.unnamed = None
                self._owe(owed.HIDDEN_PARSE)
                asked = Statement(b"", body).parse
            self._owe(owed.parsed(name, before, named))
            self._replace(data, pos, end, asked)
        else:
            self._prepare(statement, name, data, pos, replies, before).after = named
            self._replace(data, pos, end, statement.parse)

    def _bind(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = False
        _, name_at = text_within(data, pos + 5, end)
        name, rest_at = text_within(data, name_at, end) if name_at else (None, 0)
        if name is None and end > len(data):
            raise ProtocolViolation("the names in a Bind message are too long")
        statement = self._known(name, data, pos, replies)
        if name is not None:
            if statement is not None:
                if name:
                    self.stats.bind_count += 1
                if traces := self._leaves(statement):
                    self._touch(traces.resolved(bound_values(data, rest_at, end)) if traces.bound else traces)
                ours = self._ensure(statement, data, pos, replies).name
                self._bound(data[pos + 5 : name_at - 1], statement)
            else:
                ours = self._foreign(name)
            if ours != name:
                length = HEAD(data, pos)[1] + len(ours) - len(name)
                head = b"B" + length.to_bytes(4, "big") + data[pos + 5 : name_at] + ours
                self._replace(data, pos, rest_at - 1, head)
        self._owe(owed.BIND)

    def _describe(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        name = statement_name(data, pos, end)
        if name is None:
            self._only_prepares = False
        statement = self._known(name, data, pos, replies)
        if name is not None:
            if statement is not None:
                self._described.add(name)
                if len(self._described) > 2 * len(self.statements) + 16:
                    self._described &= self.statements.keys()
            ours = self._foreign(name) if statement is None else self._ensure(statement, data, pos, replies).name
            if ours != name:
                self._replace(data, pos, end, client.describe_statement(ours))
        self._owe(owed.DESCRIBE)

    def _close(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        name = statement_name(data, pos, end)
        if name == b"":
            before, self.unnamed, replies.unnamed = self.unnamed, None, None
            self._plain = False
            self._owe(owed.Naming("close", b"3", b"", before, None))
            return
        if name is None:
            self._only_prepares = False
        elif (statement := self.statements.pop(name, None)) is not None:
            self._plain = False
            self._lost[statement.name] = name
            self._owe(owed.closed(name, statement))
            self._replace(data, pos, end, b"")
            return
        elif self._foreign(name) != name:
            self._replace(data, pos, end, client.close_statement(foreign(name)))
        self._owe(owed.CLOSE)

    def _execute(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = False
        entry: Owed = owed.EXECUTE
        if self._portals:
            portal, _ = text_within(data, pos + 5, end)
            entry = self._run(portal, data, pos, replies) if portal is not None else entry
        self._owe(entry)

    def _sync(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = False
        if replies.copying:
            # Postgres would ignore it, or not if the COPY has failed by now: like this it is certain.
            self._replace(data, pos, end, b"")
            return
        if self._queried and not self.open:
            # PostgreSQL 18 leaves the transaction of a batch half open where its Sync comes right behind a query, or a
            # function call, in it, and the next query, whoever's it is, fails. A Parse, of nothing, makes it end.
            self._plain = False
            replies.unnamed = None
            self._owe(owed.HIDDEN_PARSE)
            self._cut(data, pos, client.parse(b"", b""))
        self._queried = False
        self._finish(replies, owed.SYNC)

    def _flush(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        if end - pos > HEADER_SIZE:
            # Postgres will say that this is none.
            self._owe(owed.NOTHING)
        elif not self.open:
            # All that was asked before has been flushed by the end of its batch.
            self._replace(data, pos, end, b"")
        elif self._only_prepares and end == len(data):
            self._replace(data, pos, end, _SYNC)
            self._finish(replies, owed.HIDDEN_SYNC)
            self.unpinned = True

    def _query(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        # A simple query ends a batch as Sync does, and drops the unnamed statement; but it is skipped as any other.
        inside = self.open
        reading = self._read(data, pos + 5, end - 1)
        # Of what comes in parts the rest comes as it is.
        refused = end <= len(data) and self._refuses(reading.traces)
        if refused:
            self._replace(data, pos, end, client.query(FAILS))
        else:
            if reading.traces:
                self._touch(reading.traces.unbound)
            if reading.naming and self.tracked:
                self._command(reading.naming, reading.traces, data, pos, end, replies)
        before, self.unnamed, replies.unnamed = self.unnamed, None, None
        self._only_prepares = self._plain = False
        self._queried = self._queried or inside
        if refused:
            self._finish(replies, owed.Refused(b"Z", before if inside else None, refusal(reading.traces.pins)))
            return
        skippable = inside and before is not None
        self._finish(replies, owed.Naming("query", b"Z", b"", before, None) if skippable else owed.QUERY)

    def _function_call(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._only_prepares = self._plain = False
        self._queried = self._queried or self.open
        self._finish(replies, owed.QUERY)

    def _copy_data(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        self._note_copy(owed.COPY_DATA, replies)

    def _copy_end(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        if not replies.copying:
            self._note_copy(owed.COPY_END, replies)
        replies.copying = False

    def _note_copy(self, entry: Owed, replies: Replies) -> None:
        # Something that is under way may turn out to be COPY; otherwise Postgres ignores it.
        self._plain = False
        last = self._entries[-1] if self._entries else replies.queue[-1] if replies.queue else entry
        if last is not entry:
            self._entries.append(entry)

    def _terminate(self, data: bytes, pos: int, end: int, replies: Replies) -> None:
        # Never for the backend: it goes on to the next session. What follows it is for nobody.
        self._only_prepares = False
        self.terminated = True
        self._cut(data, pos, b"")


_HANDLERS = {
    client.PARSE: Requests._parse,
    client.BIND: Requests._bind,
    client.DESCRIBE: Requests._describe,
    client.CLOSE: Requests._close,
    client.EXECUTE: Requests._execute,
    client.SYNC: Requests._sync,
    client.FLUSH: Requests._flush,
    client.QUERY: Requests._query,
    client.FUNCTION_CALL: Requests._function_call,
    client.COPY_DATA: Requests._copy_data,
    client.COPY_DONE: Requests._copy_end,
    client.COPY_FAIL: Requests._copy_end,
    client.TERMINATE: Requests._terminate,
}
