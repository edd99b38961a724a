"""The supervisor's side of the fleet's budgets: what workers say about places goes to the bank, and what that decides
goes to the workers. Their counterpart is in :mod:`~pgtrunk_gateway.fleet.purse`.

    want    places that a pool wants, a state         grant   places that it has more
    back    places that are free again                recall  one that it is asked for, and closing: the answer
    limits  what a reload has changed                 release, keep: see the bank's decisions
    opened  a connection, and what cancels it         orphans (asked): those of a dead worker, to be cancelled
    clients (asked), credits, refund, spare (asked)         places under max_client_conn that workers have in store
    enlist (asked), strike                                 places for clients under the limits of databases and users

What becomes of the last three lines is in :mod:`~pgtrunk_gateway.fleet.burials` and
:mod:`~pgtrunk_gateway.fleet.admittance`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from pgtrunk_gateway.errors import WorkerLost
from pgtrunk_gateway.fleet.account import Level, Limit, Name
from pgtrunk_gateway.fleet.admittance import Admittance
from pgtrunk_gateway.fleet.bank import Bank, Decision, Grant, Keep, Recall, Release
from pgtrunk_gateway.fleet.burials import Burials
from pgtrunk_gateway.fleet.customer import Customer
from pgtrunk_gateway.fleet.estate import inherit, leave

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Answer, Bus
    from pgtrunk_gateway.fleet.customer import Colleague, Heir
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Teller", "settle"]


class Teller:
    """A part of the supervisor. ``patience``: seconds for the orphans of a dead worker to be cancelled
    (cancel_wait_timeout; 0: no limit), looked up when that is begun."""

    def __init__(self, patience: Callable[[], float]) -> None:
        self.bank = Bank()
        self._customers: dict[int, Customer] = {}
        """Those that are there, by their numbers."""
        self.admittance = Admittance(self._customers, lambda: self.heir)
        self._burials = Burials(self._customers, patience, lambda number: self._act(self.bank.bury(number)))
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
            "enlist": self.admittance.enlist,
            "strike": self.admittance.strike,
            "refund": self.admittance.refund,
            "clients": self.admittance.clients,
        }
        self.has_adopted = False
        """Whether it decides for others than its own."""

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
        await asyncio.gather(*self._burials.stop(), *self.admittance.stop(), return_exceptions=True)

    def died(self, customer: Customer) -> None:
        """A worker has gone, here or in a fleet that is leaving."""
        self._customers.pop(customer.number, None)
        self.admittance.died(customer.number)
        self._act(self.bank.died(customer.number))
        self._burials.begin(customer)

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
                    **self.admittance.leave(customer.number),
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
            self.admittance.adopt(self._last, each)
        gone = [worker for worker in estate["bank"]["gone"] if worker not in numbers]
        for worker in gone:
            self._last += 1
            numbers[worker] = self._last
        self._act(inherit(self.bank, estate["bank"], numbers))
        for worker in gone:
            self._burials.begin_late(numbers[worker])
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
