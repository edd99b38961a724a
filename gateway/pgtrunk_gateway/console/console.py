"""The console of one gateway: who is at it, and what it needs of the gateway."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from pgtrunk_gateway.console.session import ConsoleSession
from pgtrunk_gateway.console.view import View
from pgtrunk_gateway.errors import ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgtrunk_gateway.console.operations import Operations
    from pgtrunk_gateway.fronts.front import Front
    from pgtrunk_gateway.pool.pools import Pools
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.lifecycle import Lifecycle
    from pgtrunk_gateway.relay.visiting import Visit

__all__ = ["Console"]


class Console:
    """Takes in whoever has logged in to it, from :meth:`enter` on. ``fronts`` gives those that are open."""

    def __init__(
        self, operations: Operations, *, context: Context, pools: Pools, fronts: Callable[[], Sequence[Front]]
    ) -> None:
        self.sessions: set[ConsoleSession] = set()
        self.operations = operations
        self.view = View(
            context=context,
            pools=pools,
            operations=operations,
            fronts=fronts,
            consoles=self.sessions,
            now=lambda: asyncio.get_running_loop().time(),
            wall=time.time,
        )
        self.parameters: Mapping[str, str] = {
            # Drivers read a version's numbers, and PgBouncer's form of it is what they know.
            "server_version": f"{version('pgtrunk')}/pgtrunk",
            "client_encoding": "UTF8",
            "server_encoding": "UTF8",
            "DateStyle": "ISO",
            "TimeZone": "GMT",
            "standard_conforming_strings": "on",
            "integer_datetimes": "on",
            "is_superuser": "on",
        }

    def enter(self, session: Lifecycle, visit: Visit, rest: bytes) -> None:
        """Goes on with the transport of ``session``; ``rest`` came behind its login."""
        console = ConsoleSession(self, session, visit, rest)
        session.transport.set_protocol(console)
        self.sessions.add(console)

    def left(self, session: ConsoleSession) -> None:
        """Its connection is gone."""
        self.sessions.discard(session)
        if not self.sessions and self.operations.state == "suspended":
            # Nobody could get in to resume, for no login is read any more.
            self.operations.resume(None)

    async def close(self, patience: float) -> None:
        """The gateway stops; sessions have ``patience`` seconds to take their last message."""
        for session in list(self.sessions):
            session.end(ShuttingDown())
        gone = [session.gone for session in self.sessions]
        if gone:
            await asyncio.wait(gone, timeout=patience)
        for session in list(self.sessions):
            session.transport.abort()
