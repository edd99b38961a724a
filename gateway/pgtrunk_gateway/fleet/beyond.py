"""Cancel requests between a fleet and those that it has followed, or that have followed it, in online restarts.

A key that no worker of the fleet knows may be one of a session that stays where it began, in a fleet that is leaving;
and the other way, a client may send its request over a connection that is older than its session. So the supervisors
ask each other, in one direction at a time: from the newest to the oldest, or back. Nobody is asked twice.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.errors import GatewayError, WorkerLost
from pgtrunk_gateway.fleet.member import HEARD

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["ASKED_BEYOND", "Beyond", "Way"]

ASKED_BEYOND: Final = frozenset({"cancel key", "cancel"})
"""What is asked of other fleets: see :mod:`~pgtrunk_gateway.fleet.cancels`."""
_KIND: Final = "beyond"
_KNOWS_WITHIN: Final = 4.0
"""Seconds; less than who asks has patience for."""
_MARGIN: Final = 1.0


class Way(enum.IntEnum):
    """To whom; and the number by which workers know them, as if it were a worker's."""

    OLDER = -1
    NEWER = -2


class Beyond:
    """Of one supervisor; ``workers`` are its own."""

    def __init__(self, workers: Callable[[], Mapping[int, Bus]]) -> None:
        self._workers = workers
        self._neighbours: dict[Way, Bus] = {}

    def join(self, way: Way, bus: Bus) -> None:
        """There is a fleet that way, at the other end of ``bus``."""
        self._neighbours[way] = bus
        back = Way.NEWER if way is Way.OLDER else Way.OLDER
        # What comes from there goes on in the same direction.
        bus.on(_KIND, lambda body: self._asked(back, body))

    def leave(self, way: Way) -> None:
        """There is none any more."""
        self._neighbours.pop(way, None)

    @property
    def ways(self) -> list[int]:
        """Those that somebody is at."""
        return [int(way) for way, bus in self._neighbours.items() if bus.is_open]

    async def ask(self, way: int, kind: str, body: Body, *, timeout: float | None) -> Body:
        """Asks the fleets that way. Raises a :class:`GatewayError`."""
        bus = self._neighbours.get(Way(way))
        if bus is None:
            raise WorkerLost("the fleet that had that session has gone")
        patience = _KNOWS_WITHIN if timeout is None else timeout
        return await bus.ask(_KIND, {"kind": kind, "body": body, "timeout": patience}, timeout=patience + _MARGIN)

    async def _asked(self, way: Way, asked: Body) -> Body:
        kind, body, timeout = asked["kind"], asked["body"], asked["timeout"]
        owner = await self._owner(body, way, timeout)
        if kind == "cancel key":
            return {"here": owner is not None}
        if owner is None:
            raise WorkerLost("nobody knows that key any more")
        if owner < 0:
            return await self.ask(owner, kind, body, timeout=timeout)
        return await self._tell(owner, kind, body, timeout)

    async def _owner(self, body: Body, way: Way, timeout: float) -> int | None:
        for index in list(self._workers()):
            try:
                if (await self._tell(index, "cancel key", body, min(timeout, _KNOWS_WITHIN)))["here"]:
                    return index
            except GatewayError:
                continue
        if way in self._neighbours and (await self.ask(way, "cancel key", body, timeout=timeout))["here"]:
            return int(way)
        return None

    async def _tell(self, index: int, kind: str, body: Body, timeout: float) -> Body:
        bus = self._workers().get(index)
        if bus is None:
            raise WorkerLost(f"worker {index} has gone")
        return await bus.ask(HEARD, {"kind": kind, "body": body, "from": -1}, timeout=timeout)
