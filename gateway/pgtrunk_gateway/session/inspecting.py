"""Nobody gets rows by columns that he was not told: it is seen what a backend makes of a statement before it is bound.

Between :class:`~pgtrunk_gateway.session.commanding.Commanding` and :class:`~pgtrunk_gateway.session.messages.Messages`.
A client that was told the columns of a statement may bind it without asking again, on a backend that parses it only
now, after a migration. Postgres refuses to give other columns than once, but knows only of this backend. So:

- Where it is not known that this backend describes the statement as the client was told, it is parsed and described
  ahead of its first Bind here. What comes from that Bind on is held until the answer is there: a statement that changes
  something must not have run when it is refused.
- That takes a Flush, not a Sync, so that it can be done anywhere in a batch. What is ahead of it is answered with it;
  so what will be held is collected first, until the client itself asks for answers (:func:`asks_for_answers`).
- If it is described otherwise, the Bind fails as it would in Postgres: something that does is sent ahead of it. So do
  all to come by that name, until the client parses it anew, or has it described anew.
- Who was not told, or is told again with the rows by a Describe of the portal, does not wait.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import HEAD, HEADER_SIZE, encode
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.commanding import Commanding
from pgtrunk_gateway.session.skipping import asks_for_answers
from pgtrunk_gateway.session.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.session.owed import Owed
    from pgtrunk_gateway.session.replies import Replies
    from pgtrunk_gateway.session.sql.traces import Traces
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["CHANGED", "Inspecting", "Postponed"]

_COLLECTED: Final = 64 << 10
"""Octets of what is to be held that are collected."""
_FAILS: Final = b"pgtrunk refuses what follows"
"""What is sent ahead of it: Postgres reads no further than the first word."""
_ROUTINE: Final = b"RRevalidateCachedQuery\0"
"""By this drivers know the error, since its SQLSTATE is that of much else and its words may be translated."""


def _changed() -> bytes:
    error = server.error(
        "0A000",
        "cached plan must not change result type",
        severity="ERROR",
        detail="The columns or parameters of this statement are not those that the client was told.",
        hint="Prepare it again, or have it described again.",
    )
    return encode(b"E", error[HEADER_SIZE:-1] + _ROUTINE + b"\0")


CHANGED: Final = _changed()
"""What the client gets for such a Bind."""


class Postponed(Exception):
    """The message is not sent yet. ``inspects``: something was sent ahead of it that has to be answered first."""

    def __init__(self, *, inspects: bool) -> None:
        super().__init__()
        self.inspects = inspects


class Inspecting(Commanding):
    """The inspections of one session."""

    __slots__ = ("_inspected", "_looks", "_postpone", "_refused", "_telling")

    def __init__(self, catalogue: Catalogue, *, tracked: bool, stir: Callable[[Traces], None] | None = None) -> None:
        super().__init__(catalogue, tracked=tracked, stir=stir)
        self._telling: set[bytes] = set()
        """The client's names of statements that are described in the batch that is being sent."""
        self._inspected: Statement | None = None
        """What was looked at for the Bind that comes next."""
        self._refused = False
        """A Bind was, in the batch that is being sent: what comes behind it is skipped."""
        self._looks = False
        """There is any of these three."""
        self._postpone: Callable[[bytes, bool], None] | None = None
        """Told of what is not sent yet, and whether something was sent ahead that has to be answered first."""

    def _look(self, name: bytes, statement: Statement, data: bytes, pos: int, end: int, replies: Replies) -> None:
        """Sees to it that the Bind at ``pos`` gives what clients were told of ``statement``, or fails.

        Raises :class:`Postponed`.
        """
        seen, inspected = replies.seen(statement), self._inspected
        self._inspected = None
        if type(statement) is not Statement or seen is statement.told or name in self._telling or self._refused:
            return
        if not self._is_told(name, statement) or _is_described(data, pos, end):
            if name and seen is None:
                # To know it the next time.
                self._inspect(statement, data, pos, replies)
        elif inspected is statement:
            self._refuse_bind(name, statement, data, pos, replies)
        elif self._postpone is not None:
            if len(data) - pos < _COLLECTED and not asks_for_answers(data, pos):
                raise Postponed(inspects=False)
            self._inspect(statement, data, pos, replies)
            self._cut(data, pos, client.FLUSH_MESSAGE)
            self._inspected = statement
            self._looks = True
            raise Postponed(inspects=True)

    def _inspect(self, statement: Statement, data: bytes, pos: int, replies: Replies) -> None:
        """Has the backend say what it makes of ``statement`` now, ahead of the message at ``pos``."""
        if not statement.name:
            replies.unnamed = None
        elif not replies.prepared.is_new(statement, replies.batch):
            # What it has may have been parsed long ago.
            replies.prepared.suspect(statement)
        self._ensure(statement, data, pos, replies)
        self._plain = False
        self._owe(owed.Describing(b"", statement, replies.batch, hidden=True))
        self._cut(data, pos, client.describe_statement(statement.name))

    def _refuse_bind(self, name: bytes, statement: Statement, data: bytes, pos: int, replies: Replies) -> None:
        self._refused = self._looks = True
        self.catalogue.retire(len(name), statement)
        replies.unnamed = None
        self._plain = False
        self._owe(owed.Refused(b"1", None, CHANGED))
        # The Bind itself may be there in part only. It is skipped.
        self._cut(data, pos, client.parse(b"", _FAILS))

    def batch_ends(self) -> None:
        super().batch_ends()
        self._inspected = None
        self._refused = self._looks = False
        self._telling.clear()

    def fail_on(self, replies: Replies) -> bytes:
        """The batch has failed, and it was the gateway that ended it -> what makes the backend skip all that comes, up
        to the client's own Sync."""
        self.open = True
        replies.unnamed = None
        replies.extend([owed.Refused(b"1", None, b"")])
        return client.parse(b"", _FAILS)

    def _tell(self, name: bytes, statement: Statement, replies: Replies) -> Owed:
        """``statement`` is going to be described to the client, which calls it ``name`` -> what is owed for that."""
        if type(statement) is not Statement:
            # Nobody else has it, or nobody knows what it will be by then.
            self.described.add(name)
            return owed.DESCRIBE
        if name and statement.told is not None and self._is_outdated(statement, replies):
            replies.prepared.suspect(statement)
        if len(self.described) > 2 * len(self.statements) + 16:
            self.described &= self.statements.keys()
        self._plain = False
        self._telling.add(name)
        self._looks = True
        return owed.Describing(name, statement, replies.batch)

    def _is_outdated(self, statement: Statement, replies: Replies) -> bool:
        """Whether a client that parses ``statement``, or has it described, has to wait for a Parse of it, though the
        backend has it: what that made of it then may not be what it would make of it now."""
        prepared = replies.prepared
        if prepared.is_new(statement, replies.batch):
            return False
        return prepared.is_old(statement, self.catalogue.moves) or prepared.seen(statement) is not statement.told


def _is_described(data: bytes, pos: int, end: int) -> bool:
    """Whether the Bind at ``pos`` has a Describe of its portal behind it."""
    if end + HEADER_SIZE > len(data):
        return False
    kind, length = HEAD(data, end)
    portal = data[pos + HEADER_SIZE : data.index(0, pos + HEADER_SIZE) + 1]
    return kind == client.DESCRIBE and data[end + HEADER_SIZE : end + length + 1] == b"P" + portal
