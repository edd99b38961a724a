"""Clients that are asked to move before the gateway ends: by GOAWAY, on QUIC connections that speak "pgtrunk/1".

Whoever is asked has a moment in which the gateway goes on as if nothing were: sessions that were on their way when it
asked are let in, and idle ones are not ended, since the client's next query may be on its way too. By its end clients
have opened another connection and taken there what is idle; who has not is like all others from then on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.fronts.quic import QuicFront

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgtrunk.quic.driver import ConnectionDriver
    from pgtrunk_gateway.fronts.front import Front

__all__ = ["Moving"]

MOMENT: Final = 2.0
"""Seconds: half of one in which clients wait at random, a handshake, and packets that are lost."""

_LOOK: Final = 0.05


class Moving:
    """The moment, and who has it."""

    def __init__(self, fronts: Callable[[], Sequence[Front]]) -> None:
        self._fronts = fronts
        self._until = 0.0

    def ask(self, timeout: float) -> None:
        """Asks all of them to be gone within ``timeout`` seconds; 0: at their leisure. The moment begins, again if need
        be."""
        now = asyncio.get_running_loop().time()
        self._until = now + min(timeout or MOMENT, MOMENT)
        for front in self._quic():
            front.send_away(now + timeout if timeout else None)

    def has_moment(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the session of this transport is to be left alone."""
        driver: ConnectionDriver | None = transport.get_extra_info("quic_connection")
        return driver is not None and driver.control.speaks and asyncio.get_running_loop().time() < self._until

    async def over(self) -> None:
        """Returns at the end of the moment, or as soon as nobody needs it."""
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() >= self._until or not self._are_here():
                return
            await asyncio.sleep(_LOOK)

    def _are_here(self) -> bool:
        return any(driver.control.speaks and driver.streams for front in self._quic() for driver in front.drivers)

    def _quic(self) -> list[QuicFront]:
        return [front for front in self._fronts() if isinstance(front, QuicFront)]
