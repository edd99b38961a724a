"""What workers that have died leave in Postgres, and when their places are free.

Such connections may still be at something, and Postgres would not notice before it has something to say. So a sibling
cancels what runs there (:class:`~pgtrunk_gateway.fleet.orphans.Orphans`), and only then the places are free. Where none
can, they are free when it would have given up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from pgtrunk_gateway.errors import GatewayError
from pgtrunk_gateway.pool.parting import EXIT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from pgtrunk_gateway.fleet.customer import Customer
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Burials"]

log = logging.getLogger(__name__)

_LONGEST: Final = 60.0
"""Seconds for the orphans of a dead worker where cancel_wait_timeout is switched off."""
_MARGIN: Final = 2.0
"""Seconds more that a sibling has to say that it is done."""


class Burials:
    """Of the workers of one supervisor: ``customers`` are those that are there. ``buried(number)`` is called when the
    places of one are free. ``patience``: see :class:`~pgtrunk_gateway.fleet.teller.Teller`."""

    def __init__(
        self, customers: Mapping[int, Customer], patience: Callable[[], float], buried: Callable[[int], None]
    ) -> None:
        self._customers = customers
        self._patience = patience
        self._buried = buried
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, customer: Customer) -> None:
        """It has died."""
        self._begin(self._bury(customer), customer.index)

    def begin_late(self, number: int) -> None:
        """It had died before its fleet was taken over: who looked after what it has left does so still, for as long as
        that may take here."""
        self._begin(self._bury_late(number), -number)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancels all -> what has still to end."""
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    def _begin(self, run: Coroutine[Any, Any, None], index: int) -> None:
        task = asyncio.get_running_loop().create_task(run, name=f"orphans of worker {index}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, customer: Customer) -> None:
        patience = self._patience() or _LONGEST
        loop = asyncio.get_running_loop()
        began = loop.time()
        if customer.opened:
            try:
                await self._cancel(list(customer.opened.values()), patience)
            except GatewayError as error:
                log.warning("worker %d: what it left in Postgres is not cancelled: %s", customer.index, error)
                # Somebody may still look after it: its own time goes on.
                await asyncio.sleep(max(0.0, began + patience - loop.time()))
        await asyncio.sleep(EXIT)
        self._buried(customer.number)

    async def _bury_late(self, number: int) -> None:
        await asyncio.sleep((self._patience() or _LONGEST) + EXIT)
        self._buried(number)

    async def _cancel(self, opened: list[Body], patience: float) -> None:
        """Has a sibling cancel what may run there. Raises a :class:`GatewayError` where none can."""
        error: GatewayError | None = None
        for sibling in list(self._customers.values()):
            if not sibling.bus.is_open:
                continue
            try:
                await sibling.bus.ask("orphans", {"opened": opened, "timeout": patience}, timeout=patience + _MARGIN)
            except GatewayError as failure:
                error = failure
            else:
                return
        raise error or GatewayError("no other worker is there")
