"""The connections of a trunk by number, and which of them count. Pure."""

from __future__ import annotations

from pgtrunk.link import Link

__all__ = ["Links"]


class Links(dict[int, Link]):
    """All of them, in the order in which they were dialled."""

    @property
    def usable(self) -> list[Link]:
        """Those that count among ``connections``: neither to be left nor suspect. Some may still be connecting."""
        return [link for link in self.values() if not link.is_avoided]

    @property
    def ready(self) -> list[Link]:
        """Those that sessions may be put on, as far as there is room."""
        return [link for link in self.values() if link.peer is not None and not (link.is_leaving or link.is_suspect)]

    @property
    def suspects(self) -> list[Link]:
        """Those that owe an answer, and that are not to be left in any case."""
        return [link for link in self.values() if link.is_suspect and not link.is_leaving]

    @property
    def leaving(self) -> list[Link]:
        return [link for link in self.values() if link.is_leaving]

    @property
    def connecting(self) -> int:
        """How many of them have their handshake ahead."""
        return sum(link.peer is None for link in self.values())

    @property
    def sessions(self) -> int:
        return sum(link.sessions for link in self.values())

    @property
    def have_sessions_to_move(self) -> bool:
        """Whether there are sessions that are to move, and nowhere to move to, not even soon."""
        return all(link.is_avoided for link in self.values()) and any(link.sessions for link in self.values())

    def first_with_room(self) -> Link | None:
        """The first with room, so that slots freed on earlier links are used again and flushes stay full."""
        return next((link for link in self.values() if link.room), None)
