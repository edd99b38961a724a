"""What becomes of the answers owed when one of them is an error: what is skipped is dropped, and undone.

The lower half of :class:`~pgtrunk_gateway.session.replies.Replies`, whose rules hold here. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session import owed as entries
from pgtrunk_gateway.session.noting import Noting
from pgtrunk_gateway.session.owed import Again, Closing, Describing, Naming, Owed, Parsing, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.session.asker import Asker
    from pgtrunk_gateway.session.statements import Prepared

__all__ = ["IDLE", "Refusing"]

IDLE: Final = ord("I")
_READIES: Final = b"Z\0\0\0\x05"
"""ReadyForQuery, but for its status."""


class Refusing(Noting):
    """The queue, and what an error does to it."""

    __slots__ = ("asker", "batch", "last", "left", "passed", "prepared", "queue", "skipping", "status", "unbegun")

    def __init__(self, prepared: Prepared, parameters: dict[str, str]) -> None:
        super().__init__(parameters)
        self.queue: deque[Owed] = deque()
        self.prepared = prepared
        self.asker: Asker | None = None
        """Whose requests are in the queue."""
        self.skipping = False
        """The backend skips all that is sent, up to the Sync that has not been sent yet."""
        self.status = IDLE
        """Of the last ReadyForQuery: I, T or E."""
        self.batch = 1
        """Number of the batch that is being sent; see :class:`~pgtrunk_gateway.session.statements.Prepared`."""
        self.last = b""
        """The last request as the client sent it, where it may be asked again, as a whole."""
        self.left = 0
        """How many entries it left, but for those at once given; where it is no BATCH."""
        self.passed = 0
        """The batch that was the last to be sent when a chunk came to which more will come."""
        self.unbegun: bytes | None = None
        """Body of the ErrorResponse to a BEGIN of which the client was told that it had succeeded."""

    # -- a stale plan --------------------------------------------------------------------------------------------------

    def _is_first(self, head: Owed, data: bytes, start: int) -> bool:
        """Whether the message at ``start`` is the first that the client gets for the last request.

        A stale plan may be one in a function, which shows when rows have been sent.
        """
        if head is entries.DESCRIBE or isinstance(head, Describing):
            return True
        return self.passed != self.batch and (not start or data.endswith(_READIES, 0, start - 1))

    def _stale(self, head: Owed, error: bytes, is_first: bool) -> bool:
        """The columns of a statement are not what they were -> whether it is asked again, with a new plan.

        Which statement it is does not matter: all of the session's are parsed anew when they are used.
        """
        asker = self.asker
        assert asker is not None
        asker.retire()
        for statement in asker.relied_on(b""):
            # What a name means now may be there, and stale as well, if another session had an error before this one.
            self.prepared.suspect(statement)
        queue = self.queue
        untouched = len(queue) == (1 if head is entries.BATCH else self.left)
        if not (self.last and untouched and is_first and self.status == IDLE and asker.may_repeat(head, self.last)):
            return False
        if not head.ready:
            self._refuse(lambda owed: owed.ready, taken=False)
        if len(queue) == 1:
            queue[0] = Again(asker.in_own_names(error))
        return len(queue) == 1

    # -- what is skipped -----------------------------------------------------------------------------------------------

    def _skip_to_sync(self, *, taken: bool) -> None:
        self._refuse(lambda owed: owed.syncs, taken=taken)
        self.skipping = not self.queue
        if self.skipping and self.asker is not None:
            # It may have taken a query for the end of the batch, but that is skipped too.
            self.asker.open = True
        if not self.skipping and self.queue[0] is entries.AHEAD:
            self._tell_no_more()

    def _never_begun(self, error: bytes) -> None:
        """BEGIN has failed, at the head, or something of what it was sent with."""
        # Somebody on the server has cancelled it. What came with it is skipped, up to its Sync; but what was sent
        # behind that runs outside of the transaction that it was meant for. The client, which is told of BEGIN, shall
        # not take the answers for what they are not.
        self.unbegun = self.unbegun or error
        if not self.queue[0].ready:
            self._skip_to_sync(taken=False)
        self._out_of_step()
        behind = [owed for owed in self.queue if not (owed.given or owed.simple)]
        self.queue.clear()
        for owed in behind:
            self.queue.append(Owed("muted", owed.ends, hidden=True, syncs=owed.syncs))

    def _tell_no_more(self) -> None:
        # The query that needed it will fail too, but the client has had its error.
        ahead = self.queue.popleft()
        dropped = []
        while self.queue and not self.queue[0].ready:
            dropped.append(self.queue.popleft())
        self._drop(dropped)
        if self.queue:
            self.queue[0] = entries.TOLD
        self.queue.appendleft(ahead)

    def _refuse(self, ends: Callable[[Owed], bool], *, taken: bool) -> None:
        """The head has failed; what comes behind it, up to what ``ends`` this, is skipped."""
        queue = self.queue
        refused = queue.popleft()
        dropped = []
        while queue and not ends(queue[0]):
            dropped.append(queue.popleft())
        self._drop(dropped)
        if isinstance(refused, Parsing):
            # Where a client has made one of our names its own by SQL, a Close goes ahead the next time.
            forget = self.prepared.doubt if taken else self.prepared.forget
            forget(refused.statement, refused.batch)
        if isinstance(refused, Naming):
            if refused.after is not None or isinstance(refused, Refused):
                # The backend did try: of an unnamed statement it does not have the one before any more either.
                refused.before = None
            self._undo(refused)

    def _drop(self, skipped: list[Owed]) -> None:
        for owed in skipped:
            if isinstance(owed, Closing):
                self.prepared.kept(owed.statement, owed.batch)
            elif isinstance(owed, Parsing):
                forget = self.prepared.doubt if owed.unsure else self.prepared.forget
                forget(owed.statement, owed.batch)
        # From the last to the first: each knows what was before it.
        for owed in reversed(skipped):
            if isinstance(owed, Naming):
                self._undo(owed)

    def _undo(self, change: Naming) -> None:
        if self.asker is None or change.hidden:
            return
        self.asker.undo(change)
        for later in self.queue:
            if isinstance(later, Naming) and later.name == change.name and later.before is change.after:
                later.before = change.before
