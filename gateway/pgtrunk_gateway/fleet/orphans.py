"""What a worker that has died has left in Postgres: a sibling cancels it.

Its sockets are closed, but Postgres does not look at them while it is at something; a query that takes an hour would go
on for that hour, and its connection count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.config.entries import Place
from pgtrunk_gateway.errors import GatewayError
from pgtrunk_gateway.inbox import Inbox
from pgtrunk_gateway.pool.connect import SocketTuner, dial
from pgtrunk_gateway.pool.encryption import NoTls, Way, encrypt, ways
from pgtrunk_gateway.pool.parting import HangUp

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Orphans"]

log = logging.getLogger(__name__)


class Orphans:
    """Of others. ``target`` gives what a connection of a database and a user is like now; None: there is no such
    database any more."""

    def __init__(self, bus: Bus, target: Callable[[str, str], Target | None], *, tune: SocketTuner) -> None:
        self._target = target
        self._tune = tune
        bus.on("orphans", self._orphans)

    async def _orphans(self, body: Body) -> Body:
        """Returns when Postgres has been told of all of them, as far as it can be."""
        told = await asyncio.gather(*(self._end(opened, body["timeout"]) for opened in body["opened"]))
        log.info("cancelled what a worker has left in the server: %d of %d connections", sum(told), len(told))
        return {}

    async def _end(self, opened: Body, timeout: float) -> bool:
        database, user = opened["pool"]
        target = self._target(database, user)
        if target is None:
            return False
        target = target.at(Place(opened["host"], opened["port"]))
        request = CancelRequest(opened["pid"], bytes.fromhex(opened["secret"]))
        try:
            async with asyncio.timeout(timeout):
                await self._carry(target, request, ways(target))
        except (GatewayError, OSError, TimeoutError) as error:
            log.warning("%s: pid %d, which a worker has left, is not cancelled: %s", target, request.pid, error)
            return False
        return True

    async def _carry(self, target: Target, request: CancelRequest, order: tuple[Way, ...]) -> None:
        for number, way in enumerate(order, 1):
            try:
                await self._carry_by(target, request, way)
            except NoTls:
                if number == len(order):
                    raise
            else:
                return

    async def _carry_by(self, target: Target, request: CancelRequest, way: Way) -> None:
        transport, inbox = await dial(target, Inbox, self._tune)
        try:
            transport = await encrypt(target, transport, inbox, way)
            hang_up = HangUp()
            if transport.is_closing():
                raise ConnectionResetError("the server closed the connection")
            transport.set_protocol(hang_up)
            transport.write(request.encode())
            await hang_up.closed
        finally:
            transport.abort()
