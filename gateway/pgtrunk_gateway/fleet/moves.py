"""What one worker sees altered or dropped in a database, the others hear of: see :attr:`Catalogue.moves`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.member import Member
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["SiblingMoves"]

_KIND: Final = "moved"


class SiblingMoves:
    """Of one worker. Whoever parses a text before the word has arrived may get what was meant before, for once."""

    def __init__(self, member: Member, catalogue: Catalogue) -> None:
        self._member = member
        self._catalogue = catalogue
        catalogue.on_moved = self._tell
        member.on(_KIND, self._hear)

    def _tell(self) -> None:
        self._member.tell_others(_KIND)

    def _hear(self, _: Body) -> None:
        self._catalogue.moves += 1
