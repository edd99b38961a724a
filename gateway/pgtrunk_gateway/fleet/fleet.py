"""What a gateway has of the fleet that it is a worker of. A gateway by itself has none of this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk_gateway.fleet.board import Field

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.board import Board
    from pgtrunk_gateway.fleet.charter import Charter
    from pgtrunk_gateway.fleet.member import Member

__all__ = ["Fleet"]


@dataclass(slots=True)
class Fleet:
    """The worker's own side."""

    charter: Charter
    member: Member
    board: Board

    @property
    def index(self) -> int:
        """This worker's number."""
        return self.charter.index

    @property
    def leads(self) -> bool:
        """Whether this is the one worker that says what need be said only once."""
        return self.charter.index == 0

    def post(self, field: Field, value: int) -> None:
        """Writes one of this worker's numbers to the board."""
        self.board.write(self.charter.index, field, value)

    def count_sessions(self, sessions: int) -> None:
        """This many are here now; where new connections go depends on it."""
        self.post(Field.SESSIONS, sessions)

    def count_taken(self) -> None:
        """One more connection of those that the supervisor has passed on is among the sessions."""
        self.post(Field.TAKEN, self.board.read(self.charter.index, Field.TAKEN) + 1)
