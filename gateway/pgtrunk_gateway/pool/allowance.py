"""What a pool may have of limits that hold for several workers together, as the pool sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.accounts import Member
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import Opened

__all__ = ["Allowance", "Purse"]


class Allowance(Protocol):
    """One pool's places. Who opens a connection has to :meth:`use` one, and has it until Postgres has ended
    its side. ``maintain`` of the pool is called when places have come: those that it does not use then go back."""

    spare: int
    """Places without a connection; only while the pool is being told of them."""
    floor: int
    """How many of the pool's backends are not to be closed for being idle."""
    recalled: bool
    """Whether :meth:`gives_way` is to be asked."""

    @property
    def waits(self) -> bool:
        """Whether it has asked for places for sessions, and looks again by itself what these are: soon, and when some
        have come."""
        ...

    def attach(self, pool: Member) -> None:
        """``pool`` is whose it is."""

    def leave(self, pool: Member) -> None:
        """``pool`` wants nothing any more."""

    def want(self, count: int, *, late: int, short: int, since: float, own: bool) -> None:
        """How many places more it wants now: ``count`` for sessions, ``late`` of them for those who may have some of
        the reserve, the first since ``since``; ``short`` for its minimum. ``own``: so much that idle backends of
        its own are to be closed for it."""

    def use(self) -> None:
        """One of those that are spare is for a connection from now on."""

    def opened(self, backend: Backend, opened: Opened) -> None:
        """The connection is there."""

    def unopened(self) -> None:
        """The connection did not come about."""

    def part(self, backend: Backend) -> None:
        """The connection was closed, or lost."""

    def gives_way(self, oldest: float, born: float) -> bool:
        """Whether a free backend is due to another worker -> then it is to be closed. ``oldest``: since when the
        first session of the pool waits; infinity: nobody does. ``born``: when the backend was opened."""
        ...


class Purse(Protocol):
    """What all pools of a worker have together."""

    def allowance(
        self, pool: tuple[str, str], *, size: int, reserve: int, minimum: int, in_database: int, of_user: int
    ) -> Allowance:
        """What the pool of this database and user has, under these limits of all workers together (0: none) on its
        backends, on all in its database, and on all of its user. The limits are those of now."""
        ...

    def reconfigured(self) -> None:
        """All limits that have changed are known by now."""

    async def close(self) -> None:
        """Leaves nothing behind. All pools are closed."""
