"""A Postgres that speaks one version of the protocol, and gives the key that it is told to.

It lets everybody in. Queries are answered at once, but for ``sleep``, which runs until it is cancelled, or woken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import PROTOCOL_3_2, CancelRequest, SSLRequest, StartupMessage, parse_startup

__all__ = ["SLEEP", "ProtocolServer", "protocol_server"]

SLEEP = frontend.query(b"sleep")
_SETTINGS = {"server_version": "18.0", "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "TimeZone": "UTC"}
_CANCELLED = backend.error("57014", "canceling statement due to user request")


@dataclass
class ProtocolServer:
    """``newest``: what it speaks. Who asks for more is told so, unless one of the following is given."""

    newest: int = PROTOCOL_3_2
    turns_down: bytes | None = None
    """Says this to such a startup packet, and closes the connection; b"": it only closes it."""
    hangs: bool = False
    """Says nothing to it, and waits."""
    pid: int = 7
    secret: bytes | None = b"1234"
    """None: it gives no key."""
    port: int = 0
    asked: list[int] = field(default_factory=list)
    """The versions in the startup packets that came."""
    cancels: list[CancelRequest] = field(default_factory=list)
    sleeping: dict[asyncio.Event, bytes] = field(default_factory=dict)
    """Queries that run, and how each of them ends."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def target(self) -> str:
        """How an entry of [databases] leads here."""
        return f"host=127.0.0.1 port={self.port} user=app password=secret"

    def wake(self) -> None:
        """What sleeps comes to its end."""
        for event in self.sleeping:
            event.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def close(self) -> None:
        """Ends all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                packet, rest = await _startup(reader, writer)
                if isinstance(packet, CancelRequest):
                    self._cancel(packet)
                elif self._begin(packet, writer):
                    await self._talk(reader, writer, rest)
                elif self.hangs:
                    await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _cancel(self, request: CancelRequest) -> None:
        self.cancels.append(request)
        if (request.pid, request.secret) == (self.pid, self.secret):
            for event in self.sleeping:
                self.sleeping[event] = _CANCELLED
            self.wake()

    def _begin(self, packet: StartupMessage, writer: asyncio.StreamWriter) -> bool:
        """Whether the session goes on."""
        self.asked.append(packet.protocol)
        if packet.protocol > self.newest:
            if self.hangs:
                return False
            if self.turns_down is not None:
                writer.write(self.turns_down)
                return False
            writer.write(backend.negotiate_protocol(self.newest, list(packet.options)))
        welcome = backend.authentication_ok()
        welcome += b"".join(backend.parameter_status(name, value) for name, value in _SETTINGS.items())
        if self.secret is not None:
            welcome += backend.backend_key_data(self.pid, self.secret)
        writer.write(welcome + backend.ready())
        return True

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes) -> None:
        messages = MessageReader(1 << 20)
        messages.feed(rest)
        while True:
            while (message := messages.next()) is not None:
                kind, body = message
                if kind == frontend.TERMINATE:
                    return
                if kind == frontend.QUERY:
                    writer.write(await self._run(body) + backend.ready())
            data = await reader.read(1 << 16)
            if not data:
                return
            messages.feed(data)

    async def _run(self, body: bytes) -> bytes:
        if body != b"sleep\0":
            return backend.command_complete("SELECT 0")
        event = asyncio.Event()
        self.sleeping[event] = backend.command_complete("SELECT 0")
        try:
            await event.wait()
            return self.sleeping[event]
        finally:
            del self.sleeping[event]


async def _startup(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[StartupMessage | CancelRequest, bytes]:
    """The first packet that is no request for TLS, and what came behind it."""
    data = b""
    while True:
        parsed = parse_startup(data)
        if parsed is None:
            more = await reader.read(1 << 16)
            if not more:
                raise ConnectionResetError
            data += more
            continue
        packet, length = parsed
        data = data[length:]
        if isinstance(packet, StartupMessage | CancelRequest):
            return packet, data
        assert isinstance(packet, SSLRequest)
        writer.write(b"N")


@asynccontextmanager
async def protocol_server(**conduct: Any) -> AsyncIterator[ProtocolServer]:
    """A server, until the end of ``async with``."""
    server = ProtocolServer(**conduct)
    async with await asyncio.start_server(server.accept, "127.0.0.1", 0) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        try:
            yield server
        finally:
            await server.close()
