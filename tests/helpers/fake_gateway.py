"""A gateway without QUIC: what a trunk dials in tests, with streams that are pipes in memory.

Each dial takes the next step of a script: a connection, an error, or nothing until the test says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from pgtrunk.errors import SessionLost

if TYPE_CHECKING:
    from pgtrunk.address import Address
    from pgtrunk.quic.control import Goaway
    from pgtrunk.quic.figures import Figures

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Sink(asyncio.Protocol):
    """A protocol that keeps what it is told."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.data = b""
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set_result(exc)


class PipeEnd(asyncio.Transport):
    """One end of a stream in memory. Everything reaches the other end, or the protocol, in a later turn of the loop."""

    def __init__(self, on_closed: Callable[[BaseException | None], None] | None = None) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.peer: PipeEnd
        self.protocol: Any = None
        self.done = False
        self._closing = False
        self._on_closed = on_closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol  # type: ignore[no-any-return]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.loop.call_soon(self.peer.deliver, bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def deliver(self, data: bytes) -> None:
        if not self._closing:
            self.protocol.data_received(data)

    def deliver_eof(self) -> None:
        if not self._closing and not self.protocol.eof_received():
            self.close()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self.loop.call_soon(self.peer.deliver_eof)
            self.end(None)

    def abort(self) -> None:
        if not self.done:
            self.loop.call_soon(self.peer.end, SessionLost("stream was reset"))
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        if not self.done:
            self.done = self._closing = True
            self.loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: BaseException | None) -> None:
        self.protocol.connection_lost(error)
        if self._on_closed is not None:
            self._on_closed(error)


class FakeConnection:
    """A connection of a `FakeGateway`: as much of `pgtrunk.connection.Connection` as a trunk uses."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.gateway = gateway
        self.on_credit: Callable[[], None] | None = None
        self.on_lost: Callable[[BaseException], None] | None = None
        self.on_leave: Callable[[Goaway], None] | None = None
        self.leave: Goaway | None = None
        self.on_suspect: Callable[[bool], None] | None = None
        self.is_suspect = False
        self.on_open: Callable[[], None] | None = None
        self.is_early = False
        self.is_kept = False
        self.is_alive = True
        self.allowed = gateway.max_streams
        self.streams: list[PipeEnd] = []
        self.closed = asyncio.Event()
        self.was_stopped = False

    @property
    def open_streams(self) -> int:
        return sum(not stream.done for stream in self.streams)

    @property
    def stream_credit(self) -> int:
        return self.allowed - self.open_streams

    def open_stream(
        self, factory: Callable[[], P], *, on_closed: Callable[[BaseException | None], None]
    ) -> tuple[asyncio.Transport, P]:
        assert self.is_alive, "a stream was asked of a connection that is gone"
        assert self.stream_credit > 0, "a stream was opened beyond the gateway's MAX_STREAMS"
        ours, theirs = PipeEnd(on_closed), PipeEnd()
        ours.peer, theirs.peer = theirs, ours
        protocol = factory()
        self.streams.append(ours)
        for end, its in ((ours, protocol), (theirs, self.gateway.accept())):
            end.set_protocol(its)
            its.connection_made(end)
        return ours, protocol

    def figures(self) -> Figures | None:
        return None

    def allow(self, streams: int) -> None:
        """The gateway changes how many streams it allows."""
        self.allowed = streams
        if self.on_credit is not None:
            self.on_credit()

    def send_away(self, goaway: Goaway) -> None:
        """The gateway asks for the connection to be left."""
        self.leave = goaway
        if self.on_leave is not None:
            self.on_leave(goaway)

    def answer(self) -> None:
        """The gateway answers on a connection that was early."""
        self.is_early = False
        if self.on_open is not None:
            self.on_open()

    def suspect(self, silent: bool = True) -> None:
        """The gateway owes an answer, or has given one again."""
        self.is_suspect = silent
        if self.on_suspect is not None:
            self.on_suspect(silent)

    def lose(self, reason: str = "idle for 10 s") -> None:
        """The connection ends by itself."""
        self._end(SessionLost(reason))
        if self.on_lost is not None:
            self.on_lost(SessionLost(reason))

    def close(self) -> None:
        self._end(SessionLost("the connection was closed"))

    async def wait_closed(self) -> None:
        try:
            await self.closed.wait()
        except asyncio.CancelledError:
            self.was_stopped = True
            raise

    def _end(self, error: SessionLost) -> None:
        self.is_alive = False
        for stream in self.streams:
            stream.peer.end(error)
            stream.end(error)
        if not self.gateway.lingers:
            self.closed.set()


class FakeGateway:
    """Makes connections as its ``script`` says, and afterwards always.

    A step is an exception, which the dial raises; a future, which the dial awaits first; or None.
    """

    def __init__(self, accept: Callable[[], asyncio.BaseProtocol] | None = None, *, max_streams: int = 1000) -> None:
        self.accept: Callable[[], Any] = accept or Sink
        self.max_streams = max_streams
        self.script: deque[BaseException | asyncio.Future[None] | None] = deque()
        self.connections: list[FakeConnection] = []
        self.makes: Callable[[FakeGateway], FakeConnection] = FakeConnection
        self.dials = 0
        self.dialled: list[Address | None] = []
        """Where to: None is its own address."""
        self.lingers = False
        """Whether closed connections never report their end."""

    async def connect(self, at: Address | None = None) -> FakeConnection:
        self.dials += 1
        self.dialled.append(at)
        step = self.script.popleft() if self.script else None
        if isinstance(step, BaseException):
            raise step
        if step is not None:
            await step
        # A handshake takes a turn of the loop at least.
        await asyncio.sleep(0)
        connection = self.makes(self)
        self.connections.append(connection)
        return connection

    @property
    def open_streams(self) -> int:
        return sum(connection.open_streams for connection in self.connections)
