"""The end of a gateway that another one has followed (online restart): it refuses nobody, and ends with the last."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.fronts.quic import QuicFront

if TYPE_CHECKING:
    from pgtrunk_gateway.gateway import Gateway

__all__ = ["until_left"]

log = logging.getLogger(__name__)

_LOOK: Final = 0.1
"""Seconds between two looks; also before the first one, since a connection may be on its way here still."""


async def until_left(gateway: Gateway) -> bool:
    """Waits for the end of all sessions and QUIC connections, for shutdown_timeout at most (0: no limit) -> whether all
    have ended. A connection without a stream is closed by its client, or ends by silence."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await asyncio.sleep(_LOOK)
        sessions = len(gateway.context.sessions)
        quic = [front for front in gateway.fronts if isinstance(front, QuicFront)]
        connections = sum(front.connections + front.half_open for front in quic)
        if not sessions and not connections:
            return True
        timeout = gateway.config.shutdown_timeout
        if timeout and loop.time() - began > timeout:
            log.warning(
                "shutdown_timeout = %g s: %d sessions and %d QUIC connections have not left",
                timeout,
                sessions,
                connections,
            )
            return False
