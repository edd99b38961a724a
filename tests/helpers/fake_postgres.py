"""As much of Postgres as asyncpg needs to log in, to run ``select 1`` and to be cancelled. One protocol per stream."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from pgtrunk.wire import backend
from pgtrunk.wire.framing import MessageReader, encode
from pgtrunk.wire.startup import CancelRequest, StartupMessage, parse_startup

INT4 = 23


class FakePostgres:
    """The server: what it was asked, and how it behaves. Call it to make the protocol of a new stream."""

    def __init__(self) -> None:
        self.sessions: dict[int, FakeSession] = {}
        self.startups: list[StartupMessage] = []
        self.queries: list[str] = []
        self.cancels: list[int] = []
        self.logs_in = True
        """Whether a login is ever answered."""
        self.hears_cancels = True
        """Whether a cancel is acted upon and its stream closed."""
        self.is_asked = asyncio.Event()
        """Set whenever a startup packet, a cancel or a query has come."""

    def __call__(self) -> FakeSession:
        return FakeSession(self)


class FakeSession(asyncio.Protocol):
    """One stream. ``sleep`` runs until it is cancelled; ``die`` resets the stream; all else succeeds at once."""

    def __init__(self, server: FakePostgres) -> None:
        self.server = server
        self.pid = 0
        self.running = ""
        self.transport: Any = None
        self._head = b""
        self._reader: MessageReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self.server.sessions.pop(self.pid, None)

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            self._head += data
            found = parse_startup(self._head)
            if found is None:
                return
            packet, length = found
            data = self._head[length:]
            self._begin(packet)
        if self._reader is not None:
            self._reader.feed(data)
            while (message := self._reader.next()) is not None:
                self._message(chr(message[0]), message[1])

    def _begin(self, packet: object) -> None:
        self.server.is_asked.set()
        if isinstance(packet, CancelRequest):
            self._cancel(packet.pid)
        elif isinstance(packet, StartupMessage):
            self._reader = MessageReader(1 << 20)
            self.server.startups.append(packet)
            if self.server.logs_in:
                self._log_in()

    def _log_in(self) -> None:
        self.pid = len(self.server.startups)
        self.server.sessions[self.pid] = self
        settings = {"server_version": "18.0", "client_encoding": "UTF8", "TimeZone": "UTC"}
        self.transport.write(
            backend.authentication_ok()
            + b"".join(backend.parameter_status(name, value) for name, value in settings.items())
            + backend.backend_key_data(self.pid, b"\0\0\0\7")
            + backend.ready()
        )

    def _cancel(self, pid: int) -> None:
        self.server.cancels.append(pid)
        if not self.server.hears_cancels:
            return
        session = self.server.sessions.get(pid)
        if session is not None and session.running:
            session.running = ""
            session.transport.write(backend.error("57014", "canceling statement due to user request") + backend.ready())
        self.transport.close()

    def _message(self, kind: str, body: bytes) -> None:
        match kind:
            case "Q":
                self._query(body[:-1].decode())
            case "P":
                self.server.queries.append(body.split(b"\0")[1].decode())
                self.transport.write(encode(b"1"))
            case "D":
                columns = backend.row_description(["one"], [INT4])
                self.transport.write(encode(b"t", struct.pack("!h", 0)) + columns)
            case "B":
                self.transport.write(encode(b"2"))
            case "E":
                row = backend.data_row([struct.pack("!i", 1)])
                self.transport.write(row + backend.command_complete("SELECT 1"))
            case "S":
                self.transport.write(backend.ready())
            case "X":
                self.transport.close()

    def _query(self, sql: str) -> None:
        self.server.queries.append(sql)
        self.server.is_asked.set()
        if sql == "sleep":
            self.running = sql
        elif sql == "die":
            self.transport.abort()
        else:
            self.transport.write(backend.command_complete("OK") + backend.ready())
