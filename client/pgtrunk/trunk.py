"""The trunk: carries out what the allocation decides, with tasks, timers and QUIC connections.

Contract: a slot is held from its hand-over until the end of its stream is reported, and goes back whatever happens in
between, cancellation at any await included. Between a caller and its stream there is one await, that for the slot; the
caller's own task then opens the stream without another. It knows no asyncpg and no Postgres.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from itertools import count
from random import random
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, assert_never

from pgtrunk.address import Address
from pgtrunk.allocation import Allocation, Rules
from pgtrunk.decisions import Dial, HangUp, Keep, Refuse, Replaced, Vacate, WakeAt
from pgtrunk.errors import SessionLost, TrunkClosed, TrunkError, UsageError
from pgtrunk.picture import picture
from pgtrunk.refusal import Limit, error_for
from pgtrunk.telemetry import Counters
from pgtrunk.waiter import SlotWaiter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pgtrunk.connection import Connection, Connector
    from pgtrunk.decisions import Decision
    from pgtrunk.link import Slot
    from pgtrunk.quic.control import Goaway
    from pgtrunk.telemetry import TrunkStats

__all__ = ["CANCEL_TIMEOUT", "Opened", "Trunk"]

logger = logging.getLogger("pgtrunk")

CLOSE_TIMEOUT = 3.0
"""Seconds that closing waits at most. A closed QUIC connection answers late packets for three probe timeouts."""

CANCEL_TIMEOUT = 10.0
"""Seconds that a CancelRequest may take, the wait for its stream included. asyncpg itself would wait for ever."""

TCP_ROUND_TRIPS = 3
"""What a session waits for before its login: TCP, SSLRequest, TLS 1.3. One less with sslnegotiation=direct."""

SPREAD = 0.5
"""Seconds within which the clients of a gateway that sends them away come to the next one, at random; less where there
is little time to leave."""

SUSPECT_SPREAD = 1.0
"""Seconds within which clients whose connection does not answer open another one, at random, where nobody waits for it.
More than above: a gateway that was too busy to answer has all of them at once."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Opened(NamedTuple, Generic[P]):
    """A stream, its protocol, and the number of the link that carries it."""

    transport: asyncio.Transport
    protocol: P
    link: int


