"""Connections that live long get tickets anew, so that what their clients have is good when they end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.quic.server_tls import ServerContext
from pgtrunk_gateway.quic.tickets import LIFETIME

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from pgtrunk.quic.driver import ConnectionDriver
    from pgtrunk_gateway.quic.server_tls import HandshakePolicy

__all__ = ["TicketRenewals"]

INTERVAL: Final = 5.0
"""Seconds between two looks."""
MOST: Final = 20
"""Tickets in one look: each costs a tenth of a millisecond, in which nobody is served."""


class TicketRenewals:
    """Of one listener. Runs from the start, until it is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        drivers: Callable[[], Iterable[ConnectionDriver]],
        policy: Callable[[], HandshakePolicy],
    ) -> None:
        self._loop = loop
        self._drivers = drivers
        self._policy = policy
        self._timer = loop.call_later(INTERVAL, self._look)

    def close(self) -> None:
        """No more."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(INTERVAL, self._look)
        self.renew()

    def renew(self) -> None:
        """Sends a ticket to those whose last one has lived for half of its time, as far as they fit into one look."""
        policy, sent = self._policy(), 0
        now = policy.clock()
        for driver in self._drivers():
            context = driver.quic.tls
            if not isinstance(context, ServerContext) or context.ticket_at is None:
                continue
            if now >= context.ticket_at + LIFETIME / 2:
                driver.quic.send_ticket(partial(context.renew_ticket, policy=policy))
                sent += 1
                if sent == MOST:
                    return
