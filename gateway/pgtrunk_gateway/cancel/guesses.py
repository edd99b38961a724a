"""Who may still show keys: the limit of wrong ones, kept while it is not known yet which are.

A key that is not known here may be a sibling's, and it takes a moment to ask. Were it counted as wrong only then, a
thousand requests that come at the same moment would be a thousand guesses. So those of an address that are looked at
at the same time are no more than it has guesses left; the next wait until it is known of one of these, and lose nothing
where the keys are right.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgtrunk_gateway.auth import subscriber

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pgtrunk_gateway.auth import LoginLimiter

__all__ = ["Guesses"]


@dataclass(slots=True)
class _Open:
    """The requests of one subscriber of which it is not known whether their key is wrong."""

    count: int = 0
    turns: deque[asyncio.Future[bool]] = field(default_factory=deque)


class Guesses:
    """Those of one gateway process. ``limiter``: what wrong keys are counted by; ``now``: its clock, in seconds.

    Each request that is admitted is settled, once. An ``address`` of None is a unix socket's, where nothing is limited.
    """

    def __init__(self, limiter: LoginLimiter, now: Callable[[], float]) -> None:
        self.limiter = limiter
        self._now = now
        self._open: dict[Hashable, _Open] = {}

    def __len__(self) -> int:
        """Requests that are not settled, or wait for their turn."""
        return sum(each.count + len(each.turns) for each in self._open.values())

    def admit(self, address: str | None) -> bool | None:
        """Whether a request may be looked at; None: that depends on others, see :meth:`turn`."""
        key = subscriber(address)
        if key is None:
            return True
        known = self._open.get(key)
        if not self.limiter.allow(address, self._now(), pending=known.count if known is not None else 0):
            if known is None:
                known = self._open[key] = _Open()
            elif known.turns:
                return None
            known.count += 1
            return True
        return None if known is not None else False

    async def turn(self, address: str | None) -> bool:
        """As :meth:`admit`, of a request that has to wait."""
        known = self._open.get(subscriber(address))
        if known is None:
            # All others have been settled meanwhile.
            return bool(self.admit(address))
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        known.turns.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.settle(address, wrong=False)
            raise

    def settle(self, address: str | None, *, wrong: bool) -> None:
        """Of a request that has been admitted it is known now whether its key was wrong."""
        key = subscriber(address)
        if key is None:
            return
        now, known = self._now(), self._open[key]
        if wrong:
            self.limiter.failed(address, now)
        known.count -= 1
        while known.turns:
            refused = bool(self.limiter.allow(address, now, pending=known.count))
            if refused and known.count:
                return
            turn = known.turns.popleft()
            if not turn.done():
                known.count += not refused
                turn.set_result(not refused)
        if not known.count:
            del self._open[key]
