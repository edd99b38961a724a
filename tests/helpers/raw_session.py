"""A client that sends exactly the bytes it is told to, over any way in, and keeps the messages that come back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from helpers.site import DATABASE, USER
from pgtrunk.wire import backend
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import CancelRequest, StartupMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helpers.gateways import LocalGateway, Way

__all__ = ["Message", "RawSession"]


@dataclass(frozen=True)
class Message:
    """A message from the other side."""

    kind: str
    body: bytes

    @property
    def error(self) -> backend.ErrorFields:
        return backend.parse_error(self.body)


class RawSession(asyncio.Protocol):
    """One session. Every wait has a deadline; the end of the connection is an answer, too."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.link: int | None = None
        """The QUIC connection that it is on, as its trunk numbers them."""
        self.key: backend.BackendKeyData | None = None
        self.parameters: dict[str, str] = {}
        self.octets = b""
        """What has come before `reads_messages` was set."""
        self.reads_messages = True
        self.is_lost = asyncio.Event()
        self._reader = MessageReader(1 << 28)
        self._messages: list[Message] = []
        self._came = asyncio.Event()

    @classmethod
    async def open(cls, gateway: LocalGateway, way: Way, beside: RawSession | None = None) -> Self:
        """A connection on which nothing has been said yet; over QUIC it is where that of ``beside`` is, as a cancel."""
        loop = asyncio.get_running_loop()
        if way == "quic":
            trunk = gateway.trunks[0] if gateway.trunks else await gateway.trunk()
            opened = await trunk.open_numbered(cls, link=None if beside is None else beside.link)
            session = opened.protocol
            session.link = opened.link
        elif way == "unix":
            _, session = await loop.create_unix_connection(cls, f"{gateway.place}/.s.PGSQL.{gateway.port}")
        else:
            _, session = await loop.create_connection(cls, **gateway.address(way))
        gateway.raw_sessions.append(session)
        return session

    @classmethod
    async def start(cls, gateway: LocalGateway, way: Way, **parameters: str) -> Self:
        """A session of the tests' user, to a gateway that asks for no password."""
        session = await cls.open(gateway, way)
        session.startup(parameters)
        await session.until_ready()
        return session

    def startup(self, parameters: Mapping[str, str], **other: Any) -> None:
        self.send(StartupMessage(parameters={"user": USER, "database": DATABASE, **parameters}, **other).encode())

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.reads_messages:
            self.octets += data
            self._came.set()
            return
        self._reader.feed(data)
        while (message := self._reader.next()) is not None:
            self._received(Message(chr(message[0]), message[1]))
        self._came.set()

    def _received(self, message: Message) -> None:
        if message.kind == "K":
            self.key = backend.parse_backend_key_data(message.body)
        elif message.kind == "S":
            name, value = backend.parse_parameter_status(message.body)
            self.parameters[name] = value
        self._messages.append(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()
        self._came.set()

    # -- asking and answers

    def send(self, *data: bytes) -> None:
        self.transport.write(b"".join(data))

    async def until(self, kinds: str, seconds: float = 20.0) -> list[Message]:
        """All messages up to the first of one of these kinds, or up to the end of the connection."""
        taken: list[Message] = []
        async with asyncio.timeout(seconds):
            while True:
                while self._messages:
                    taken.append(self._messages.pop(0))
                    if taken[-1].kind in kinds:
                        return taken
                if self.is_lost.is_set():
                    return taken
                self._came.clear()
                await self._came.wait()

    async def take(self, count: int, seconds: float = 20.0) -> list[Message]:
        """So many messages, or all up to the end of the connection."""
        async with asyncio.timeout(seconds):
            while len(self._messages) < count and not self.is_lost.is_set():
                self._came.clear()
                await self._came.wait()
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken

    @property
    def has_answer(self) -> bool:
        """Whether something has come that nobody has taken yet."""
        return bool(self._messages)

    async def until_ready(self, times: int = 1) -> list[Message]:
        """All messages up to ReadyForQuery, or up to that many of them."""
        messages = []
        for _ in range(times):
            messages += await self.until("Z")
        return messages

    async def ask(self, *data: bytes) -> str:
        """Sends, waits for ReadyForQuery and gives the kinds of the answers, its status at the end: "1CZI"."""
        self.send(*data)
        return self.kinds(await self.until_ready())

    @staticmethod
    def kinds(messages: list[Message]) -> str:
        """The kinds of messages, less what Postgres sends whenever it likes."""
        told = "".join(message.kind for message in messages if message.kind not in "SN")
        return told + messages[-1].body.decode() if told.endswith("Z") else told

    async def until_lost(self, seconds: float = 20.0) -> list[Message]:
        """What was said before the other side closed the connection."""
        async with asyncio.timeout(seconds):
            await self.is_lost.wait()
        messages, self._messages = self._messages, []
        return messages

    async def until_octets(self, count: int) -> bytes:
        """While no messages are read: the next octets."""
        async with asyncio.timeout(20):
            while len(self.octets) < count:
                self._came.clear()
                await self._came.wait()
        taken, self.octets = self.octets[:count], self.octets[count:]
        return taken

    def cancel_request(self, secret: bytes | None = None) -> bytes:
        """The CancelRequest that this session's key allows."""
        assert self.key is not None
        return CancelRequest(self.key.pid, self.key.secret if secret is None else secret).encode()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()
