"""The ticket keys of a fleet, moved on with time: a worker begins with those of now, and the old ones are nowhere."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from pgtrunk_gateway.quic.ticket_keys import PERIOD, TicketKeys

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.charter import TicketSeed

__all__ = ["Ticketing"]

_KEY_OCTETS = 32


class Ticketing:
    """In the supervisor. Workers move theirs on by themselves, by the same rule and the same clock."""

    def __init__(self, seed: TicketSeed | None) -> None:
        """``seed``: what another supervisor had, None: nobody had any."""
        self._keys = (
            TicketKeys.begin(os.urandom(_KEY_OCTETS), time.time()) if seed is None else TicketKeys(seed[1], seed[0])
        )
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seed(self) -> TicketSeed:
        """What a worker, or the next supervisor, begins with now."""
        return self._keys.known(time.time())

    def start(self) -> None:
        """Moves on from now on, whether or not anybody asks."""
        self._keys.at(time.time())
        self._timer = asyncio.get_running_loop().call_later(PERIOD / 4, self.start)

    def close(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
