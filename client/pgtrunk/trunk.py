"""The trunk: carries out what the allocation decides, with tasks, timers and QUIC connections.

Contract: a slot is held from its hand-over until the end of its stream is reported, and goes back whatever happens in
between, cancellation at any await included. Between a caller and its stream there is one await, that for the slot; the
caller's own task then opens the stream without another. It knows no asyncpg and no Postgres.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, assert_never

from pgtrunk.allocation import Allocation, Rules
from pgtrunk.decisions import Dial, HangUp, Keep, Refuse, Replaced, Vacate, WakeAt
from pgtrunk.errors import SessionLost, TrunkClosed, TrunkError, UsageError
from pgtrunk.lines import Lines
from pgtrunk.picture import picture
from pgtrunk.refusal import Limit, error_for
from pgtrunk.telemetry import Counters
from pgtrunk.waiter import SlotWaiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgtrunk.connection import Connection, Connector
    from pgtrunk.decisions import Decision
    from pgtrunk.link import Slot
    from pgtrunk.quic.driver import ConnectionDriver
    from pgtrunk.telemetry import TrunkStats

__all__ = ["CANCEL_TIMEOUT", "Opened", "Trunk"]

CLOSE_TIMEOUT = 3.0
"""Seconds that closing waits at most. A closed QUIC connection answers late packets for three probe timeouts."""

CANCEL_TIMEOUT = 10.0
"""Seconds that a CancelRequest may take, the wait for its stream included. asyncpg itself would wait for ever."""

TCP_ROUND_TRIPS = 3
"""What a session waits for before its login: TCP, SSLRequest, TLS 1.3. One less with sslnegotiation=direct."""

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
        self._core: Allocation[SlotWaiter] = Allocation(rules)
        self.lines = Lines(gateway, connect, self._core, self.counters, self._act)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._numbers = count(1)
        self._cancel_timers: dict[Slot, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None
        self._closer: asyncio.Task[None] | None = None

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
            connection = self.lines.open.get(slot.link)
            if connection is not None and connection.is_alive:
                return self._open(connection, slot, factory, waiter)
            # The connection ended between the hand-over and this task's turn. The core must hear of it before the slot
            # is asked for again, or it would hand over the same one for ever.
            self.lines.lost(slot.link, SessionLost(f"the connection to {self.gateway} was lost"))
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
        quic = transport.get_extra_info("quic_connection")
        if quic is None:
            return 0
        if transport.get_extra_info("early"):
            # Only then it is known whether the gateway has taken the early data, or has it once more.
            quic.call_when_confirmed(partial(self._began_early, quic))
            return 0
        link = self._core.links.get(slot.link)
        has_waited = link is not None and link.since >= waiter.since
        return TCP_ROUND_TRIPS - has_waited

    def _began_early(self, quic: ConnectionDriver) -> None:
        self.counters.round_trips_saved += TCP_ROUND_TRIPS - (not quic.took_early)

    def _stream_closed(self, slot: Slot, error: BaseException | None) -> None:
        if slot.session:
            if error is None:
                self.counters.streams_closed += 1
            else:
                self.counters.streams_lost += 1
        elif (timer := self._cancel_timers.pop(slot, None)) is not None:
            timer.cancel()
        self._release(slot)

    def _release(self, slot: Slot) -> None:
        self._act(self._core.release(slot, self._loop.time()))

    def _expire(self, waiter: SlotWaiter) -> None:
        self._act(self._core.expire(waiter, self._loop.time()))

    # Decisions.

    def _act(self, decisions: Iterable[Decision[SlotWaiter]]) -> None:
        for decision in decisions:
            match decision:
                case Dial():
                    self.lines.dial(decision)
                case HangUp():
                    self.lines.hang_up(decision)
                case Keep(link, kept):
                    self.lines.keep(link, kept)
                case Replaced():
                    self.lines.tell_of_replacement(decision)
                case Vacate(link):
                    # In a turn of its own: what they do comes back here.
                    self._loop.call_soon(self.lines.vacate, link)
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

    # The end.

    async def close(self) -> None:
        """Ends everything: callers that wait get `TrunkClosed`, sessions `SessionLost`; waits at most `CLOSE_TIMEOUT`.

        What sessions have written leaves first, as far as the congestion window lets it. All of it has begun before
        the first await, so cancelling the caller stops nothing; a second call waits for the first.
        """
        self.check_place()
        if self._closer is None:
            self._act(self._core.shut(self._loop.time()))
            self.lines.close()
            self._closer = self._loop.create_task(
                self.lines.wait_closed(CLOSE_TIMEOUT), name=f"pgtrunk close {self.gateway}"
            )
        await asyncio.shield(self._closer)

    # What it looks like.

    def stats(self) -> TrunkStats:
        """May be called from any thread."""
        return picture(self._core, self.counters, self.lines.open, len(self.lines.farewells))

    @property
    def summary(self) -> str:
        """Its state and what is open, in use and waiting, as `repr` shows it."""
        return f"{self.state} {self._core}"

    def __repr__(self) -> str:
        return f"<Trunk {self.gateway} {self.summary}>"
