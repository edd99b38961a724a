"""The supervisor's side of the fleet's budgets: what workers say about places goes to the bank, and what that decides
goes to the workers. Their counterpart is in :mod:`~pgtrunk_gateway.fleet.purse`.

    want    places that a pool wants, a state         grant   places that it has more
    back    places that are free again                recall  one that it is asked for, and closing: the answer
    limits  what a reload has changed                 release, keep: see the bank's decisions
    opened  a connection, and what cancels it         orphans (asked): those of a dead worker, to be cancelled
    clients (asked), credits, refund, spare (asked)         places under max_client_conn that workers have in store
    enlist (asked), strike                                 places for clients under the limits of databases and users

A worker that dies leaves connections on which Postgres may still be at something, and would not notice before it has
something to say. So a sibling cancels what runs there, and only then the places are free.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

from pgtrunk_gateway.errors import GatewayError, WorkerLost
from pgtrunk_gateway.fleet.account import Level, Limit, Name
from pgtrunk_gateway.fleet.bank import Bank, Decision, Grant, Keep, Recall, Release
from pgtrunk_gateway.fleet.credits import Credits, Population
from pgtrunk_gateway.fleet.estate import inherit, leave
from pgtrunk_gateway.pool.parting import EXIT

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Answer, Bus
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Colleague", "Customer", "Heir", "Teller", "settle"]

log = logging.getLogger(__name__)

_LONGEST: Final = 60.0
"""Seconds for the orphans of a dead worker where cancel_wait_timeout is switched off."""
_COLLECT: Final = 2.0
"""Seconds in which a worker says what places for clients it has in store. One that does not has none."""


class Colleague(Protocol):
    """What reaches a worker: its bus, or the supervisor of the fleet that it is of."""

    @property
    def is_open(self) -> bool: ...

    def tell(self, kind: str, body: Body | None = None) -> None: ...

    async def ask(self, kind: str, body: Body | None = None, *, timeout: float) -> Body: ...


@dataclass(eq=False, slots=True)
class Customer:
    """A worker, from its start to its end. Another with the same index is another one."""

    number: int
    index: int
    """Less than 0: of a fleet that is leaving."""
    bus: Colleague
    opened: dict[int, Body] = field(default_factory=dict)
    """What cancels its connections to Postgres, by the backends' ids."""


class Heir(Protocol):
    """The next supervisor, which decides for the workers of this one."""

    def say(self, number: int, kind: str, body: Body) -> Answer | Awaitable[Answer]:
        """What a worker says."""
        ...

    def died(self, number: int) -> None:
        """It has gone."""


