"""A client's connection to its gateway: socket, handshake, certificate; then streams.

The socket is connected, so that a port where nobody listens is refused at once instead of by silence. RFC 9000,
RFC 9001.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pgtrunk.errors import GatewayUnreachable, SessionLost, TrunkError

from .config import CID_LENGTH
from .control import WANTS_STATS
from .driver import ConnectionDriver
from .ending import show
from .logged import new_connection
from .roaming import Roaming
from .stages import ConnectionStages
from .timed import TimedTransport
from .trust import ClientContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic import tls
    from aioquic.quic.configuration import QuicConfiguration

    from .config import QuicLimits
    from .control import Goaway
    from .figures import Figures
    from .resumption import Resumption
    from .sockets import AddressInfo
    from .stages import StageMeter
    from .transport import StreamTransport

__all__ = ["ClientConnection"]

P = TypeVar("P", bound=asyncio.BaseProtocol)

REFUSALS = 3
"""Datagrams answered by "port unreachable", with nothing heard in between, that end an established connection ..."""

REFUSAL_TIME = 1.0
"""... when the first and the last are so many seconds apart: a gateway that restarts should not cost the connection
twice."""


class ClientConnection:
    """A QUIC connection to a gateway, which ``open`` opens; streams are opened until it is closed or lost.

    ``on_credit()`` is called when the gateway allows more streams, ``on_lost(error)`` once when the connection ends by
    itself, ``on_leave(goaway)`` when the gateway asks for the connection to be left, ``on_suspect(is_suspect)`` when it
    owes an answer and when it has given one, ``on_open()`` when the handshake of one that was early is complete. All
    may be set at any time.
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        limits: QuicLimits,
        address: AddressInfo,
        resumption: Resumption | None = None,
        connect_timeout: float | None = None,
    ) -> None:
        """``connect_timeout``: what the application has set, in seconds, of which ``open``'s deadline may be the rest;
        None: nothing."""
        self.on_open: Callable[[], None] | None = None
        self.on_credit: Callable[[], None] | None = None
        self.on_lost: Callable[[BaseException], None] | None = None
        self.on_leave: Callable[[Goaway], None] | None = None
        self.on_suspect: Callable[[bool], None] | None = None
        self.leave: Goaway | None = None
        """What the gateway has said last of leaving the connection; None: it may stay."""
        self._peer = show(address[4])
        self._connect_timeout = connect_timeout
        self._loop = asyncio.get_running_loop()
        self._sockets = Roaming(address, loop=self._loop, buffer=limits.socket_buffer)
        self._sockets.on_refused = self._on_refused
        self._sockets.on_closed = self._on_sockets_closed
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._stages: ConnectionStages | None = None
        self._refusals = 0
        self._refused_at = 0.0
        self._resumption = resumption
        self._is_returned = False
        self._give_up_at: asyncio.TimerHandle | None = None
        quic = new_connection(
            configuration=configuration if resumption is None else resumption.prepare(configuration, time.time()),
            limits=limits,
            new_cid=lambda: os.urandom(CID_LENGTH),
            make_tls=ClientContext.replace,
            session_ticket_handler=None if resumption is None else self._on_ticket,
        )
        quic.early_alpn = None if resumption is None else resumption.alpn
        self._driver = ConnectionDriver(
            quic,
            loop=self._loop,
            send=self._sockets.send,
            on_ready=self._on_ready,
            on_confirmed=self._on_confirmed,
            on_lost=self._on_driver_lost,
            on_closed=self._on_driver_closed,
            on_credit=self._on_driver_credit,
            on_goaway=self._on_driver_goaway,
            on_suspect=self._on_driver_suspect,
        )

    def __repr__(self) -> str:
        state = "alive" if self.is_alive else "closed" if self._closed.done() else "ending"
        return f"<ClientConnection {self._peer} {state} [{self.open_streams} streams]>"

    # -- state

    @property
    def stream_credit(self) -> int:
        """How many more streams may be opened right now under the gateway's MAX_STREAMS (RFC 9000 section 4.6)."""
        return self._driver.stream_credit

    @property
    def open_streams(self) -> int:
        """Streams whose protocols have not had ``connection_lost`` yet."""
        return len(self._driver.streams)

    @property
    def is_heard(self) -> bool:
        """Whether the gateway has said anything."""
        return self._driver.received > 0

    @property
    def is_alive(self) -> bool:
        """Streams can be opened: the handshake is done, or ``is_early``; and the connection is neither closed nor
        lost."""
        return self._driver.is_ready or self._driver.is_early

    @property
    def is_early(self) -> bool:
        """It was opened at once, and the handshake is not done yet; what streams say leaves as early data (0-RTT), and
        has had no effect if the connection ends before. Of one that did end before it stays true."""
        return self._is_returned and not self._is_opened

    @property
    def is_suspect(self) -> bool:
        """An answer of the gateway is overdue; see ``Keepalive``."""
        return self._driver.is_suspect

    @property
    def is_kept(self) -> bool:
        """Whether it is kept alive without streams."""
        return self._driver.keeps_idle

    @is_kept.setter
    def is_kept(self, kept: bool) -> None:
        self._driver.keeps_idle = kept

    @property
    def round_trip_time(self) -> float:
        """Smoothed, in seconds, without the gateway's acknowledgement delay."""
        return self._driver.quic._loss._rtt_smoothed

    @property
    def driver(self) -> ConnectionDriver:
        """What runs it."""
        return self._driver

    # -- what its owner does

    def open_stream(
        self, factory: Callable[[], P], *, on_closed: Callable[[BaseException | None], None] | None = None
    ) -> tuple[StreamTransport, P]:
        """Open a stream; ``on_closed`` is called once after its protocol's ``connection_lost``, with the same argument.

        Raises SessionLost where the connection is closed or lost, or the gateway allows no more streams now.
        """
        return self._driver.open_stream(factory, on_closed=on_closed)

    def close(self) -> None:
        """Close the connection: what streams have written leaves first as far as the congestion window lets it."""
        self._driver.close()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed: some round trips after ``close``, in which late packets are answered.
        Cancelled, it closes the socket at once."""
        try:
            await asyncio.shield(self._closed)
        except asyncio.CancelledError:
            self.discard()
            raise

    def figures(self) -> Figures:
        """What it is doing now."""
        return self._driver.figures()

    # -- opening

    def measure(self, meter: StageMeter, *, timings: bool) -> None:
        """Have the gateway report its part of queries, and measure with ``timings`` how long they take in all; before
        it is opened."""
        stages = self._stages = ConnectionStages(meter)
        driver = self._driver
        driver.control.features |= WANTS_STATS
        driver.control.on_stats = stages.report
        if timings:
            # Not the loop's clock: uvloop's has milliseconds.
            driver.make_transport = partial(TimedTransport, took=stages.took, clock=time.monotonic)

    async def open(self, deadline: float) -> None:
        """Connect to the one address, or leave nothing behind. Where a ticket permits early data it returns at once,
        see ``is_early``; what comes of it is told by ``on_open`` or ``on_lost``."""
        timeout = self._connect_timeout or max(0.0, deadline - self._loop.time())
        try:
            async with asyncio.timeout_at(deadline):
                await self._sockets.open(self._driver)
                self._driver.connect(self._sockets.path)
                if self._driver.is_early:
                    # On this machine the kernel knows already whether anybody listens there.
                    await asyncio.sleep(0)
                    if self._opened.done():
                        # And in a turn that takes long the whole handshake has its time.
                        self._opened.result()
                        return
                    self._is_returned = True
                    self._give_up_at = self._loop.call_at(deadline, self._give_up, timeout)
                    return
                await self._opened
        except TimeoutError as exc:
            self.discard()
            raise self._no_answer(timeout) from exc
        except OSError as exc:
            self.discard()
            if isinstance(exc, TrunkError):
                raise
            raise GatewayUnreachable(f"gateway {self._peer} cannot be reached: {exc.strerror or exc}") from exc
        except BaseException:
            self.discard()
            raise

    def _no_answer(self, timeout: float) -> GatewayUnreachable:
        return GatewayUnreachable(
            f"gateway {self._peer} did not answer within {timeout:.1f} s (connect_timeout); is UDP let through?"
        )

    def _give_up(self, timeout: float) -> None:
        self._driver.abandon(self._no_answer(timeout))

    def discard(self) -> None:
        """Say goodbye if anybody may listen, and close the socket at once."""
        self._driver.close()
        self._driver.flush()
        self._driver.abandon(None)
        self._opened.cancel()

    def _on_ready(self, driver: ConnectionDriver) -> None:
        # A gateway that asks for a certificate says only afterwards whether it takes ours.
        if driver.quic.tls._certificate_request is None:
            self._on_confirmed(driver)

    def _on_confirmed(self, driver: ConnectionDriver) -> None:
        if self._opened.done():
            return
        self._opened.set_result(None)
        self._sockets.is_fixed = False
        if self._resumption is not None:
            self._resumption.completed()
        if self._is_returned:
            self._forget_deadline()
            if self.on_open is not None:
                self.on_open()

    @property
    def _is_opened(self) -> bool:
        return self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None

    def _forget_deadline(self) -> None:
        if self._give_up_at is not None:
            self._give_up_at.cancel()
            self._give_up_at = None

    def _on_ticket(self, ticket: tls.SessionTicket) -> None:
        if self._resumption is not None:
            self._resumption.keep(ticket, self._driver.quic.tls, time.time())

    # -- from the driver

    def _on_driver_credit(self, driver: ConnectionDriver) -> None:
        if self.on_credit is not None:
            self.on_credit()

    def _on_driver_goaway(self, goaway: Goaway) -> None:
        self.leave = goaway
        if self.on_leave is not None:
            self.on_leave(goaway)

    def _on_driver_suspect(self, silent: bool) -> None:
        if silent:
            self._sockets.suspect()
        if self.on_suspect is not None:
            self.on_suspect(silent)

    def _on_driver_lost(self, driver: ConnectionDriver, error: TrunkError | None) -> None:
        self._forget_deadline()
        if self._stages is not None:
            self._stages.end()
        if not self._opened.done():
            if self._resumption is not None:
                failed_early = self._is_returned and error is not None
                self._resumption.failed(heard=self.is_heard, was_early=failed_early, now=time.time())
            if error is None or self._is_returned:
                self._opened.cancel()
            else:
                self._opened.set_exception(error)
                return
        if error is not None and self.on_lost is not None:
            self.on_lost(error)

    def _on_driver_closed(self, driver: ConnectionDriver, error: TrunkError | None) -> None:
        self._sockets.close()

    # -- from the sockets

    def _on_refused(self, error: OSError) -> None:
        """The kernel was told (ICMP) that nobody listens there; before the handshake's end it may have any reason."""
        if not self._opened.done():
            refused = isinstance(error, (ConnectionRefusedError, ConnectionResetError))
            reason = "nothing listens on that UDP port" if refused else error.strerror or str(error)
            self._driver.abandon(GatewayUnreachable(f"gateway {self._peer} refused the connection: {reason}"))
            return
        now = self._loop.time()
        if not self._refusals or self._driver.quic.heard_at > self._refused_at:
            self._refusals, self._refused_at = 0, now
        self._refusals += 1
        if self._refusals >= REFUSALS and now - self._refused_at >= REFUSAL_TIME:
            self._driver.abandon(SessionLost(f"QUIC connection with {self._peer} lost: nothing listens there any more"))

    def _on_sockets_closed(self, error: Exception | None) -> None:
        self._driver.abandon(None if error is None else SessionLost(f"the socket to {self._peer} failed: {error}"))
        if not self._closed.done():
            self._closed.set_result(None)
