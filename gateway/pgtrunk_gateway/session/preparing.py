"""How a request is rewritten, and what has to go ahead of it so that a backend has the statements that it names.

The lower half of :class:`~pgtrunk_gateway.session.requests.Requests`, which has the messages. What is sent is the
client's own bytes but for what is put in their place, or before them; each request leaves its entry. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.names import Names
from pgtrunk_gateway.session.owed import Parsing
from pgtrunk_gateway.session.sql_statements import MADE, MAKES, Made
from pgtrunk_gateway.session.statements import Statement, Unkept
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from collections.abc import Container

    from pgtrunk_gateway.session.owed import Owed
    from pgtrunk_gateway.session.replies import Replies
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["Preparing"]

_UNKEPT: Final = server.error(
    "26000",
    "the unnamed prepared statement was too long to be kept",
    severity="ERROR",
    detail="The server connection that has it serves another session now, or has had an error since.",
    hint="Send Bind in the same batch as Parse, or in the same transaction.",
)


class Preparing(Names):
    """What is being sent, and the statements in it."""

    __slots__ = ("_entries", "_out", "_plain", "_start", "_used", "open", "stats")

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue)
        self.open = False
        """A batch has been sent in part: its Sync is still to come."""
        self.stats = PoolStats()
        """Of the session's pool, once it has one."""
        self._out: list[bytes] = []
        self._entries: list[Owed] = []
        self._start = 0
        self._plain = True
        self._used: Container[Statement] = ()
        """What the query that is being sent needs: it cannot be closed ahead of it."""

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

    # -- preparing -----------------------------------------------------------------------------------------------------

    def _ensure(self, statement: Statement, data: bytes, pos: int, replies: Replies) -> Statement:
        """Sees to it that the backend has ``statement`` when the message at ``pos`` comes -> what it has for it."""
        if statement.name:
            if not replies.prepared.usable(statement, replies.batch):
                self._inject(statement, data, pos, replies)
        elif replies.unnamed is not statement or (replies.unnamed_batch != replies.batch and replies.queue):
            # The Parse of an earlier batch that has not been answered may fail.
            replies.unnamed, replies.unnamed_batch = statement, replies.batch
            replies.unnamed_seen = None
            self._plain = False
            self._owe(owed.HIDDEN_PARSE if type(statement) is not Unkept else owed.Refused(b"1", None, _UNKEPT))
            self._cut(data, pos, statement.parse)
        return statement

    def _inject(self, statement: Statement, data: bytes, pos: int, replies: Replies) -> None:
        entry = self._prepare(statement, b"", data, pos, replies)
        if isinstance(statement, Made):
            entry.ends = b"C"
            self._entries[-1:] = *MAKES, entry, *MADE
        self._cut(data, pos, statement.parse)

    def _prepare(
        self,
        statement: Statement,
        name: bytes,
        data: bytes,
        pos: int,
        replies: Replies,
        before: Statement | None = None,
    ) -> Parsing:
        """Sends ahead what has to be closed before ``statement`` is parsed -> what that will leave.

        ``name`` is the client's, where the client asked for it, and ``before`` what it meant; b"" where it did not.
        """
        prepared, batch = replies.prepared, replies.batch
        self._plain = False
        self.stats.server_parse_count += 1
        unsure = prepared.unsure(statement, batch)
        if unsure:
            # Whether it is there or not, Close does no harm.
            self._owe(owed.HIDDEN_CLOSE)
            self._cut(data, pos, client.close_statement(statement.name))
        # If it fails, that is no reason for what another name of the client's means to fail with it.
        alone = bool(name) and not any(one is statement and name != other for other, one in self.statements.items())
        prepared.expect(statement, batch, injected=not alone)
        self._make_room(data, pos, replies)
        entry = Parsing(name, before, statement, batch, unsure=unsure)
        self._owe(entry)
        return entry

    def _make_room(self, data: bytes, pos: int, replies: Replies) -> None:
        for oldest in replies.prepared.evict(replies.batch, self._used):
            self._owe(owed.Closing(oldest, replies.batch))
            self._cut(data, pos, client.close_statement(oldest.name))

    def _name_unnamed(self, statement: Statement, actual: Statement, replies: Replies) -> None:
        """The client parses the unnamed ``statement``, which is ``actual`` on the backend."""
        before, self.unnamed = self.unnamed, statement
        replies.unnamed, replies.unnamed_batch = actual, replies.batch
        replies.unnamed_seen = None
        if self.open:
            # What came before it in the batch may fail, and then this does not count.
            self._plain = False
            self._owe(owed.Naming("parse", b"1", b"", before, self.unnamed))
        else:
            self._owe(owed.PARSE)

    def _probe(self, known: Statement, body: bytes, data: bytes, pos: int, replies: Replies) -> None:
        """The client parses a name that it has in use, for ``known``: that will fail, as a rule.

        Postgres looks at the text first; it gets it as the unnamed statement, since under a name it might succeed. Then
        it is asked to parse ``known`` again, and says that it exists. If it does not, because something ahead in the
        pipeline is DEALLOCATE ALL, or failed, the client is right; what was parsed for the asking is closed.
        """
        known = self._ensure(known, data, pos, replies)
        self._plain = False
        replies.unnamed = None
        for entry in (owed.HIDDEN_PARSE, owed.HIDDEN_PARSE, owed.HIDDEN_CLOSE):
            self._owe(entry)
        probe = Statement(b"", body).parse + known.parse + client.close_statement(known.name)
        self._cut(data, pos, probe)

    def _known(self, name: bytes | None, data: bytes, pos: int, replies: Replies) -> Statement | None:
        if name is None:
            return None
        if not name and self.unnamed is None:
            # The backend may have one of somebody else's.
            self._plain = False
            replies.unnamed = None
            self._owe(owed.HIDDEN_CLOSE)
            self._cut(data, pos, client.close_statement(b""))
        return self.statements.get(name) if name else self.unnamed
