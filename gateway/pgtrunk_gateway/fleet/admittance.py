"""The supervisor's side of the limits on clients: of max_client_conn, and of those of databases and users.

Its counterpart in the workers is :class:`~pgtrunk_gateway.fleet.turnstile.Turnstile`; what is counted is in
:mod:`~pgtrunk_gateway.fleet.credits`. The messages are listed in :mod:`~pgtrunk_gateway.fleet.teller`.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.fleet.credits import Credits, Population

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgtrunk_gateway.fleet.customer import Customer, Heir
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Admittance"]

_COLLECT: Final = 2.0
"""Seconds in which a worker says what places for clients it has in store. One that does not has none."""


class Admittance:
    """Places for clients in all workers. ``customers`` are those that are there; ``heir()`` is the next supervisor when
    that one decides."""

    def __init__(self, customers: Mapping[int, Customer], heir: Callable[[], Heir | None]) -> None:
        self.credits = Credits()
        self.population = Population()
        self._customers = customers
        self._heir = heir
        self._collection: asyncio.Task[None] | None = None

    def died(self, worker: int) -> None:
        """Its clients went with it."""
        self.credits.died(worker)
        self.population.died(worker)

    def stop(self) -> list[asyncio.Task[None]]:
        """Nobody is asked any more -> what has still to end."""
        if self._collection is None:
            return []
        self._collection.cancel()
        return [self._collection]

    # -- from one supervisor to the next -------------------------------------------------------------------------------

    def leave(self, worker: int) -> Body:
        """What the next supervisor has to know of ``worker``."""
        return {
            "credits": self.credits.held.get(worker, 0),
            "clients": list(self.population.of(worker).items()),
        }

    def adopt(self, worker: int, left: Body) -> None:
        """``worker`` is of a fleet that is leaving, whose supervisor has said this of it."""
        if left["credits"]:
            self.credits.held[worker] = left["credits"]
        for name, count in left["clients"]:
            self.population.admit(worker, tuple(name), count)

    # -- what workers say ----------------------------------------------------------------------------------------------

    async def clients(self, customer: Customer, body: Body) -> Body:
        """Some places more; that the fleet is full is said only where all places are taken by clients."""
        wanted, limit = body["wanted"], body["limit"]
        count = self._draw(customer, limit, wanted)
        if not count and wanted:
            await self._collect()
            if (heir := self._heir()) is not None:
                answer = heir.say(customer.number, "clients", body)
                return (await answer if inspect.isawaitable(answer) else answer) or {}
            count = self._draw(customer, limit, wanted)
        if count:
            # Not in the answer, which nobody may wait for any more.
            customer.bus.tell("credits", {"count": count})
        return {"full": not count}

    def refund(self, customer: Customer, body: Body) -> None:
        """Places that it has in store, and does not need."""
        self.credits.give_back(customer.number, body["count"])

    def enlist(self, customer: Customer, body: Body) -> Body:
        """A client more, under the limits of its database and its user."""
        limits = [(tuple(name), limit) for name, limit in body["limits"]]
        reached = self.population.enter(customer.number, limits)
        return {"reached": None if reached is None else [name for name, _ in limits].index(reached)}

    def strike(self, customer: Customer, body: Body) -> None:
        """One of these less."""
        self.population.leave(customer.number, [tuple(name) for name in body["names"]])

    # -- what they have in store ---------------------------------------------------------------------------------------

    def _draw(self, customer: Customer, limit: int, wanted: int) -> int:
        if customer.number not in self._customers:
            return 0
        return self.credits.draw(customer.number, limit, wanted)

    async def _collect(self) -> None:
        """Has all give back what they have in store. Who comes while that is done may come too late for it."""
        if self._collection is not None and not self._collection.done():
            await asyncio.shield(self._collection)
        # One that is done, and nobody has been told yet, is as late as one that was under way.
        if self._collection is None or self._collection.done():
            self._collection = asyncio.get_running_loop().create_task(self._ask_stores(), name="collect")
            self._collection.add_done_callback(self._collected)
        await asyncio.shield(self._collection)

    def _collected(self, task: asyncio.Task[None]) -> None:
        if self._collection is task:
            self._collection = None

    async def _ask_stores(self) -> None:
        stores = [customer.bus.ask("spare", timeout=_COLLECT) for customer in self._customers.values()]
        await asyncio.gather(*stores, return_exceptions=True)
