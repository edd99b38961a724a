"""The connections of a trunk: how they are opened, what is heard of them, and how they end.

Each has the number of its link. What happens is told to the allocation, and what that decides is for the trunk to act
on, which calls back here.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import random
from typing import TYPE_CHECKING, Any

from pgtrunk.address import Address
from pgtrunk.closing import close_each
from pgtrunk.errors import SessionLost, TrunkClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from pgtrunk.allocation import Allocation
    from pgtrunk.connection import Connection, Connector
    from pgtrunk.decisions import Decision, Dial, HangUp, Replaced
    from pgtrunk.quic.control import Goaway
    from pgtrunk.telemetry import Counters
    from pgtrunk.waiter import SlotWaiter

__all__ = ["Lines"]

logger = logging.getLogger("pgtrunk")

SPREAD = 0.5
"""Seconds within which the clients of a gateway that sends them away come to the next one, at random; less where there
is little time to leave."""

STOP_TIMEOUT = 1.0
"""Seconds that what is stopped has to be gone, which takes a turn of the event loop or two."""

SUSPECT_SPREAD = 1.0
"""Seconds within which clients whose connection does not answer open another one, at random, where nobody waits for it.
More than above: a gateway that was too busy to answer has all of them at once."""


class Lines:
    """The connections of one trunk, those that are being opened, and those that are being closed."""

    def __init__(
        self,
        gateway: str,
        connect: Connector,
        core: Allocation[SlotWaiter],
        counters: Counters,
        act: Callable[[Iterable[Decision[SlotWaiter]]], None],
    ) -> None:
        self.gateway = gateway
        self.connect = connect
        self.open: dict[int, Connection] = {}
        """By link."""
        self.dials: dict[int, asyncio.Task[Connection]] = {}
        self.farewells: set[asyncio.Task[None]] = set()
        self.is_closing = False
        self.movers: list[Callable[[int], None]] = []
        """Called with the number of a link whose idle sessions may move from now on, see `may_leave`."""
        self.on_lost: Callable[[Connection, BaseException], bool] | None = None
        """Called when a connection is lost that was in use; returns whether there is somewhere else to go at once."""
        self.on_leave: Callable[[Connection], None] | None = None
        """Called when the gateway has asked for a connection to be left."""
        self.on_answer: Callable[[Connection], None] | None = None
        """Called when the gateway has answered on a connection that was taken to be open before (``is_early``)."""
        self._core = core
        self._counters = counters
        self._act = act
        self._loop = asyncio.get_running_loop()
        self._elsewhere: Address | None = None
        self._cut_off = False
        """Whether a connection was lost, or not to be had, and none has come since."""

    # What is known of them.

    def is_leaving(self, link: int) -> bool:
        """Whether this link is to be left, by the gateway's wish or for its age."""
        known = self._core.links.get(link)
        return known is not None and known.is_leaving

    def is_suspect(self, link: int) -> bool:
        """Whether this link owes an answer."""
        known = self._core.links.get(link)
        return known is not None and known.is_suspect

    def may_leave(self, link: int) -> bool:
        """Whether this link is to be left or owes an answer, and another one is ready."""
        return not self.is_closing and self._core.may_leave(link)

    def stays(self, connection: Connection) -> bool:
        """Whether a connection is neither to be left nor about to be replaced, as far as is known. May be called from
        any thread."""
        links = list(self._core.links.values())
        number = next((number for number, each in list(self.open.items()) if each is connection), -1)
        return not any(link.replaces == number or (link.is_leaving and link.number == number) for link in links)

    @property
    def has_room_to_move(self) -> bool:
        """Whether one more connection may be replaced: what cannot move piles up on those that are to be left."""
        return not self.is_closing and len(self._core.links.leaving) < self._core.rules.connections

    # What is decided of them.

    def dial(self, dial: Dial) -> None:
        logger.debug("%s: opening connection %d (%s)", self.gateway, dial.link, dial)
        connect = partial(self.connect, self._elsewhere)
        opening = connect() if dial.replaces is None else self.wait_answered(connect)
        task = self._loop.create_task(opening, name=f"pgtrunk dial {self.gateway} {dial.link}")
        self.dials[dial.link] = task
        task.add_done_callback(partial(self._dialled, dial.link))

    def hang_up(self, hang_up: HangUp) -> None:
        logger.debug("%s: closing connection %d, idle for %.1f s", self.gateway, hang_up.link, hang_up.idle)
        self._say_farewell(self.open.pop(hang_up.link))

    def keep(self, link: int, kept: bool) -> None:
        """A connection is to be kept alive without streams, or no longer."""
        self.open[link].is_kept = kept

    def tell_of_replacement(self, replaced: Replaced) -> None:
        """A connection is left for its age, or its place."""
        self._counters.connections_replaced += 1
        age, link, by = replaced.age, replaced.link, replaced.by
        logger.info("%s: connection %d, %.0f s old, is left for connection %d", self.gateway, link, age, by)

    def vacate(self, link: int) -> None:
        if self.may_leave(link):
            for mover in self.movers:
                mover(link)

    async def wait_answered(self, connect: Callable[[], Coroutine[Any, Any, Connection]]) -> Connection:
        """A connection that works is not left for one that nobody has answered: here early data is worth nothing."""
        # Called only now: a task that is cancelled before its first step would leave it begun by nobody.
        connection = await connect()
        if connection.is_early and connection.is_alive:
            answer: asyncio.Future[None] = self._loop.create_future()

            def answered(error: BaseException | None = None) -> None:
                if not answer.done():
                    answer.set_result(None) if error is None else answer.set_exception(error)

            connection.on_open = connection.on_lost = answered
            try:
                await answer
            except BaseException as exc:
                if self.on_lost is not None and not isinstance(exc, asyncio.CancelledError):
                    self.on_lost(connection, exc)
                self._say_farewell(connection)
                raise
            if self.on_answer is not None:
                self.on_answer(connection)
        return connection

    # What happens to them.

    def _dialled(self, link: int, task: asyncio.Task[Connection]) -> None:
        del self.dials[link]
        if task.cancelled():
            error: BaseException | None = TrunkClosed("the attempt was cancelled")
        else:
            error = task.exception()
        if error is not None:
            self._failed(link, error)
        elif self.is_closing:
            self._say_farewell(task.result())
        else:
            self._connected(link, task.result())

    def _connected(self, link: int, connection: Connection) -> None:
        connection.on_credit = self._credited
        connection.on_lost = partial(self.lost, link)
        connection.on_leave = partial(self._leave, link)
        connection.on_suspect = partial(self._suspect, link)
        if not connection.is_alive:
            # It ended before anybody listened. One that was early may have a socket yet.
            self._await_end(connection)
            self._failed(link, SessionLost(f"the connection to {self.gateway} was lost at once"))
            return
        self.open[link] = connection
        early = connection.is_early
        if early:
            logger.debug("%s: connection %d begins with early data", self.gateway, link)
            connection.on_open = partial(self._answered, link)
        else:
            self._count_open(link)
        self._act(self._core.connected(link, connection, self._loop.time(), random(), early=early))
        if connection.leave is not None:
            self._leave(link, connection.leave)
        if connection.is_suspect:
            self._suspect(link, silent=True)

    def _credited(self) -> None:
        self._act(self._core.decide(self._loop.time()))

    def _count_open(self, link: int) -> None:
        counters, figures = self._counters, self.open[link].figures()
        counters.connections_opened += 1
        if figures is not None:
            counters.connections_resumed += figures.is_resumed
            counters.connections_early += figures.early is True
            counters.connections_refused_early += figures.early is False
        counters.reconnects += self._cut_off
        self._cut_off = False
        logger.info("%s: connection %d is open", self.gateway, link)

    def _answered(self, link: int) -> None:
        """The gateway has answered on a connection that was early."""
        connection = self.open.get(link)
        if connection is not None:
            self._count_open(link)
            if self.on_answer is not None:
                self.on_answer(connection)
            self._act(self._core.answered(self._loop.time()))

    def _leave(self, link: int, goaway: Goaway) -> None:
        """The gateway asks for a connection to be left. Asked again, it is only the time that may have changed."""
        known = self._core.links.get(link)
        if known is None or known.is_leaving:
            return
        reason = getattr(goaway, "reason", None)
        self._counters.goaways += reason is None
        self._elsewhere = None if goaway.to is None else Address(*goaway.to)
        within = "" if goaway.within is None else f" within {goaway.within:g} s"
        where = "" if self._elsewhere is None else f" for {self._elsewhere}"
        if reason is None:
            logger.info("%s: the gateway asks for connection %d to be left%s%s", self.gateway, link, within, where)
        else:
            # Of TCP, which asks in the gateway's place.
            logger.info("%s: connection %d is to be left: %s", self.gateway, link, reason)
        if self.on_leave is not None and link in self.open:
            self.on_leave(self.open[link])
        delay = random() * (SPREAD if goaway.within is None else min(SPREAD, goaway.within / 4))
        self._act(self._core.leave(link, self._loop.time(), delay))

    def _suspect(self, link: int, silent: bool) -> None:
        """A connection owes an answer, or has given it after all."""
        if silent:
            self._counters.connections_suspected += 1
            logger.warning("%s: connection %d does not answer, new sessions go elsewhere", self.gateway, link)
            self._act(self._core.suspect(link, self._loop.time(), random() * SUSPECT_SPREAD))
        else:
            logger.info("%s: connection %d answers again", self.gateway, link)
            self._act(self._core.heard(link, self._loop.time()))

    def replace(self, old: Collection[Connection], new: Connection, why: str) -> bool:
        """Takes a connection that was opened elsewhere, and leaves one of these for it, that with the fewest sessions.
        Returns whether it did: where they are to be left anyway, or gone, or it is, the new one is closed."""
        links = [self._core.links[number] for number, each in self.open.items() if each in old]
        staying = [link for link in links if self.stays(self.open[link.number])]
        if self.is_closing or not staying or new.leave is not None:
            self._say_farewell(new)
            return False
        link = min(staying, key=lambda each: each.sessions).number
        logger.info("%s: connection %d is replaced: %s", self.gateway, link, why)
        self._connected(self._core.adopt(link, self._loop.time()), new)
        return True

    def _failed(self, link: int, error: BaseException, *, elsewhere: bool = False) -> None:
        if self.is_closing:
            return
        self._counters.connections_failed += 1
        self._cut_off = True
        # Whoever named another address may have been wrong, or it is too late for that.
        self._elsewhere = None
        logger.warning("%s: connection %d could not be opened: %s", self.gateway, link, error)
        now, jitter = self._loop.time(), random()
        core = self._core
        self._act(
            core.lost(link, error, now, jitter, elsewhere=True) if elsewhere else core.failed(link, error, now, jitter)
        )

    def lost(self, link: int, error: BaseException) -> None:
        """A connection has ended by itself. Its sessions hear of it from their transports."""
        connection = self.open.pop(link, None)
        if connection is None:
            return
        self._counters.gone(connection.figures())
        self._await_end(connection)
        if connection.is_early:
            # It was never open, and what its sessions have sent has had no effect. Nor was any other gateway tried, so
            # what is wrong with this one is no reason to refuse anybody where there is another.
            elsewhere = self.on_lost is not None and self.on_lost(connection, error)
            self._failed(link, error, elsewhere=elsewhere)
            return
        elsewhere = False
        known = self._core.links.get(link)
        if known is not None and known.is_leaving:
            logger.info("%s: connection %d, which was to be left, has ended: %s", self.gateway, link, error)
        elif known is None or (known.is_idle and not known.is_kept):
            logger.debug("%s: connection %d, which was idle, has ended: %s", self.gateway, link, error)
        else:
            self._counters.connections_lost += 1
            self._cut_off = True
            self._elsewhere = None
            logger.warning("%s: connection %d is lost: %s", self.gateway, link, error)
            elsewhere = self.on_lost is not None and self.on_lost(connection, error)
        self._act(self._core.lost(link, error, self._loop.time(), random(), elsewhere=elsewhere))

    # Their end.

    def close(self) -> None:
        """Gives up all attempts and closes all that are open, without waiting for it."""
        self.is_closing = True
        for dial in self.dials.values():
            dial.cancel()
        close_each(partial(self._say_farewell, connection) for connection in self.open.values())
        self.open.clear()

    async def wait_closed(self, timeout: float) -> None:
        """Waits until nothing of it is left; what takes longer is stopped."""
        deadline = self._loop.time() + timeout
        # An attempt that succeeds in spite of its cancellation adds a farewell.
        while pending := {*self.dials.values(), *self.farewells}:
            _, late = await asyncio.wait(pending, timeout=max(0.0, deadline - self._loop.time()))
            if late and self._loop.time() >= deadline:
                for task in late:
                    task.cancel()
                await asyncio.wait(late, timeout=STOP_TIMEOUT)
                return

    def _say_farewell(self, connection: Connection) -> None:
        connection.on_credit = connection.on_lost = connection.on_leave = connection.on_suspect = None
        connection.on_open = None
        # First: one that fails to say goodbye is stopped with those that take too long.
        self._await_end(connection)
        connection.close()
        self._counters.gone(connection.figures())

    def _await_end(self, connection: Connection) -> None:
        """It answers late packets for a while; then its socket is closed, and who closes the trunk waits for that."""
        task = self._loop.create_task(connection.wait_closed(), name=f"pgtrunk farewell {self.gateway}")
        self.farewells.add(task)
        task.add_done_callback(self.farewells.discard)
