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
- What a client was told of a statement holds wherever it is bound (:mod:`~pgtrunk_gateway.session.inspecting`).
- What the gateway does not know is sent as it is: Postgres then gives the very error that it would give without us.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import HEAD
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.inspecting import Postponed
from pgtrunk_gateway.session.messages import HANDLERS, Messages
from pgtrunk_gateway.session.shapes import EXECUTION, OTHER, QUERY, describes
from pgtrunk_gateway.session.skipping import batch_end
from pgtrunk_gateway.session.sql.text import glance, is_ordinary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgtrunk_gateway.session.owed import Owed
    from pgtrunk_gateway.session.replies import Replies
    from pgtrunk_gateway.session.sql.traces import Traces
    from pgtrunk_gateway.session.statements import Catalogue, Statement

__all__ = ["BrokenRequest", "Requests"]

_IDLE: Final = ord("I")
_REPEATABLE: Final = 64 << 10
"""Octets of a request that is kept in case it has to be asked again."""


class BrokenRequest(ProtocolViolation):
    """A message that no client may send. ``before``: the bytes for the backend of what came before it."""

    def __init__(self, message: str, before: bytes) -> None:
        super().__init__(message)
        self.before = before


class Requests(Messages):
    """The request side of one session."""

    __slots__ = ("unfinished",)

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        tracked: bool = True,
        stir: Callable[[Traces], None] | None = None,
        postpone: Callable[[bytes, bool], None] | None = None,
    ) -> None:
        """``tracked``: named statements follow the session; otherwise they are sent as they are.

        ``stir`` is told what a request may leave behind on the backend, before it is sent. ``postpone`` is told what of
        a request cannot be sent yet: it is to be planned again when what was sent ahead of it has been answered, where
        the second argument says so, or else when more of it has come. Without it nothing is postponed.
        """
        super().__init__(catalogue, tracked=tracked, stir=stir)
        self._postpone = postpone
        self.unfinished = 0
        """How many answers are owed for the last message of the last plan, if not all of it was there."""

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
            if statement is not None and not statement.traces and replies.prepared.serves(statement, replies.batch):
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
                    HANDLERS[kind](self, data, pos, end, replies)
                except (ProtocolViolation, LookupError) as error:
                    reason = str(error) if isinstance(error, ProtocolViolation) else f"invalid message {chr(kind)!r}"
                    raise BrokenRequest(reason, self._end(data, pos, replies)) from error
                except Postponed as postponed:
                    return self._end_here(data, pos, replies, inspects=postponed.inspects)
            pos = end
        if pos > size:
            self.unfinished += len(self._entries)
        whole = begins and not self.open and replies.batch - batch == 1 and size <= _REPEATABLE
        repeatable = whole and (shape == EXECUTION or self._entries[-1] is not owed.BATCH)
        self._remember(data if repeatable else b"", replies)
        return self._end(data, self._start if self.terminated else size, replies)

    def _end_here(self, data: bytes, pos: int, replies: Replies, *, inspects: bool) -> bytes:
        """The message at ``pos`` is not sent yet."""
        assert self._postpone is not None
        self.unfinished = 0
        replies.last = b""
        out = self._end(data, pos, replies)
        self._postpone(data[pos:], inspects)
        return out

    def _remember(self, data: bytes, replies: Replies) -> None:
        replies.last = data
        if data:
            given = next((at for at, entry in enumerate(self._entries) if not entry.given), 0)
            replies.left = len(self._entries) - given

    def relied_on(self, request: bytes) -> Iterable[Statement]:
        """As an `Asker` has it; ``request`` is an EXECUTION, or b""."""
        if not request:
            return self.statements.values()
        statement = self.statements.get(request[6 : request.index(0, 6)])
        return () if statement is None else (statement,)

    def may_repeat(self, head: Owed, request: bytes) -> bool:
        """As an `Asker` has it: where the request itself tells of the columns, or none has."""
        if head is owed.BATCH:
            return describes(request) or request[6 : request.index(0, 6)] not in self.described
        # Of several commands, some may have been answered.
        if head is owed.DESCRIBE or isinstance(head, owed.Describing):
            return not head.hidden
        return (head.ready or head.simple) and request.find(59, 5, -2) < 0

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
        # A backend that is kept need not be free sooner. But if others have used it, its plans may be stale, and what
        # is open cannot be asked again.
        ends = self.tracked or not self.keeps
        self._only_prepares = ends and alone and not self.open and replies.status == _IDLE

    def _end(self, data: bytes, upto: int, replies: Replies) -> bytes:
        replies.extend(self._entries)
        self._cut(data, upto, b"")
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)
