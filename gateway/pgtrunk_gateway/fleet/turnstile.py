"""A worker's end of the fleet's limits on clients: max_client_conn, and those of databases and users.

Of max_client_conn the worker has places in store, so that a connection rarely waits for anybody; it asks for more when
the last is taken, and before it says no. The limits of databases and users are asked for by each login, which has had
its own round trips by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.account import Name
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Turnstile"]

_PATIENCE: Final = 30.0
"""Seconds for the supervisor to answer, which asks other workers if need be. It only takes so long when it hangs."""


class Turnstile:
    """Of one worker; ``bus`` leads to the supervisor."""

    def __init__(self, bus: Bus) -> None:
        self.store = 0
        """Places under max_client_conn without a client."""
        self._bus = bus
        self._asking: asyncio.Task[bool] | None = None
        self._waiting = 0
        self._settling: set[asyncio.Task[Body]] = set()
        self._loop = asyncio.get_running_loop()
        bus.on("credits", self._credits)
        bus.on("spare", self._spare)

    async def close(self) -> None:
        """Nothing runs for it any more."""
        tasks: list[asyncio.Task[Any]] = [*self._settling]
        if self._asking is not None:
            tasks.append(self._asking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- max_client_conn -----------------------------------------------------------------------------------------------

    async def enter(self, limit: int) -> bool:
        """One more client takes a place, of ``limit`` in the fleet -> whether there is one."""
        while not self.store:
            # An answer to who has asked before may be from before a place became free.
            late = self._asking is not None and not self._asking.done()
            self._waiting += 1
            try:
                full = await asyncio.shield(self._ask(limit, self._waiting))
            finally:
                self._waiting -= 1
            if full and not late and not self.store:
                return False
        # Taken by who came for it, and not given: so nothing is lost if he was cancelled just now.
        self.store -= 1
        if not self.store and self._asking is None:
            self._ask(limit, 0)
        return True

    def left(self) -> None:
        """A client has gone; its place is for the next one here, or in another worker that asks."""
        self.store += 1

    def empty(self) -> None:
        """Gives back what is in store: the limit may have become smaller."""
        if self.store:
            count, self.store = self.store, 0
            self._bus.tell("refund", {"count": count})

    def _ask(self, limit: int, wanted: int) -> asyncio.Task[bool]:
        # One that is answered, and nobody has been told yet, would be awaited again and again: that takes no turn.
        if self._asking is None or self._asking.done():
            self._asking = self._loop.create_task(self._more(limit, wanted), name="places for clients")
            self._asking.add_done_callback(self._asked)
        return self._asking

    async def _more(self, limit: int, wanted: int) -> bool:
        answer = await self._bus.ask("clients", {"limit": limit, "wanted": wanted}, timeout=_PATIENCE)
        return bool(answer["full"])

    def _asked(self, task: asyncio.Task[bool]) -> None:
        if self._asking is task:
            self._asking = None
        if not task.cancelled():
            # Nobody may have waited for it.
            task.exception()

    def _credits(self, body: Body) -> None:
        self.store += body["count"]

    def _spare(self, _: Body) -> None:
        self.empty()

    # -- databases and users -------------------------------------------------------------------------------------------

    async def settle(self, limits: Sequence[tuple[Name, int]]) -> int | None:
        """One more client under all these names, with these limits (0: none) -> the place of the first that is reached;
        then there is not one more."""
        body = {"limits": limits}
        task = self._loop.create_task(self._bus.ask("enlist", body, timeout=_PATIENCE), name="places for a login")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(self._undo, [name for name, _ in limits]))
            raise
        reached: int | None = answer["reached"]
        return reached

    def unsettle(self, names: Iterable[Name]) -> None:
        """It has gone."""
        self._bus.tell("strike", {"names": list(names)})

    def _undo(self, names: list[Name], task: asyncio.Task[Body]) -> None:
        if not task.cancelled() and task.exception() is None and task.result()["reached"] is None:
            self.unsettle(names)
