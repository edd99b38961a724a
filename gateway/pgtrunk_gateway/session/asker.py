"""What the reply side of a backend tells the request side of the session that holds it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgtrunk_gateway.session.descriptions import Description
    from pgtrunk_gateway.session.owed import Naming, Owed
    from pgtrunk_gateway.session.statements import Statement

__all__ = ["Asker"]


class Asker(Protocol):
    """Who asked: the request side of the session that holds the backend."""

    open: bool
    """A batch has been sent in part: its Sync is still to come."""

    def undo(self, change: Naming) -> None:
        """The request that made ``change`` was skipped or refused."""

    def redo(self, change: Naming) -> None:
        """``change``, to a name that meant something else, has been made against all odds."""

    def forget_all(self, later: Sequence[Naming]) -> None:
        """DISCARD ALL or DEALLOCATE ALL ran; ``later`` has what was asked after it."""

    def description(self, key: bytes) -> Description:
        """The description with this key."""
        raise NotImplementedError

    def told(self, name: bytes, statement: Statement, description: Description, later: Iterable[Naming]) -> None:
        """The client has been told that ``statement``, which it calls ``name``, is described so; ``later`` has what
        was asked after it."""

    def relied_on(self, request: bytes) -> Iterable[Statement]:
        """The statements that ``request`` may have used; b"": it is not kept."""
        raise NotImplementedError

    def retire(self) -> Iterable[Statement]:
        """The columns of a statement are not what they were when it was prepared -> those to prepare anew in place."""
        raise NotImplementedError

    def may_repeat(self, head: Owed, request: bytes) -> bool:
        """Whether the client need not know that ``request``, which fails at ``head``, has other columns now."""
        raise NotImplementedError

    def in_own_names(self, message: bytes) -> bytes:
        """``message`` with the client's names of statements in place of ours; its length field is not corrected."""
        raise NotImplementedError
