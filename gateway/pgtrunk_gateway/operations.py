"""What an administrator can do with a running gateway, from the console or by a signal.

The verbs' meanings and words are PgBouncer's; what the console may expect of each is in
:mod:`~pgtrunk_gateway.console.operations`. Nothing here parses, checks rights or replies. A verb that waits does so for
whoever asked: it ends with the session that asked, or when that one cancels it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import GatewayError, NoSuchDatabase, ShuttingDown
from pgtrunk_gateway.reloading import OpenLog, Reloader
from pgtrunk_gateway.stopping import Patience
from pgtrunk_gateway.suspending import Suspension

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from pgtrunk_gateway.config.ini import Reader
    from pgtrunk_gateway.console.operations import PoolerState, Wait
    from pgtrunk_gateway.gateway import Gateway
    from pgtrunk_gateway.pool.databases import DatabaseState
    from pgtrunk_gateway.reloading import Prepared

__all__ = ["GatewayOperations"]

_PATIENCE: dict[Wait | None, Patience] = {
    "clients": Patience.CLIENTS,
    "servers": Patience.TRANSACTIONS,
    None: Patience.NONE,
}


class GatewayOperations:
    """Of one gateway; see :class:`~pgtrunk_gateway.console.operations.Operations`."""

    def __init__(self, gateway: Gateway, open_log: OpenLog | None = None) -> None:
        self._gateway = gateway
        self._reloader = Reloader(gateway, open_log)
        self._suspension = Suspension(gateway.context, gateway.pools)

    @property
    def remarks(self) -> Sequence[str]:
        """None: everything is as was asked for, or an error."""
        return ()

    @property
    def state(self) -> PoolerState:
        if self._suspension.active:
            return "suspended"
        return "paused" if self._gateway.pools.paused else "active"

    # -- the configuration ---------------------------------------------------------------------------------------------

    async def reload(self) -> None:
        self._reloader.reload()

    def set(self, key: str, value: str) -> None:
        self._reloader.set(key, value)

    def prepare(self, read: Reader) -> Prepared:
        """The first half of RELOAD: all that can fail, with the texts that ``read`` gives."""
        return self._reloader.prepare(read)

    def prepare_set(self, key: str, value: str) -> Prepared:
        """The first half of SET."""
        return self._reloader.prepare_set(key, value)

    def commit(self, prepared: Prepared, *, silent: bool = False) -> None:
        """The second half of both; see :meth:`Reloader.commit`."""
        self._reloader.commit(prepared, silent=silent)

    # -- pausing -------------------------------------------------------------------------------------------------------
    #
    # What waits has two halves: the first takes effect at once, the second looks whether it is done. The workers of a
    # fleet do all first halves before anybody waits for a second one.

    async def pause(self, database: str | None) -> None:
        self.begin_pause(database)
        await self._gateway.pools.wait_idle(database)

    def begin_pause(self, database: str | None) -> None:
        """The first half of PAUSE."""
        self._check_active()
        if database is not None:
            self._state_of(database)
        self._gateway.pools.pause(database)

    async def is_idle(self, database: str | None, patience: float) -> bool:
        """Whether no backend is leased within ``patience`` seconds."""
        return await _within(patience, self._gateway.pools.wait_idle(database))

    def resume(self, database: str | None) -> None:
        # One that others have followed serves its sessions as if it were not going to end.
        if self._gateway.stopping.begun and not self._gateway.retired:
            raise ShuttingDown(severity="ERROR")
        if database is not None:
            if not self._state_of(database).paused:
                raise _not_now(f"database {database} is not paused")
        elif self._suspension.active:
            self._suspension.end()
        elif not self._gateway.pools.paused:
            raise _not_now("pooler is not paused/suspended")
        self._gateway.pools.resume(database)

    async def suspend(self) -> None:
        self._check_suspendable()
        await self._suspension.begin(self._gateway.config.suspend_timeout)

    def begin_suspend(self) -> None:
        """The first half of SUSPEND."""
        self._check_suspendable()
        self._suspension.start()

    async def is_empty(self, patience: float) -> bool:
        """Whether all buffers of a suspended gateway are empty within ``patience`` seconds."""
        return not self._suspension.active or await self._suspension.settled(patience)

    def force_suspend(self) -> None:
        """suspend_timeout has passed: empties what is left."""
        if self._suspension.active:
            self._suspension.force()

    def _check_suspendable(self) -> None:
        self._check_active()
        if any(state.paused for state in self._gateway.pools.databases.values()):
            # Their sessions wait with half of their requests in the gateway: nothing would become empty.
            raise _not_now("cannot suspend with paused databases")

    def _check_active(self) -> None:
        if self.state != "active":
            raise _not_now("already suspended/paused")

    # -- databases -----------------------------------------------------------------------------------------------------

    def disable(self, database: str) -> None:
        self._state_of(database).disabled = True

    def enable(self, database: str) -> None:
        self._state_of(database).disabled = False

    def reconnect(self, database: str | None) -> None:
        if database is not None:
            self._state_of(database)
        self._gateway.pools.reconnect(database)

    async def wait_close(self, database: str | None) -> None:
        if database is not None:
            self._state_of(database)
        await self._gateway.pools.wait_closed(database)

    async def is_closed(self, database: str | None, patience: float) -> bool:
        """Whether all that RECONNECT has told to go are gone within ``patience`` seconds."""
        return await _within(patience, self._gateway.pools.wait_closed(database))

    def kill(self, database: str | None) -> None:
        self._check_active()
        if database is not None:
            self._state_of(database)
        error = _forced()
        # First the sessions: a backend that is lost under them would be another reason to end.
        for session in list(self._gateway.context.sessions):
            if session.admission is not None and database in (None, session.admission.database):
                session.kill(error)
        self._gateway.pools.kill(error, database)

    def _state_of(self, database: str) -> DatabaseState:
        gateway = self._gateway
        state = gateway.pools.databases.find(gateway.config, database)
        if state is None:
            raise NoSuchDatabase(f"no such database: {database}", severity="ERROR")
        return state

    # -- sessions and the end ------------------------------------------------------------------------------------------

    def kill_client(self, session: int) -> None:
        for each in self._gateway.context.sessions:
            if each.id == session:
                each.kill(_forced())
                return
        for console in self._gateway.console.sessions:
            if console.id == session:
                console.end(_forced())
                return
        raise GatewayError(
            "client not found", sqlstate="42704", severity="ERROR", detail=f"No session has id {session}."
        )

    def shutdown(self, wait: Wait | None) -> None:
        self._gateway.stopping.ask(_PATIENCE[wait])


def _forced() -> GatewayError:
    return ShuttingDown("admin forced disconnect")


def _not_now(message: str) -> GatewayError:
    return GatewayError(message, sqlstate="55000", severity="ERROR")


async def _within(patience: float, waiting: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(patience):
            await waiting
    except TimeoutError:
        return False
    return True
