"""A driver's session over a connection that is still at its handshake: it is opened again where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest_asyncio

from helpers.early import EarlyTransport
from helpers.trunks import turns
from pgtrunk.connection import AGAIN
from pgtrunk.errors import GatewayUnreachable, SessionLost
from pgtrunk.sidecar import first_words
from pgtrunk.sidecar.session import Session
from pgtrunk.trunk import Opened
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import CancelRequest, StartupMessage

if TYPE_CHECKING:
    from pgtrunk.sidecar.stream_end import StreamEnd

P = TypeVar("P", bound=asyncio.BaseProtocol)

STARTUP = StartupMessage(parameters={"user": "app"}).encode()
LOGIN = backend.authentication_ok() + backend.backend_key_data(42, b"1234") + backend.ready(b"I")
LOST = SessionLost("the gateway did not answer")


class Stream(EarlyTransport):
    """One of an early connection, or of one whose handshake is complete."""

    @property
    def end(self) -> StreamEnd:
        return cast("StreamEnd", self.protocol)

    def lose(self, error: Exception | None = LOST) -> None:
        self.closing = True
        self.end.connection_lost(error)


class Line:
    """A driver's session, and the streams that it has asked for."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.refusal: Exception | None = None
        self.has_left = 0
        self.driver = EarlyTransport()
        self.session = Session(self)
        self.session.connection_made(self.driver)

    def joined(self, session: Session) -> None: ...

    def left(self, session: Session) -> None:
        self.has_left += 1

    async def open_session(self, factory: Callable[[], P]) -> Opened[P]:
        if self.refusal is not None:
            raise self.refusal
        stream: Any = Stream()
        protocol = factory()
        stream.set_protocol(protocol)
        self.streams.append(stream)
        return Opened(stream, protocol, len(self.streams))

    async def open_cancel(self, factory: Callable[[], P], request: CancelRequest) -> Opened[P]:
        return await self.open_session(factory)

    async def says(self, data: bytes) -> None:
        self.session.data_received(data)
        await turns()

    def heard(self) -> str:
        return "".join(chr(kind) for kind, _, _ in messages(self.driver.take()))


@pytest_asyncio.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    yield line
    line.session.abort()
    line.session.connection_lost(None)
    for stream in line.streams:
        if not stream.closing or stream.aborted:
            stream.lose(None)
    await turns()
    assert line.has_left == 1


async def test_it_is_opened_again_with_all_that_was_said(line: Line) -> None:
    await line.says(STARTUP)
    await line.says(frontend.password(b"first"))
    assert line.streams[0].take() == STARTUP + frontend.password(b"first")
    line.streams[0].lose()
    await turns()
    assert line.streams[1].take() == STARTUP + frontend.password(b"first")
    await line.says(frontend.password(b"second"))
    assert line.streams[1].take() == frontend.password(b"second")
    line.streams[1].confirm()
    line.streams[1].end.data_received(LOGIN)
    assert line.heard() == "RKZ"
    assert line.session.pid == 42
    assert line.session.link == 2


async def test_not_for_ever(line: Line) -> None:
    """Several gateways may be away. Each time it is the whole."""
    await line.says(STARTUP)
    for number in range(AGAIN + 1):
        assert line.streams[number].take() == STARTUP
        line.streams[number].lose()
        await turns()
    assert len(line.streams) == AGAIN + 1
    assert line.heard() == "E"


async def test_where_none_is_to_be_had_the_driver_is_told(line: Line) -> None:
    await line.says(STARTUP)
    line.refusal = GatewayUnreachable("nobody there")
    line.streams[0].lose()
    await turns()
    assert b"08001" in (said := line.driver.take())
    assert b"nobody there" in said


async def test_after_the_handshake_a_loss_is_a_loss(line: Line) -> None:
    await line.says(STARTUP)
    line.streams[0].confirm()
    line.streams[0].lose()
    await turns()
    assert len(line.streams) == 1
    assert line.heard() == "E"


async def test_who_says_too_much_unheard_is_told(line: Line) -> None:
    await line.says(STARTUP)
    await line.says(frontend.query(b"x" * first_words.MOST))
    line.streams[0].lose()
    await turns()
    assert len(line.streams) == 1
    assert line.heard() == "E"


async def test_who_has_left_is_not_opened_for(line: Line) -> None:
    await line.says(STARTUP)
    line.session.eof_received()
    line.streams[0].lose()
    await turns()
    assert len(line.streams) == 1


async def test_what_is_said_meanwhile_follows(line: Line) -> None:
    await line.says(STARTUP)
    line.streams[0].lose()
    line.session.data_received(frontend.password(b"now"))
    await turns()
    assert line.streams[1].take() == STARTUP + frontend.password(b"now")


async def test_a_cancel_is_sent_once(line: Line) -> None:
    await line.says(CancelRequest(42, b"1234").encode())
    line.streams[0].lose()
    await turns()
    assert len(line.streams) == 1
