"""What becomes of the answers owed when COPY FROM STDIN begins: what was sent ahead of that is told apart.

Between :class:`~pgtrunk_gateway.session.refusing.Refusing` and :class:`~pgtrunk_gateway.session.replies.Replies`, whose
rules hold here. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session import owed as entries
from pgtrunk_gateway.session.refusing import Refusing

if TYPE_CHECKING:
    from pgtrunk_gateway.session.statements import Prepared

__all__ = ["COPY_BOTH", "COPY_IN", "Copying"]

COPY_IN: Final = ord("G")
COPY_BOTH: Final = ord("W")


class Copying(Refusing):
    """The queue, and COPY in it."""

    __slots__ = ("copying",)

    def __init__(self, prepared: Prepared, parameters: dict[str, str]) -> None:
        super().__init__(prepared, parameters)
        self.copying = False
        """COPY FROM STDIN runs, and its end has not been sent."""

    def _copy_started(self, kind: int) -> None:
        self.copying = True
        queue = self.queue
        if not queue:
            self._out_of_step()
        if not queue or kind != COPY_IN:
            return
        swallowed = queue[0] is entries.BATCH
        extended = swallowed or not (queue[0].ready or queue[0].simple)
        if swallowed:
            queue[0] = entries.EXECUTE
        # What was sent before the client could know of the COPY: data, its end, and Syncs, which are ignored if they
        # came ahead of the data. If they came after it, the COPY may have failed by then, and they are not.
        data, at = False, 1
        while queue[at - 1].simple:
            at += 1
        while at < len(queue) and self.copying:
            if queue[at] is entries.COPY_DATA:
                data = True
            elif queue[at] is entries.COPY_END:
                self.copying = False
            elif queue[at] is entries.SYNC:
                swallowed = True
                if data:
                    self._out_of_step()
            elif queue[at].given:
                at += 1
                continue
            else:
                break
            del queue[at]
        if swallowed and extended and self.asker is not None:
            self.asker.open = not any(owed.syncs for owed in queue)
