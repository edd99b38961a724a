"""Who has a line, as the line sees it. Shape only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgtrunk.errors import TrunkError

__all__ = ["Owner"]


class Owner(Protocol):
    """Who has the line's other end. None of these calls comes from within one that the owner makes."""

    def received(self, data: bytes) -> None: ...

    def finished(self) -> None:
        """The gateway says no more, and has said so."""
        ...

    def lost(self, error: TrunkError | None) -> None:
        """The last call. None: it was closed from here."""
        ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...