class Trunk:
    """The QUIC connections to one gateway, and the callers that wait for a stream. Of one loop, in one process."""

    def __init__(self, gateway: str, rules: Rules, connect: Connector) -> None:
        self.gateway = gateway
        self.counters = Counters()
        self._connect = connect
        self._core: Allocation[SlotWaiter] = Allocation(rules)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._numbers = count(1)
        self._connections: dict[int, Connection] = {}
        self._dials: dict[int, asyncio.Task[Connection]] = {}
        self._farewells: set[asyncio.Task[None]] = set()
        self._cancel_timers: dict[Slot, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None
        self._closer: asyncio.Task[None] | None = None
        self._elsewhere: Address | None = None
        self._cut_off = False
        """Whether a connection was lost, or not to be had, and none has come since."""
        self.movers: list[Callable[[int], None]] = []
        """Called with the number of a link whose idle sessions may move from now on, see `may_leave`."""
        self.on_lost: Callable[[Connection, BaseException], bool] | None = None
        """Called when a connection is lost that was in use; returns whether there is somewhere else to go at once."""
        self.on_leave: Callable[[Connection], None] | None = None
        """Called when the gateway has asked for a connection to be left."""
        self.on_answer: Callable[[Connection], None] | None = None
        """Called when the gateway has answered on a connection that was taken to be open before (``is_early``)."""

    def check(self) -> None:
        """Raises `UsageError` on another loop or after a fork, `TrunkClosed` once `close` was called."""
        self.check_place()
        if self._closer is not None:
            raise TrunkClosed(f"the trunk to {self.gateway} is closed")

    def check_place(self) -> None:
        """Raises `UsageError` on another loop or after a fork."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"the trunk to {self.gateway} belongs to process {self._pid}, and this is {os.getpid()}: "
                "QUIC connections do not survive a fork, so open a StreamManager in each process, after the fork"
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(f"the trunk to {self.gateway} is used without a running event loop") from None
        if loop is not self._loop:
            raise UsageError(
                f"the trunk to {self.gateway} was opened on another event loop: open a StreamManager on each loop"
            )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self._closer is not None

    @property
    def state(self) -> str:
        if self._closer is None:
            return "open"
        return "closed" if self._closer.done() else "closing"

    def start(self) -> None:
        """Opens ``min_connections``, in the background."""
        self._look_again()

    # Streams.

    async def open_stream(self, factory: Callable[[], P], limit: Limit, *, link: int | None = None) -> Opened[P]:
        """Opens a stream when one is free, waiting at most until the limit's deadline.

        With ``link`` it is a cancel: it goes to that link, outside the cap. Raises `AcquireTimeout`,
        `GatewayUnreachable`, `CertificateError`, `TrunkClosed`, `SessionLost` (a cancel whose session is gone).
        """
        waiter = SlotWaiter(next(self._numbers), link, limit, self._loop.time(), self._loop)
        while True:
            try:
                slot = await self._slot(waiter)
            except TrunkError:
                self.counters.acquires_failed += 1
                raise
            connection = self._connections.get(slot.link)
            if connection is not None and connection.is_alive:
                return self._open(connection, slot, factory, waiter)
            # The connection ended between the hand-over and this task's turn. The core must hear of it before the slot
            # is asked for again, or it would hand over the same one for ever.
            self._lost(slot.link, SessionLost(f"the connection to {self.gateway} was lost"))
            waiter.again()

    async def _slot(self, waiter: SlotWaiter) -> Slot:
        self._act(self._core.enqueue(waiter, self._loop.time()))
        if waiter.future.done():
            return waiter.future.result()
        timer = self._loop.call_at(waiter.limit.deadline, self._expire, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            slot = waiter.leftover()
            if slot is not None:
                self._release(slot)
            else:
                self._act(self._core.withdraw(waiter, self._loop.time()))
            raise
        finally:
            timer.cancel()

    def _open(self, connection: Connection, slot: Slot, factory: Callable[[], P], waiter: SlotWaiter) -> Opened[P]:
        try:
            transport, protocol = connection.open_stream(factory, on_closed=partial(self._stream_closed, slot))
        except BaseException:
            # The factory is the caller's, and may raise anything.
            self._release(slot)
            raise
        self._core.opened(slot)
        if slot.session:
            self.counters.streams_opened += 1
            self.counters.acquired(self._loop.time() - waiter.since)
            self.counters.round_trips_saved += self._saved(transport, slot, waiter)
        else:
            self.counters.cancels_sent += 1
            # asyncpg waits, without a limit of its own, until the gateway closes the stream of a cancel.
            self._cancel_timers[slot] = self._loop.call_at(waiter.limit.deadline, transport.abort)
        return Opened(transport, protocol, slot.link)

    def _saved(self, transport: asyncio.Transport, slot: Slot, waiter: SlotWaiter) -> int:
        """Round trips that opening this session would have taken more over TCP: the three of TCP, SSLRequest and TLS,
        less the one of a handshake that it waited for."""
        if transport.get_extra_info("quic_connection") is None:
            return 0
        link = self._core.links.get(slot.link)
        has_waited = link is not None and link.since >= waiter.since and not transport.get_extra_info("early")
        return TCP_ROUND_TRIPS - has_waited

    def _stream_closed(self, slot: Slot, error: BaseException | None) -> None:
        if slot.session:
            if error is None:
                self.counters.streams_closed += 1
            else:
                self.counters.streams_lost += 1
        elif (timer := self._cancel_timers.pop(slot, None)) is not None:
            timer.cancel()
        self._release(slot)

    def is_leaving(self, link: int) -> bool:
        """Whether this link is to be left, by the gateway's wish or for its age."""
        known = self._core.links.get(link)
        return known is not None and known.is_leaving

    def may_leave(self, link: int) -> bool:
        """Whether this link is to be left or owes an answer, and another one is ready."""
        return self._closer is None and self._core.may_leave(link)

    def _release(self, slot: Slot) -> None:
        self._act(self._core.release(slot, self._loop.time()))

    def _expire(self, waiter: SlotWaiter) -> None:
        self._act(self._core.expire(waiter, self._loop.time()))

    # Decisions.

    def _act(self, decisions: Iterable[Decision[SlotWaiter]]) -> None:
        for decision in decisions:
            match decision:
                case Dial():
                    self._dial(decision)
                case HangUp():
                    self._hang_up(decision)
                case Keep(link, kept):
                    self._connections[link].is_kept = kept
                case Replaced():
                    self.counters.connections_replaced += 1
                    logger.info(
                        "%s: connection %d, %.0f s old, is left for connection %d",
                        self.gateway, decision.link, decision.age, decision.by,
                    )  # fmt: skip
                case Vacate(link):
                    # In a turn of its own: what they do comes back here.
                    self._loop.call_soon(self._vacate, link)
                case Refuse(waiter, why):
                    waiter.refuse(error_for(why, waiter.limit, self.gateway))
                case WakeAt(when):
                    self._arm(when)
                case _:
                    assert_never(decision)

    def _arm(self, when: float | None) -> None:
        if when == self._wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = when
        self._timer = None if when is None else self._loop.call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = self._wake_at = None
        self._look_again()

    def _look_again(self) -> None:
        self._act(self._core.decide(self._loop.time()))

    # Connections.

    def _dial(self, dial: Dial) -> None:
        logger.debug("%s: opening connection %d (%s)", self.gateway, dial.link, dial)
        task = self._loop.create_task(self._connect(self._elsewhere), name=f"pgtrunk dial {self.gateway} {dial.link}")
        self._dials[dial.link] = task
        task.add_done_callback(partial(self._dialled, dial.link))

    def _dialled(self, link: int, task: asyncio.Task[Connection]) -> None:
        del self._dials[link]
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
        connection.on_credit = self._look_again
        connection.on_lost = partial(self._lost, link)
        connection.on_leave = partial(self._leave, link)
        connection.on_suspect = partial(self._suspect, link)
        if not connection.is_alive:
            # It ended before anybody listened.
            self._failed(link, SessionLost(f"the connection to {self.gateway} was lost at once"))
            return
        self._connections[link] = connection
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

    def _count_open(self, link: int) -> None:
        self.counters.connections_opened += 1
        self.counters.reconnects += self._cut_off
        self._cut_off = False
        logger.info("%s: connection %d is open", self.gateway, link)

    def _answered(self, link: int) -> None:
        """The gateway has answered on a connection that was early."""
        connection = self._connections.get(link)
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
        self.counters.goaways += 1
        self._elsewhere = None if goaway.to is None else Address(*goaway.to)
        within = "" if goaway.within is None else f" within {goaway.within:g} s"
        where = "" if self._elsewhere is None else f" for {self._elsewhere}"
        logger.info("%s: the gateway asks for connection %d to be left%s%s", self.gateway, link, within, where)
        if self.on_leave is not None and link in self._connections:
            self.on_leave(self._connections[link])
        delay = random() * (SPREAD if goaway.within is None else min(SPREAD, goaway.within / 4))
        self._act(self._core.leave(link, self._loop.time(), delay))

    def _suspect(self, link: int, silent: bool) -> None:
        """A connection owes an answer, or has given it after all."""
        if silent:
            self.counters.connections_suspected += 1
            logger.warning("%s: connection %d does not answer, new sessions go elsewhere", self.gateway, link)
            self._act(self._core.suspect(link, self._loop.time(), random() * SUSPECT_SPREAD))
        else:
            logger.info("%s: connection %d answers again", self.gateway, link)
            self._act(self._core.heard(link, self._loop.time()))

    def stays(self, connection: Connection) -> bool:
        """Whether a connection is neither to be left nor about to be replaced, as far as is known. May be called from
        any thread."""
        links = list(self._core.links.values())
        number = next((number for number, each in list(self._connections.items()) if each is connection), -1)
        return not any(link.replaces == number or (link.is_leaving and link.number == number) for link in links)

    @property
    def has_room_to_move(self) -> bool:
        """Whether one more connection may be replaced: what cannot move piles up on those that are to be left."""
        return not self.is_closing and len(self._core.links.leaving) < self._core.rules.connections

    def replace(self, old: Collection[Connection], new: Connection, why: str) -> bool:
        """Takes a connection that was opened elsewhere, and leaves one of these for it, that with the fewest sessions.
        Returns whether it did: where they are to be left anyway, or gone, the new one is closed."""
        links = [self._core.links[number] for number, each in self._connections.items() if each in old]
        staying = [link for link in links if self.stays(self._connections[link.number])]
        if self.is_closing or not staying:
            self._say_farewell(new)
            return False
        link = min(staying, key=lambda each: each.sessions).number
        logger.info("%s: connection %d is replaced: %s", self.gateway, link, why)
        self._connected(self._core.adopt(link, self._loop.time()), new)
        return True

    def _vacate(self, link: int) -> None:
        if self.may_leave(link):
            for mover in self.movers:
                mover(link)

    def _failed(self, link: int, error: BaseException) -> None:
        if self.is_closing:
            return
        self.counters.connections_failed += 1
        self._cut_off = True
        # Whoever named another address may have been wrong, or it is too late for that.
        self._elsewhere = None
        logger.warning("%s: connection %d could not be opened: %s", self.gateway, link, error)
        self._act(self._core.failed(link, error, self._loop.time(), random()))

    def _lost(self, link: int, error: BaseException) -> None:
        """A connection has ended by itself. Its sessions hear of it from their transports."""
        connection = self._connections.pop(link, None)
        if connection is None:
            return
        self.counters.gone(connection.figures())
        if connection.is_early:
            # It was never open, and what its sessions have sent has had no effect.
            if self.on_lost is not None:
                self.on_lost(connection, error)
            self._failed(link, error)
            return
        elsewhere = False
        known = self._core.links.get(link)
        if known is not None and known.is_leaving:
            logger.info("%s: connection %d, which was to be left, has ended: %s", self.gateway, link, error)
        elif known is None or known.is_idle:
            logger.debug("%s: connection %d, which was idle, has ended: %s", self.gateway, link, error)
        else:
            self.counters.connections_lost += 1
            self._cut_off = True
            self._elsewhere = None
            logger.warning("%s: connection %d is lost: %s", self.gateway, link, error)
            elsewhere = self.on_lost is not None and self.on_lost(connection, error)
        self._act(self._core.lost(link, error, self._loop.time(), random(), elsewhere=elsewhere))

    def _hang_up(self, hang_up: HangUp) -> None:
        logger.debug("%s: closing connection %d, idle for %.1f s", self.gateway, hang_up.link, hang_up.idle)
        self._say_farewell(self._connections.pop(hang_up.link))

    def _say_farewell(self, connection: Connection) -> None:
        connection.on_credit = connection.on_lost = connection.on_leave = connection.on_suspect = None
        connection.on_open = None
        connection.close()
        self.counters.gone(connection.figures())
        task = self._loop.create_task(connection.wait_closed(), name=f"pgtrunk farewell {self.gateway}")
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    # The end.

    async def close(self) -> None:
        """Ends everything: callers that wait get `TrunkClosed`, sessions `SessionLost`; waits at most `CLOSE_TIMEOUT`.

        What sessions have written leaves first, as far as the congestion window lets it. All of it has begun before
        the first await, so cancelling the caller stops nothing; a second call waits for the first.
        """
        self.check_place()
        if self._closer is None:
            self._act(self._core.shut(self._loop.time()))
            for dial in self._dials.values():
                dial.cancel()
            self._closer = self._loop.create_task(self._wait_closed(), name=f"pgtrunk close {self.gateway}")
            for connection in self._connections.values():
                self._say_farewell(connection)
            self._connections.clear()
        await asyncio.shield(self._closer)

    async def _wait_closed(self) -> None:
        deadline = self._loop.time() + CLOSE_TIMEOUT
        # An attempt that succeeds in spite of its cancellation adds a farewell, so these come second.
        for pending in (set(self._dials.values()), self._farewells):
            if pending:
                _, late = await asyncio.wait(pending, timeout=deadline - self._loop.time())
                for task in late:
                    task.cancel()

    # What it looks like.

    def stats(self) -> TrunkStats:
        """May be called from any thread."""
        return picture(self._core, self.counters, self._connections, len(self._farewells))

    @property
    def summary(self) -> str:
        """Its state and what is open, in use and waiting, as `repr` shows it."""
        return f"{self.state} {self._core}"

    def __repr__(self) -> str:
        return f"<Trunk {self.gateway} {self.summary}>"
