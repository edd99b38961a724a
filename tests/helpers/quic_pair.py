"""Two ends of a QUIC connection over a simulated link, in virtual time.

The real drivers and state machines; the loop, the wire and the clock are ours. Nothing sleeps, and each run repeats
exactly.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import ssl
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from aioquic.quic.connection import stream_is_unidirectional

from helpers.certificates import SERVER_AUTH, Identity, authority
from pgtrunk.quic.config import ByteBudget, QuicLimits, quic_configuration
from pgtrunk.quic.connection import Connection
from pgtrunk.quic.control import CONTROL_ALPN
from pgtrunk.quic.driver import ConnectionDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic import tls
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.tls import SessionTicket

    from pgtrunk.quic.stream import Stream
    from pgtrunk.quic.transport import StreamTransport


@cache
def identities() -> tuple[Identity, Identity]:
    """A CA, and a server certificate of it for this machine."""
    ca = authority()
    return ca, ca.issue("gateway", usage=(SERVER_AUTH,), names=("localhost", "127.0.0.1", "::1"))


def sessions_of(quic: Connection) -> dict[int, Stream]:
    """The streams of a connection, less those of control, which end with it."""
    return {number: stream for number, stream in quic._streams.items() if not stream_is_unidirectional(number)}


def trust(configuration: QuicConfiguration) -> None:
    """Make a client trust ``identities()``."""
    configuration.verify_mode = ssl.CERT_REQUIRED
    configuration.server_name = "localhost"
    configuration.load_verify_locations(cadata=identities()[0].pem)


def present(configuration: QuicConfiguration) -> None:
    """Make a server show its certificate of ``identities()``."""
    server = identities()[1]
    configuration.certificate, configuration.private_key = server.certificate, server.key


CLIENT_ADDR, SERVER_ADDR = ("192.0.2.1", 40000), ("192.0.2.2", 6432)


class VirtualLoop:
    """As much of an event loop as a driver uses; time passes only when nothing is left to do."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._soon: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = itertools.count()
        self.failures: list[dict[str, Any]] = []

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, cast("asyncio.AbstractEventLoop", self), context)
        self._soon.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, cast("asyncio.AbstractEventLoop", self), context)
        heapq.heappush(self._timers, (when, next(self._count), handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    @property
    def timers(self) -> int:
        """Timers that are still set."""
        return sum(not handle.cancelled() for _, _, handle in self._timers)

    def tick(self, until: float) -> bool:
        """Run what is due; with nothing due, let time pass to the next timer. False when ``until`` is reached."""
        if self._soon:
            due, self._soon = self._soon, []
            for handle in due:
                if not handle.cancelled():
                    handle._run()
            return True
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers or self._timers[0][0] > until:
            self._now = until
            return False
        # Real clocks never show exactly the time that a timer was set to, and aioquic compares differences of them. As
        # in a real loop, all that is due runs before anything that it schedules.
        self._now = max(self._now, self._timers[0][0] + 1e-7)
        while self._timers and self._timers[0][0] <= self._now:
            self._soon.append(heapq.heappop(self._timers)[2])
        return True


@dataclass
class Link:
    """One direction of the wire."""

    loop: VirtualLoop
    deliver: Callable[[bytes], None]
    rng: random.Random
    delay: float = 0.015
    loss: float = 0.0
    duplicates: float = 0.0
    jitter: float = 0.0
    rate: float = 0.0
    """Octets per second; 0 is no limit."""
    queue: int = 1 << 30
    """Octets that wait for the bottleneck before one is dropped."""
    drop: Callable[[bytes], bool] = lambda data: False
    sent: int = 0
    octets: int = 0
    dropped: int = 0
    _free_at: float = 0.0

    def send(self, data: bytes, deliver: Callable[[bytes], None] | None = None) -> None:
        self.sent += 1
        self.octets += len(data)
        now = self.loop.time()
        start = now
        if self.rate:
            start = max(now, self._free_at)
            if (start - now) * self.rate > self.queue:
                self.dropped += 1
                return
            start += (len(data) + 28) / self.rate
            self._free_at = start
        if self.drop(data) or self.rng.random() < self.loss:
            self.dropped += 1
            return
        copies = 2 if self.rng.random() < self.duplicates else 1
        for _ in range(copies):
            self.loop.call_at(start + self.delay + self.rng.random() * self.jitter, deliver or self.deliver, data)


class Recorder(asyncio.Protocol):
    """Remembers all that a transport tells it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.chunks: list[bytes] = []
        self.calls: list[str] = []
        self.lost: list[BaseException | None] = []
        self.transport: StreamTransport = None  # type: ignore[assignment]
        self.keep_open = False
        self.on_data: Callable[[bytes], None] = lambda data: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data
        self.data += data
        self.chunks.append(data)
        self.on_data(data)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.lost.append(exc)


class Echo(Recorder):
    """Sends back all that it gets."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.transport.is_closing():
            self.transport.write(data)


@dataclass
class End:
    """One end, and what its driver said."""

    driver: ConnectionDriver
    make: Callable[[], asyncio.BaseProtocol] | None = None
    """Makes the protocols of accepted streams."""
    accepted: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


class Pair:
    """A client and a server. ``accept`` makes the protocols of the server's streams."""

    def __init__(
        self,
        *,
        client: QuicLimits | None = None,
        server: QuicLimits | None = None,
        accept: Callable[[], asyncio.BaseProtocol] = Recorder,
        budget: ByteBudget | None = None,
        seed: int = 1,
        beside: Pair | None = None,
        resume: tuple[SessionTicket | None, Callable[[SessionTicket], object]] | None = None,
        make_tls: Callable[[tls.Context], tls.Context] | None = None,
        **link: Any,
    ) -> None:
        """``beside``: another pair, whose loop and link this one shares. ``resume``: the ticket that the client begins
        with, and what is done with those it gets. ``make_tls``: of the server."""
        self.loop: VirtualLoop = VirtualLoop() if beside is None else beside.loop
        self._limits = client, server
        rng = random.Random(seed)
        configuration = quic_configuration(client or QuicLimits(max_streams=0), is_client=True)
        trust(configuration)
        ticket, keep = resume or (None, None)
        configuration.session_ticket = ticket
        quic = Connection(
            configuration=configuration,
            limits=client or QuicLimits(max_streams=0),
            new_cid=lambda: rng.randbytes(8),
            session_ticket_handler=keep,
        )
        quic.early_alpn = CONTROL_ALPN

        def up(data: bytes) -> None:
            self.server.driver.receive(data, CLIENT_ADDR)

        def down(data: bytes) -> None:
            self.client.driver.receive(data, SERVER_ADDR)

        self.up: Link = Link(self.loop, up, rng, **link) if beside is None else beside.up
        self.down: Link = Link(self.loop, down, rng, **link) if beside is None else beside.down
        self.client: End = self._end(quic, self.up, None if beside is None else up, None)
        configuration = quic_configuration(server or QuicLimits(), is_client=False)
        present(configuration)
        quic = Connection(
            configuration=configuration,
            limits=server or QuicLimits(),
            budget=budget,
            new_cid=lambda: rng.randbytes(8),
            make_tls=make_tls,
            original_destination_connection_id=quic.original_destination_connection_id,
        )
        self.server: End = self._end(quic, self.down, None if beside is None else down, accept)

    def beside(self, *, accept: Callable[[], asyncio.BaseProtocol], seed: int) -> Pair:
        """Another connection over the same link, with the same limits."""
        client, server = self._limits
        return Pair(client=client, server=server, accept=accept, seed=seed, beside=self)

    def _end(
        self,
        quic: Connection,
        link: Link,
        deliver: Callable[[bytes], None] | None,
        accept: Callable[[], asyncio.BaseProtocol] | None,
    ) -> End:
        def accepted(transport: StreamTransport) -> asyncio.BaseProtocol:
            assert end.make is not None
            end.accepted.append(end.make())
            protocol: asyncio.BaseProtocol = end.accepted[-1]
            return protocol

        driver = ConnectionDriver(
            quic,
            loop=cast("asyncio.AbstractEventLoop", self.loop),
            send=lambda data, addr: link.send(data, deliver),
            accept=accepted,
            on_ready=lambda driver: end.said.append("ready"),
            on_lost=lambda driver, error: end.said.append("lost"),
            on_closed=lambda driver, error: end.said.append("closed"),
            on_credit=lambda driver: end.said.append("credit"),
        )
        end = End(driver, accept)
        return end

    def connect(self) -> Pair:
        self.client.driver.connect(SERVER_ADDR)
        self.until(lambda: self.client.driver.quic._handshake_confirmed)
        return self

    def until(self, done: Callable[[], bool], limit: float = 60.0) -> None:
        """Run until ``done``, for at most ``limit`` seconds of virtual time."""
        end = self.loop.time() + limit
        while not done():
            assert self.loop.tick(end), f"not done after {limit} s"

    def run(self, seconds: float) -> None:
        end = self.loop.time() + seconds
        while self.loop.tick(end):
            pass

    def open(self, factory: Callable[[], Any] = Recorder) -> Any:
        """Open a stream from the client; return its protocol."""
        return self.client.driver.open_stream(factory)[1]

    def close(self) -> None:
        self.client.driver.close()
        self.run(2.0)
