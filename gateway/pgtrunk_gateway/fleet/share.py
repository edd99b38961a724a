"""What one pool of a worker has of the fleet's limits; see :class:`~pgtrunk_gateway.pool.allowance.Allowance`.

What it wants is told to the bank as a state. More is told at once. Less is told a little later, if it is still less: a
queue that is empty for a moment in which a backend is free would else cost two messages for every query.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk_gateway.fleet.account import Level, Limit, Name

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.pool.accounts import Member
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import Opened
    from pgtrunk_gateway.pool.parting import Parting

__all__ = ["Branch", "Share"]

log = logging.getLogger(__name__)

_PRESSING: Final = 0.05
"""Seconds for which sessions have waited, each perhaps only for a moment, before that is worth a connection of another
worker to a pool that has some itself. Moving connections for less would cost more than it gives."""


class Branch(Protocol):
    """The worker's end of the bank."""

    parting: Parting

    def tell(self, kind: str, body: Body) -> None:
        """Says something to the supervisor."""

    def look_soon(self, share: Share) -> None:
        """:meth:`Share.look` of ``share`` is to be called in a moment."""

    def gives_way(self, share: Share, oldest: float, born: float) -> bool:
        """Whether a free backend is what the bank has asked for."""
        ...

    def over(self, share: Share) -> None:
        """It has no pool and no places any more."""


class Share:
    """``limits``: the pool's accounts, its own first. ``seen``: places granted to pools of this name before."""

    def __init__(self, branch: Branch, limits: Sequence[tuple[Name, Limit]], seen: int = 0) -> None:
        self.limits = limits
        self.seen = seen
        """Places granted, in all."""
        self.held = 0
        """Places that are not given back."""
        self.spare = 0
        self.floor = 0
        self.recalled = False
        self.pool: Member | None = None
        self._branch = branch
        self._wanted = Level()
        self._told = Level()
        self._since = 0.0
        """Since when it has wanted something for sessions, whichever these were."""
        self._loop = asyncio.get_running_loop()

    @property
    def name(self) -> Name:
        """Of the pool's own account."""
        return self.limits[0][0]

    @property
    def names(self) -> list[Name]:
        """Of all its accounts."""
        return [name for name, _ in self.limits]

    @property
    def waits(self) -> bool:
        """Whether the bank knows of sessions that wait. Then it is looked again in a moment, and as it grants some."""
        return self._told.count > 0

    def attach(self, pool: Member) -> None:
        self.pool = pool

    def leave(self, pool: Member) -> None:
        if self.pool is pool:
            self.pool = None
            self._wanted = Level()
            self._tell()
            self._done()

    # -- what it wants -------------------------------------------------------------------------------------------------

    def want(self, count: int, *, late: int, short: int, since: float, own: bool) -> None:
        if count and not self._wanted.count:
            self._since = self._loop.time()
        wanted = Level(count=count, late=late, short=short)
        self._wanted = replace(wanted, since=since, own=own) if count else wanted
        told, level = self._told, self._level()
        grows = level.count > told.count or level.late > told.late or level.short > told.short
        if grows or level.pressing > told.pressing or level.own > told.own:
            self._tell()
        elif level != told:
            self._branch.look_soon(self)

    def look(self) -> None:
        """Tells what has changed. Time makes a wait pressing, and who waits may have left without a word."""
        # Who has come since the pool wanted nothing any more, and before that was told, has not been said to anybody.
        if (self._wanted.count or self.waits) and self.pool is not None:
            self.pool.maintain()
        level = self._level()
        # The age of a wait matters to those who are asked to give way to it.
        if (level if level.pressing else replace(level, since=self._told.since)) != self._told:
            self._tell()

    def _level(self) -> Level:
        wanted, pool = self._wanted, self.pool
        if not wanted.count or pool is None:
            return wanted
        waited = self._loop.time() - self._since
        return replace(wanted, pressing=wanted.own or not pool.count or waited >= _PRESSING)

    def _tell(self) -> None:
        level = self._told = self._level()
        limits = [(name, (limit.size, limit.reserve, limit.minimum)) for name, limit in self.limits]
        self._branch.tell("want", {"limits": limits, "level": asdict(level), "seen": self.seen})
        if level.count:
            self._branch.look_soon(self)

    # -- what it has ---------------------------------------------------------------------------------------------------

    def granted(self, count: int, reserve: int) -> None:
        """So many places more, ``reserve`` of them from the reserve. What nobody needs any more goes back."""
        self.seen += count
        self.held += count
        told = self._told
        left = max(0, told.count - count)
        short = told.short - max(0, count - told.count)
        self._told = replace(told, count=left, late=min(told.late, left), short=max(0, short))
        self.spare += count
        if self.pool is not None:
            before = self.spare
            self.pool.maintain()
            if reserve and self.spare < before:
                log.warning("%s.%s: taking connection from reserve_pool", *self.name[1:])
        spare, self.spare = self.spare, 0
        if spare:
            self._back(count=spare)

    def use(self) -> None:
        self.spare -= 1

    def opened(self, backend: Backend, opened: Opened) -> None:
        target = opened.handshake.target
        if backend.key is not None:
            self._branch.tell(
                "opened",
                {
                    "id": backend.id,
                    "pool": self.name[1:],
                    "host": target.host,
                    "port": target.port,
                    "pid": backend.key.pid,
                    "secret": backend.key.secret.hex(),
                },
            )

    def unopened(self) -> None:
        self._branch.parting.unopened(self._back)

    def part(self, backend: Backend) -> None:
        self._branch.parting.part(backend, partial(self._back, backend.id))

    def gives_way(self, oldest: float, born: float) -> bool:
        return self._branch.gives_way(self, oldest, born)

    def _back(self, backend: int | None = None, *, count: int = 1) -> None:
        self.held -= count
        self._branch.tell("back", {"names": self.names, "count": count, "id": backend})
        self._done()

    def _done(self) -> None:
        if self.pool is None and not self.held:
            self._branch.over(self)
