"""The requests that are on their way to one peer, and those that wait until there are fewer."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Lane"]


@dataclass(slots=True)
class Lane:
    """``size`` at a time (pool_size of the peer; 0: no limit), in the order in which they came."""

    size: int
    connecting: int = 0
    """Connections to it that are being opened,"""
    told: int = 0
    """and those by which it has been told of a request, and on which it has not hung up."""
    _turns: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._turns)

    async def enter(self) -> None:
        """Returns when there is room for one more connection, which then is ``connecting``."""
        if not self._turns and not self._is_full:
            self.connecting += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was its turn in that very moment.
                self.connecting -= 1
            elif turn in self._turns:
                self._turns.remove(turn)
            self.admit()
            raise

    def tell(self) -> None:
        """The connection of one that has entered is there, and the request has been written to it."""
        self.connecting -= 1
        self.told += 1

    def leave(self, *, told: bool) -> None:
        """One that has entered has ended; ``told``: it had come to :meth:`tell`."""
        if told:
            self.told -= 1
        else:
            self.connecting -= 1
        self.admit()

    def admit(self) -> None:
        """Those may go that there is room for, maybe since ``size`` is another one now."""
        while self._turns and not self._is_full:
            turn = self._turns.popleft()
            if not turn.done():
                # Counted for it, or one that comes before it runs would find room, too.
                self.connecting += 1
                turn.set_result(None)

    @property
    def _is_full(self) -> bool:
        return 0 < self.size <= self.connecting + self.told
