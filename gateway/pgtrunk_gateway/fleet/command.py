"""One command at a worker's console, for the whole fleet: the supervisor has it done, by this worker too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.fleet.settling import until_settled
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from pgtrunk_gateway.console.operations import PoolerState, Wait
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.gateway import Gateway

__all__ = ["Command"]

_DONE: Final = 60.0
"""Seconds for what is done at once; those before it are waited for, and a reload may read much."""
_MARGIN: Final = 10.0
"""Seconds more than the workers have that the supervisor has for bringing their answers."""
_PATIENCE: Final[dict[Wait | None, Patience]] = {
    "clients": Patience.CLIENTS,
    "servers": Patience.TRANSACTIONS,
    None: Patience.NONE,
}


class Command:
    """An :class:`~pgtrunk_gateway.console.operations.Operations`; what it does is for one command, and its cancel."""

    def __init__(self, gateway: Gateway, bus: Bus) -> None:
        self.remarks: list[str] = []
        self._gateway = gateway
        self._bus = bus
        self._begun: bool | None = None
        """Whether there is a pause of this command's, which a cancel takes back; None: it asks for none."""

    @property
    def state(self) -> PoolerState:
        return self._gateway.operations.state

    # -- the configuration ---------------------------------------------------------------------------------------------

    async def reload(self) -> None:
        await self._steer("reload")

    async def set(self, key: str, value: str) -> None:
        await self._steer("set", key=key, value=value)

    # -- pausing -------------------------------------------------------------------------------------------------------

    async def pause(self, database: str | None) -> None:
        await self._begin("pause", database)
        await until_settled(partial(self._settle, "pause", database))

    async def suspend(self) -> None:
        await self._begin("suspend", None)
        timeout = self._gateway.config.suspend_timeout
        if not await until_settled(partial(self._settle, "suspend", None), timeout):
            await self._steer("force_suspend", database=None)

    async def resume(self, database: str | None) -> None:
        # Where a pause was refused there is nothing to take back: it may be somebody else's.
        if self._begun is not False:
            await self._steer("resume", database=database)

    async def _begin(self, verb: str, database: str | None) -> None:
        self._begun = False
        asking = asyncio.ensure_future(self._steer(verb, database=database))
        asking.add_done_callback(_heed)
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The supervisor goes on; only its answer tells what there is to take back.
            await asyncio.wait([asking])
            self._begun = not asking.cancelled() and asking.exception() is None
            raise
        self._begun = True

    # -- databases, sessions and the end -------------------------------------------------------------------------------

    async def disable(self, database: str) -> None:
        await self._steer("disable", database=database)

    async def enable(self, database: str) -> None:
        await self._steer("enable", database=database)

    async def reconnect(self, database: str | None) -> None:
        await self._steer("reconnect", database=database)

    async def wait_close(self, database: str | None) -> None:
        # An error where there is no such database.
        await self._steer("wait_close", database=database)
        await until_settled(partial(self._settle, "wait_close", database))

    async def kill(self, database: str | None) -> None:
        await self._steer("kill", database=database)

    async def kill_client(self, session: int) -> None:
        await self._steer("kill_client", session=session)

    def shutdown(self, wait: Wait | None) -> None:
        self._bus.tell("shutdown", {"patience": int(_PATIENCE[wait])})

    # -- the supervisor ------------------------------------------------------------------------------------------------

    async def _steer(self, verb: str, **more: Any) -> None:
        answer = await self._bus.ask("steer", {"verb": verb, **more}, timeout=_DONE)
        if "fault" in answer:
            raise ConfigError(answer["fault"])
        self.remarks += answer["remarks"]

    async def _settle(
        self, verb: str, database: str | None, left: Sequence[int] | None, patience: float
    ) -> Sequence[int]:
        body = {"verb": verb, "database": database, "left": left, "patience": patience}
        answer = await self._bus.ask("settle", body, timeout=patience + _MARGIN)
        settled: list[int] = answer["left"]
        return settled


def _heed(asking: asyncio.Future[None]) -> None:
    """An error of something that nobody waits for any more is no fault of ours."""
    if not asking.cancelled():
        asking.exception()
