"""What becomes of each message of a request: what is sent for it, and what answer is owed.

Between :class:`~pgtrunk_gateway.session.inspecting.Inspecting` and
:class:`~pgtrunk_gateway.session.requests.Requests`, which says what is followed here. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.inspecting import Inspecting
from pgtrunk_gateway.session.reading import bound_values, statement_name, text_within
from pgtrunk_gateway.session.sql_statements import Template
from pgtrunk_gateway.session.statements import Statement, Unkept, foreign
from pgtrunk_gateway.session.tracing import FAILS, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.session.owed import Owed
    from pgtrunk_gateway.session.replies import Replies
    from pgtrunk_gateway.session.sql.traces import Traces
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["HANDLERS", "Messages"]

_SYNC: Final = client.SYNC_MESSAGE
_FAILED: Final = ord("E")


class Messages(Inspecting):
    """A handler for each type; the end of the message that it is given may be beyond what there is of it."""

    __slots__ = ("_behind", "_queried", "terminated", "unpinned")

    def __init__(self, catalogue: Catalogue, *, tracked: bool, stir: Callable[[Traces], None] | None = None) -> None:
        super().__init__(catalogue, tracked=tracked, stir=stir)
        self.unpinned = False
        """The last plan put a Sync in the place of the client's Flush."""
        self.terminated = False
        """The client said Terminate."""
        self._behind = False
        """What was sent before has not been answered yet."""
        self._queried = False
        """A query was sent inside a batch whose Sync is still to come."""

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
        if self._unlikely or self._looks:
            self.batch_ends()

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
        before = self.name(name, named)
        if before is not None:
            self._probe(before, body, data, pos, replies)
        else:
            self.described.discard(name)
            if self._is_outdated(statement, replies):
                replies.prepared.suspect(statement)
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
                if statement.told is not None:
                    self._look(name, statement, data, pos, end, replies)
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
        entry = owed.DESCRIBE
        if name is not None:
            if statement is not None:
                entry = self._tell(name, statement, replies)
            ours = self._foreign(name) if statement is None else self._ensure(statement, data, pos, replies).name
            if ours != name:
                self._replace(data, pos, end, client.describe_statement(ours))
        self._owe(entry)

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
            self._owe(owed.closed(name, statement, told=name in self.described))
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


HANDLERS: Final = {
    client.PARSE: Messages._parse,
    client.BIND: Messages._bind,
    client.DESCRIBE: Messages._describe,
    client.CLOSE: Messages._close,
    client.EXECUTE: Messages._execute,
    client.SYNC: Messages._sync,
    client.FLUSH: Messages._flush,
    client.QUERY: Messages._query,
    client.FUNCTION_CALL: Messages._function_call,
    client.COPY_DATA: Messages._copy_data,
    client.COPY_DONE: Messages._copy_end,
    client.COPY_FAIL: Messages._copy_end,
    client.TERMINATE: Messages._terminate,
}
