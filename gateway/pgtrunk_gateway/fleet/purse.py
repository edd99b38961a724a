"""A worker's end of the fleet's budgets for connections to Postgres: the shares of its pools, and what the bank asks
back. Its counterpart is :mod:`~pgtrunk_gateway.fleet.teller`, where the messages are listed.

To lend a backend that is there nothing of this is needed. Only who opens a connection has to have a place for it.

Something that the bank asks for is given up at once if it is idle: where the asker has nothing, or as much as two less
than there is here, whatever is; else what has rested for a moment, since it may be the next session's turn. What is not
given up at once is remembered, and given up when it is free (rule 5 of the bank).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.fleet.account import Limit, Name
from pgtrunk_gateway.fleet.dues import POOL
from pgtrunk_gateway.fleet.share import Share
from pgtrunk_gateway.pool.parting import Parting

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.pool.accounts import Member
    from pgtrunk_gateway.pool.connect import SocketTuner

__all__ = ["Purse"]

_LOOK: Final = 0.05
"""Seconds between two looks at what waits, and at what has become idle."""
_RESTED: Final = 0.05
"""Seconds for which a backend has been idle that nobody here is going to need in the next moment."""
_TENURE: Final = 0.2
"""Seconds for which a backend serves sessions here that wait for it before it is given up for others: with fewer places
than workers it would else be opened for a single query each time, and Postgres do little else than log in."""
_NEVER: Final = float("inf")


class Purse:
    """Of one worker; ``bus`` leads to the supervisor."""

    def __init__(self, bus: Bus, *, tune: SocketTuner) -> None:
        self.parting = Parting(tune)
        self.shares: dict[Name, Share] = {}
        """By the names of pools' own accounts."""
        self._bus = bus
        self._seen: dict[Name, int] = {}
        """Of pools that have gone; the bank goes on counting."""
        self._on: dict[Name, dict[Share, None]] = {}
        """The shares of an account."""
        self._asked: dict[int, tuple[Name, float]] = {}
        """What the bank has asked for, and has not got."""
        self._restless: dict[Share, None] = {}
        """Those in which sessions wait, or did a moment ago."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        for kind, handler in (
            ("grant", self._grant),
            ("recall", self._recall),
            ("release", self._release),
            ("keep", self._keep),
        ):
            bus.on(kind, handler)

    def allowance(
        self, pool: tuple[str, str], *, size: int, reserve: int, minimum: int, in_database: int, of_user: int
    ) -> Share:
        """See :class:`~pgtrunk_gateway.pool.allowance.Purse`."""
        database, user = pool
        return self.share(
            [
                ((POOL, database, user), Limit(size, reserve, minimum)),
                (("database", database), Limit(in_database)),
                (("user", user), Limit(of_user)),
            ]
        )

    def share(self, limits: Sequence[tuple[Name, Limit]]) -> Share:
        """What a pool has of these accounts, its own first."""
        name = limits[0][0]
        share = self.shares.get(name)
        if share is None:
            share = self.shares[name] = Share(self, limits, self._seen.pop(name, 0))
            for each in share.names:
                self._on.setdefault(each, {})[share] = None
                share.recalled = share.recalled or any(asked == each for asked, _ in self._asked.values())
        share.limits = limits
        return share

    def reconfigured(self) -> None:
        """The limits of shares have changed, perhaps."""
        limits = {name: limit for share in self.shares.values() for name, limit in share.limits}
        told = [(name, (limit.size, limit.reserve, limit.minimum)) for name, limit in limits.items()]
        self._bus.tell("limits", {"limits": told})

    async def close(self) -> None:
        """The worker ends, and with it all that it holds: nobody needs to be told."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.parting.close()

    # -- for shares ----------------------------------------------------------------------------------------------------

    def tell(self, kind: str, body: Body) -> None:
        self._bus.tell(kind, body)

    def over(self, share: Share) -> None:
        if self.shares.get(share.name) is not share:
            return
        del self.shares[share.name]
        self._seen[share.name] = share.seen
        for name in share.names:
            del self._on[name][share]
            if not self._on[name]:
                del self._on[name]

    def gives_way(self, share: Share, oldest: float, born: float) -> bool:
        rested = oldest == _NEVER or self._loop.time() - born >= _TENURE
        for number, (name, since) in self._asked.items():
            if since < oldest and name in share.names and (rested or since == -_NEVER):
                self._give(number)
                return True
        return False

    # -- what the bank says --------------------------------------------------------------------------------------------

    def _grant(self, body: Body) -> None:
        names, count = [tuple(name) for name in body["names"]], body["count"]
        share = self.shares.get(names[0])
        if share is not None:
            share.granted(count, body["reserve"])
        else:
            self._seen[names[0]] = self._seen.get(names[0], 0) + count
            self._bus.tell("back", {"names": names, "count": count})

    def _recall(self, body: Body) -> None:
        number, name = body["number"], tuple(body["name"])
        if body["again"] and number not in self._asked:
            # Given up since that was said.
            return
        self._asked[number] = name, body["since"]
        if self._look_for(number) or body["again"]:
            return
        self._bus.tell("closing", {"number": number, "closing": False})
        self._mark(name)
        self.look_soon()

    def _release(self, body: Body) -> None:
        asked = self._asked.pop(body["number"], None)
        if asked is not None:
            self._mark(asked[0])

    def _keep(self, body: Body) -> None:
        share = self.shares.get(tuple(body["name"]))
        if share is not None:
            share.floor = body["count"]
            if share.pool is not None:
                # Which of its idle backends are closed, and when, is another question now.
                share.pool.maintain()

    def _give(self, number: int) -> None:
        """What was asked for is found. The bank hears of that before the place comes back."""
        name, _ = self._asked.pop(number)
        self._bus.tell("closing", {"number": number, "closing": True})
        self._mark(name)

    def _mark(self, name: Name) -> None:
        for share in self._on.get(name, ()):
            recalled = any(asked in share.names for asked, _ in self._asked.values())
            if recalled != share.recalled:
                share.recalled = recalled
                if share.pool is not None:
                    share.pool.contend()

    # -- what is idle --------------------------------------------------------------------------------------------------

    def look_soon(self, share: Share | None = None) -> None:
        if share is not None:
            self._restless[share] = None
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        restless, self._restless = self._restless, {}
        for share in restless:
            share.look()
            if share.waits:
                self._restless[share] = None
        for number in list(self._asked):
            if number in self._asked:
                self._look_for(number)
        if self._asked or self._restless:
            self.look_soon()

    def _look_for(self, number: int) -> bool:
        """Closes something idle for it -> whether there is something."""
        name, since = self._asked[number]
        latest = self._loop.time() - _RESTED if since == _NEVER else _NEVER
        idle: list[tuple[float, int, Member]] = []
        for share in self._on.get(name, ()):
            if share.pool is not None:
                idle += [(each.since, each.id, share.pool) for each in share.pool.idlers()[:1] if each.since <= latest]
        if not idle:
            return False
        _, backend, pool = min(idle, key=lambda each: each[:2])
        self._give(number)
        pool.evict(backend)
        return True
