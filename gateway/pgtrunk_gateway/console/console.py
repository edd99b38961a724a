"""The console of one gateway: who is at it, and what it needs of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from pgtrunk.closing import close_each
from pgtrunk_gateway.console.session import ConsoleSession
from pgtrunk_gateway.console.view import ALONE, Place, View
from pgtrunk_gateway.errors import GatewayError, ShuttingDown
from pgtrunk_gateway.stats.averages import Figures
from pgtrunk_gateway.stats.counters import PoolStats
from pgtrunk_gateway.stats.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.console.operations import Operations
    from pgtrunk_gateway.console.others import Others
    from pgtrunk_gateway.fronts.front import Front
    from pgtrunk_gateway.pool.pools import Pools
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.lifecycle import Lifecycle
    from pgtrunk_gateway.relay.visiting import Visit

__all__ = ["Console"]


class Console:
    """Takes in whoever has logged in to it, from :meth:`enter` on.

    ``fronts`` gives those that are open, ``loaded`` the configuration that is in force.
    """

    def __init__(
        self,
        operations: Operations,
        *,
        context: Context,
        pools: Pools,
        fronts: Callable[[], Sequence[Front]],
        loaded: Callable[[], Loaded],
        place: Place = ALONE,
    ) -> None:
        self.sessions: set[ConsoleSession] = set()
        self.operations = operations
        self.others: Others | None = None
        """Of a fleet, once the gateway is one of it."""
        self.stats = PoolStats()
        """What has been done at the console itself."""
        self.recorder = Recorder(
            self._read,
            period=lambda: context.config.stats_period,
            # A fleet logs the sum: the supervisor does.
            logs=lambda: context.config.log_stats and self.others is None,
        )
        self.view = View(
            context=context,
            pools=pools,
            operations=operations,
            fronts=fronts,
            recorder=self.recorder,
            current=loaded,
            consoles=self.sessions,
            now=lambda: asyncio.get_running_loop().time(),
            wall=time.time,
            place=place,
            since=asyncio.get_running_loop().time(),
        )
        self.parameters: Mapping[str, str] = {
            # Drivers read a version's numbers, and PgBouncer's form of it is what they know.
            "server_version": f"{version('pgtrunk-gateway')}/pgtrunk",
            "client_encoding": "UTF8",
            "server_encoding": "UTF8",
            "DateStyle": "ISO",
            "TimeZone": "GMT",
            "standard_conforming_strings": "on",
            "integer_datetimes": "on",
            "is_superuser": "on",
        }

    def start(self) -> None:
        """The gateway runs: averages are taken from now on."""
        self.recorder.start()

    def _read(self) -> dict[str, Figures]:
        """The totals by database: what its pools have counted."""
        figures: dict[str, Figures] = {}
        for pool in self.view.pools:
            counted = Figures.of(pool.stats, pool.counters.leases)
            figures[pool.key.database] = figures.get(pool.key.database, Figures()) + counted
        figures["pgbouncer"] = Figures.of(self.stats)
        return figures

    def enter(self, session: Lifecycle, visit: Visit, rest: bytes, *, over: bool) -> None:
        """Goes on with the transport of ``session``; see :class:`ConsoleSession`."""
        console = ConsoleSession(self, session, visit, rest, over=over)
        session.transport.set_protocol(console)
        self.sessions.add(console)
        self.stats.login_count += 1

    def left(self, session: ConsoleSession) -> None:
        """Its connection is gone."""
        self.sessions.discard(session)
        if self.sessions or self.operations.state != "suspended":
            return
        # Nobody may come who would resume.
        if self.others is not None:
            self.others.deserted()
        else:
            # A gateway that is stopping does not.
            with contextlib.suppress(GatewayError):
                self.operations.resume(None)

    async def close(self, patience: float) -> None:
        """The gateway stops; sessions have ``patience`` seconds to take their last message."""
        self.recorder.stop()
        close_each(partial(session.end, ShuttingDown()) for session in list(self.sessions))
        gone = [session.gone for session in self.sessions]
        if gone:
            await asyncio.wait(gone, timeout=patience)
        close_each(session.transport.abort for session in list(self.sessions))