class Teller:
    """A part of the supervisor. ``patience``: seconds for the orphans of a dead worker to be cancelled
    (cancel_wait_timeout; 0: no limit), looked up when that is begun."""

    def __init__(self, patience: Callable[[], float]) -> None:
        self.bank = Bank()
        self.credits = Credits()
        self.population = Population()
        self._patience = patience
        self._customers: dict[int, Customer] = {}
        """Those that are there, by their numbers."""
        self._last = 0
        self.heir: Heir | None = None
        """The next supervisor, once it is the one that decides."""
        self._pending: list[tuple[Customer, str, Body, asyncio.Future[Answer]]] | None = None
        self._handlers: dict[str, Callable[[Customer, Body], Answer | Awaitable[Answer]]] = {
            "want": self._want,
            "back": self._back,
            "closing": self._closing,
            "limits": self._limits,
            "opened": self._opened,
            "enlist": self._enlist,
            "strike": self._strike,
            "refund": self._refund,
            "clients": self._clients,
        }
        self.has_adopted = False
        """Whether it decides for others than its own."""
        self._collection: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- workers -------------------------------------------------------------------------------------------------------

    def enters(self, index: int, bus: Bus) -> None:
        """Worker ``index`` is about to start."""
        self._last += 1
        customer = self._customers[self._last] = Customer(self._last, index, bus)

        for kind in self._handlers:
            bus.on(kind, partial(self._hear, customer, kind))

    def leaves(self, index: int) -> None:
        """It is gone."""
        for customer in [each for each in self._customers.values() if each.index == index]:
            del self._customers[customer.number]
            if self.heir is not None:
                self.heir.died(customer.number)
            else:
                self.died(customer)

    async def close(self) -> None:
        """Nothing is left of it."""
        tasks = [*self._tasks] + ([self._collection] if self._collection is not None else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def died(self, customer: Customer) -> None:
        """A worker has gone, here or in a fleet that is leaving."""
        self._customers.pop(customer.number, None)
        self.credits.died(customer.number)
        self.population.died(customer.number)
        self._act(self.bank.died(customer.number))
        self._begin(self._bury(customer), f"orphans of worker {customer.index}")

    def _hear(self, customer: Customer, kind: str, body: Body) -> Answer | Awaitable[Answer]:
        # What was said before an online restart comes first, wherever it is decided.
        if self.heir is not None:
            return self.heir.say(customer.number, kind, body)
        if self._pending is not None:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._pending.append((customer, kind, body, answer))
            return answer
        return self._handlers[kind](customer, body)

    def wait(self) -> None:
        """What workers say from now on is waited with, until :meth:`open`: the supervisor before this one has not said
        yet what its workers hold."""
        self._pending = []

    def open(self) -> None:
        """All that was said meanwhile is acted on, in its order."""
        pending, self._pending = self._pending or [], None
        for customer, kind, body, answer in pending:
            settle(answer, self._hear(customer, kind, body))

    # -- from one supervisor to the next -------------------------------------------------------------------------------

    def bequeath(self, heir: Heir) -> Body:
        """The next supervisor decides from now on -> what it has to know."""
        decisions, bank = leave(self.bank)
        self._act(decisions)
        self.heir = heir
        return {
            "bank": bank,
            "customers": [
                {
                    "number": customer.number,
                    "opened": list(customer.opened.values()),
                    "credits": self.credits.held.get(customer.number, 0),
                    "clients": list(self.population.of(customer.number).items()),
                }
                for customer in self._customers.values()
            ],
        }

    def adopt(self, estate: Body, bus: Callable[[int], Colleague]) -> dict[int, Customer]:
        """Decides for workers of a fleet that is leaving, too; ``bus`` reaches them by the numbers that they had there,
        which are the keys of what is returned."""
        self.has_adopted = True
        adopted: dict[int, Customer] = {}
        numbers: dict[int, int] = {}
        for each in estate["customers"]:
            self._last += 1
            customer = Customer(self._last, -self._last, bus(each["number"]))
            customer.opened = {opened["id"]: opened for opened in each["opened"]}
            adopted[each["number"]] = self._customers[self._last] = customer
            numbers[each["number"]] = self._last
            if each["credits"]:
                self.credits.held[self._last] = each["credits"]
            for name, count in each["clients"]:
                self.population.admit(self._last, tuple(name), count)
        gone = [worker for worker in estate["bank"]["gone"] if worker not in numbers]
        for worker in gone:
            self._last += 1
            numbers[worker] = self._last
        self._act(inherit(self.bank, estate["bank"], numbers))
        for worker in gone:
            # Who looked after what it has left does so still, for as long as that may take here.
            self._begin(self._bury_late(numbers[worker]), f"orphans of worker {-numbers[worker]}")
        return adopted

    def hear(self, customer: Customer, kind: str, body: Body) -> Answer | Awaitable[Answer]:
        """What a worker of a fleet that is leaving says."""
        return self._hear(customer, kind, body)

    def whisper(self, number: int, kind: str, body: Body) -> None:
        """Tells a worker what the next supervisor has decided."""
        customer = self._customers.get(number)
        if customer is not None:
            customer.bus.tell(kind, body)

    async def inquire(self, number: int, kind: str, body: Body, *, timeout: float) -> Body:
        """Asks it what the next supervisor wants to know."""
        customer = self._customers.get(number)
        if customer is None:
            raise WorkerLost("that worker has gone")
        return await customer.bus.ask(kind, body, timeout=timeout)

    async def _bury_late(self, number: int) -> None:
        await asyncio.sleep((self._patience() or _LONGEST) + EXIT)
        self._act(self.bank.bury(number))

    def _begin(self, run: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(run, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- connections to Postgres ---------------------------------------------------------------------------------------

    def _want(self, customer: Customer, body: Body) -> None:
        limits = [(tuple(name), Limit(*limit)) for name, limit in body["limits"]]
        if self.has_adopted and customer.index >= 0:
            # A fleet that is leaving may have had others; those of this one count.
            self._act(self.bank.limit(dict(limits)))
        self._act(self.bank.want(customer.number, limits, Level(**body["level"]), body["seen"]))

    def _back(self, customer: Customer, body: Body) -> None:
        if (backend := body.get("id")) is not None:
            customer.opened.pop(backend, None)
        self._act(self.bank.give_back(customer.number, _names(body["names"]), body["count"]))

    def _closing(self, customer: Customer, body: Body) -> None:
        self._act(self.bank.answer(body["number"], closing=body["closing"]))

    def _limits(self, customer: Customer, body: Body) -> None:
        self._act(self.bank.limit({tuple(name): Limit(*limit) for name, limit in body["limits"]}))

    def _opened(self, customer: Customer, body: Body) -> None:
        customer.opened[body["id"]] = body

    def _act(self, decisions: Iterable[Decision]) -> None:
        if self.heir is not None:
            return
        for decision in decisions:
            customer = self._customers.get(decision.worker)
            if customer is None:
                continue
            match decision:
                case Grant(_, names, count, reserve):
                    customer.bus.tell("grant", {"names": names, "count": count, "reserve": reserve})
                case Recall(_, number, name, since, again):
                    customer.bus.tell("recall", {"number": number, "name": name, "since": since, "again": again})
                case Release(_, number):
                    customer.bus.tell("release", {"number": number})
                case Keep(_, name, count):
                    customer.bus.tell("keep", {"name": name, "count": count})
                case _:
                    assert_never(decision)

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
        self._act(self.bank.bury(customer.number))

    async def _cancel(self, opened: list[Body], patience: float) -> None:
        """Has a sibling cancel what may run there. Raises a :class:`GatewayError` where none can."""
        error: GatewayError | None = None
        for sibling in list(self._customers.values()):
            if not sibling.bus.is_open:
                continue
            try:
                await sibling.bus.ask("orphans", {"opened": opened, "timeout": patience}, timeout=patience + _COLLECT)
            except GatewayError as failure:
                error = failure
            else:
                return
        raise error or GatewayError("no other worker is there")

    # -- clients -------------------------------------------------------------------------------------------------------

    async def _clients(self, customer: Customer, body: Body) -> Body:
        """Some places more; that the fleet is full is said only where all places are taken by clients."""
        wanted, limit = body["wanted"], body["limit"]
        count = self._draw(customer, limit, wanted)
        if not count and wanted:
            await self._collect()
            if self.heir is not None:
                answer = self.heir.say(customer.number, "clients", body)
                return (await answer if inspect.isawaitable(answer) else answer) or {}
            count = self._draw(customer, limit, wanted)
        if count:
            # Not in the answer, which nobody may wait for any more.
            customer.bus.tell("credits", {"count": count})
        return {"full": not count}

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

    def _refund(self, customer: Customer, body: Body) -> None:
        self.credits.give_back(customer.number, body["count"])

    def _enlist(self, customer: Customer, body: Body) -> Body:
        limits = [(tuple(name), limit) for name, limit in body["limits"]]
        reached = self.population.enter(customer.number, limits)
        return {"reached": None if reached is None else [name for name, _ in limits].index(reached)}

    def _strike(self, customer: Customer, body: Body) -> None:
        self.population.leave(customer.number, _names(body["names"]))


def _names(names: Iterable[Iterable[str]]) -> list[Name]:
    return [tuple(name) for name in names]


def settle(answer: asyncio.Future[Answer], result: Answer | Awaitable[Answer]) -> None:
    """Answers late what was put off."""
    if not inspect.isawaitable(result):
        if not answer.done():
            answer.set_result(result)
        return
    task = asyncio.ensure_future(result)

    def done(task: asyncio.Future[Answer]) -> None:
        if answer.done() or task.cancelled():
            answer.cancel()
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    task.add_done_callback(done)
