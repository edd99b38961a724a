"""A driver and its stream, without sockets: what is passed on, when, and what each is told of the other's end."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import pytest_asyncio

from helpers.transports import FakeTransport
from helpers.trunks import turns, until
from pgtrunk.errors import AcquireTimeout, CertificateError, GatewayUnreachable, PgtrunkError, SessionLost
from pgtrunk.sidecar import session as module
from pgtrunk.sidecar.session import Session
from pgtrunk.trunk import Opened
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.hints import NOT_SENT, SENT, UNDONE
from pgtrunk.wire.startup import CancelRequest, SSLRequest, StartupMessage

if TYPE_CHECKING:
    from pgtrunk.wire.backend import ErrorFields

P = TypeVar("P", bound=asyncio.BaseProtocol)

STARTUP = StartupMessage(parameters={"user": "app"}).encode()
CANCEL = CancelRequest(42, b"1234").encode()
QUERY = frontend.query(b"insert")
LOGIN = backend.authentication_ok() + backend.backend_key_data(42, b"1234") + backend.ready(b"I")


class End(FakeTransport):
    """A transport that reports its end in a later turn of the loop, as all of them do."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = False
        self._is_lost = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.finished
        super().write(data)

    def write_eof(self) -> None:
        self.finished = True

    def close(self) -> None:
        super().close()
        self.lose(None)

    def abort(self) -> None:
        super().abort()
        self.lose(None)

    def lose(self, error: BaseException | None) -> None:
        self.closing = True
        if not self._is_lost:
            self._is_lost = True
            asyncio.get_running_loop().call_soon(self._report, error)

    def _report(self, error: Any) -> None:
        assert isinstance(self.protocol, asyncio.Protocol)
        self.protocol.connection_lost(error)

    def hear(self, data: bytes) -> None:
        assert isinstance(self.protocol, asyncio.Protocol)
        self.protocol.data_received(data)

    def hear_eof(self) -> None:
        assert isinstance(self.protocol, asyncio.Protocol)
        if not self.protocol.eof_received():
            self.close()


class Line:
    """A session between two ends, and those it belongs to. Streams open when ``gate`` says so."""

    def __init__(self) -> None:
        self.gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stream = End()
        self.asked: list[str | CancelRequest] = []
        self.members: list[Session] = []
        self.has_left = 0
        self.driver = End()
        self.session = Session(self)
        self.driver.set_protocol(self.session)
        self.session.connection_made(self.driver)

    def joined(self, session: Session) -> None:
        self.members.append(session)

    def left(self, session: Session) -> None:
        self.has_left += 1

    async def open_session(self, factory: Callable[[], P]) -> Opened[P]:
        self.asked.append("session")
        return await self._open(factory)

    async def open_cancel(self, factory: Callable[[], P], request: CancelRequest) -> Opened[P]:
        self.asked.append(request)
        return await self._open(factory)

    async def _open(self, factory: Callable[[], P]) -> Opened[P]:
        await self.gate
        protocol = factory()
        self.stream.set_protocol(protocol)
        return Opened(self.stream, protocol, 3)

    async def begin(self, packet: bytes = STARTUP) -> None:
        """Lets the session get its stream, and the first packet through it."""
        self.driver.hear(packet)
        self.gate.set_result(None)
        await turns()
        assert self.stream.take() == packet

    def told(self) -> ErrorFields:
        """The one error that the driver was told, and all that it was told."""
        reader = MessageReader(10_000)
        reader.feed(self.driver.take())
        message = reader.next()
        assert message is not None
        assert (message[0], reader.rest()) == (backend.ERROR, b"")
        return backend.parse_error(message[1])


@pytest_asyncio.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    yield line
    line.session.abort()
    await turns()
    assert line.has_left == 1
    assert line.driver.closing


# -- beginning ---------------------------------------------------------------------------------------------------------


async def test_bytes_go_both_ways_once_there_is_a_stream(line: Line) -> None:
    line.driver.hear(SSLRequest().encode())
    assert line.driver.take() == b"N"
    assert line.session.is_silent
    line.driver.hear(STARTUP[:5])
    line.driver.hear(STARTUP[5:] + b"more")
    await turns()
    assert line.asked == ["session"]
    assert not line.stream.take()
    line.gate.set_result(None)
    await turns()
    assert line.stream.take() == STARTUP + b"more"
    assert line.session.link == 3
    line.driver.hear(b"question")
    assert line.stream.take() == b"question"
    line.stream.hear(LOGIN)
    assert line.driver.take() == LOGIN
    assert line.session.pid == 42


async def test_what_is_held_for_a_stream_is_bounded(line: Line) -> None:
    line.driver.hear(STARTUP)
    line.driver.hear(b"x" * (module.HELD_MAX // 2))
    assert not line.driver.paused
    line.driver.hear(b"x" * (module.HELD_MAX // 2))
    assert line.driver.paused
    line.gate.set_result(None)
    await turns()
    assert not line.driver.paused
    assert len(line.stream.take()) == len(STARTUP) + module.HELD_MAX


async def test_nonsense_is_refused(line: Line) -> None:
    line.driver.hear(b"GET / HTTP/1.1\r\n\r\n")
    told = line.told()
    assert (told.severity, told.sqlstate) == ("FATAL", "08P01")
    assert line.driver.finished
    assert line.asked == []


async def test_a_driver_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GREETING_TIMEOUT", 0.001)
    line = Line()
    await until(lambda: line.has_left)
    assert line.driver.aborted


@pytest.mark.parametrize(
    ("error", "sqlstate"),
    [
        (GatewayUnreachable("gateway gw:6432 cannot be reached"), "08001"),
        (CertificateError("not trusted"), "08001"),
        (AcquireTimeout("no stream became free within acquire_timeout=10 s"), "53300"),
    ],
)
async def test_without_a_stream_the_driver_is_told_why(line: Line, error: PgtrunkError, sqlstate: str) -> None:
    line.driver.hear(STARTUP)
    line.gate.set_exception(error)
    await turns()
    told = line.told()
    assert (told.severity, told.sqlstate, told.message) == ("FATAL", sqlstate, str(error))
    assert line.driver.finished
    assert not line.driver.closing, "the driver closes first, or it might not read why"


async def test_a_mistake_of_ours_ends_the_driver(line: Line) -> None:
    line.driver.hear(STARTUP)
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    line.gate.set_exception(LookupError("a bug"))
    await turns()
    assert line.driver.aborted
    gc.collect()
    assert [context["exception"].args for context in reported] == [("a bug",)]


@pytest.mark.parametrize("eof", [True, False])
async def test_a_driver_that_leaves_while_it_waits_takes_no_stream(line: Line, eof: bool) -> None:
    line.driver.hear(STARTUP)
    await turns()
    if eof:
        line.driver.hear_eof()
    else:
        line.driver.lose(ConnectionResetError())
    await turns()
    assert line.gate.cancelled()
    assert line.has_left == 1


async def test_a_session_that_ends_before_its_task_has_begun(line: Line) -> None:
    line.driver.hear(STARTUP)
    line.session.abort()
    await turns()
    assert line.has_left == 1
    assert line.asked == []


# -- pauses ------------------------------------------------------------------------------------------------------------


async def test_pauses_go_both_ways(line: Line) -> None:
    await line.begin()
    line.session.pause_writing()
    assert line.stream.paused
    line.session.resume_writing()
    assert not line.stream.paused
    end = line.stream.protocol
    assert isinstance(end, asyncio.Protocol)
    end.pause_writing()
    assert line.driver.paused
    end.resume_writing()
    assert not line.driver.paused


async def test_a_stream_that_is_full_at_once_pauses_the_driver(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: bytes) -> None:
        assert isinstance(line.stream.protocol, asyncio.Protocol)
        line.stream.protocol.pause_writing()

    monkeypatch.setattr(line.stream, "write", write)
    line.driver.hear(STARTUP)
    line.gate.set_result(None)
    await turns()
    assert line.driver.paused


# -- ends --------------------------------------------------------------------------------------------------------------


async def test_the_drivers_fin_is_passed_on_and_answers_still_come(line: Line) -> None:
    await line.begin()
    line.driver.hear_eof()
    assert line.stream.finished
    assert not line.stream.closing
    line.stream.hear(LOGIN)
    assert line.driver.take() == LOGIN
    line.stream.hear_eof()
    await turns()
    assert line.driver.closing
    assert not line.driver.aborted
    assert line.has_left == 1


async def test_the_gateways_fin_comes_behind_its_last_words(line: Line) -> None:
    await line.begin()
    line.stream.hear(LOGIN)
    line.stream.hear_eof()
    assert line.driver.take() == LOGIN
    assert line.driver.finished
    line.driver.hear(b"too late")
    await turns()
    assert not line.stream.take()
    assert line.has_left == 0
    line.driver.hear_eof()
    await turns()
    assert line.has_left == 1


async def test_a_reset_of_the_driver_is_passed_on(line: Line) -> None:
    await line.begin()
    line.driver.lose(ConnectionResetError())
    await turns()
    assert line.stream.aborted
    assert line.has_left == 1


async def test_what_a_driver_said_before_it_left_is_not_taken_back(line: Line) -> None:
    """It sent its last words and its FIN; the answers found nobody."""
    await line.begin()
    line.driver.hear(b"last words")
    line.driver.hear_eof()
    line.driver.lose(BrokenPipeError())
    await turns()
    assert line.stream.take() == b"last words"
    assert line.stream.closing
    assert not line.stream.aborted


async def test_a_lost_stream_is_told_between_messages(line: Line) -> None:
    await line.begin()
    line.stream.hear(LOGIN)
    line.driver.take()
    line.stream.lose(SessionLost("nothing was heard for 10 s"))
    await turns()
    told = line.told()
    assert (told.severity, told.sqlstate, told.message) == ("FATAL", "08006", "nothing was heard for 10 s")
    assert line.driver.finished


@pytest.mark.parametrize(
    ("said", "answered", "error", "hint"),
    [
        (b"", b"", SessionLost("gone"), NOT_SENT),
        (b"", LOGIN, SessionLost("gone"), NOT_SENT),
        (QUERY, LOGIN, SessionLost("gone"), SENT),
        (QUERY, LOGIN, SessionLost("gone", sent=False), NOT_SENT),
        (QUERY, LOGIN + backend.ready(b"T"), SessionLost("gone"), UNDONE),
    ],
)
async def test_a_driver_is_told_whether_a_retry_is_safe(
    line: Line, said: bytes, answered: bytes, error: SessionLost, hint: str
) -> None:
    await line.begin()
    login, rest = answered[: len(LOGIN)], answered[len(LOGIN) :]
    for end, data in ((line.stream, login), (line.driver, said), (line.stream, rest)):
        if data:
            end.hear(data)
    line.driver.take()
    line.stream.lose(error)
    await turns()
    assert line.told().hint == hint


async def test_what_a_stream_could_not_send_is_not_at_stake(line: Line) -> None:
    class Blocked:
        departed = len(STARTUP)

    line.stream._extra["outbox"] = Blocked()  # type: ignore[attr-defined]
    await line.begin()
    line.stream.hear(LOGIN)
    line.driver.take()
    line.driver.hear(QUERY)
    line.stream.lose(SessionLost("gone"))
    await turns()
    assert line.told().hint == NOT_SENT


async def test_who_is_dismissed_is_told_of_it_too(line: Line) -> None:
    await line.begin()
    line.stream.hear(LOGIN)
    line.driver.hear(QUERY)
    line.driver.take()
    line.session.dismiss("57P01", "closing")
    told = line.told()
    assert (told.sqlstate, told.hint) == ("57P01", SENT)


async def test_a_lost_stream_is_not_told_inside_a_message(line: Line) -> None:
    """A driver would take it for the rest of the row."""
    await line.begin()
    row = backend.data_row([b"x" * 300])
    line.stream.hear(LOGIN + row[:200])
    line.stream.lose(SessionLost("nothing was heard for 10 s"))
    await turns()
    assert line.driver.take() == LOGIN + row[:200]
    assert line.driver.aborted


async def test_a_driver_whose_socket_was_reset_is_not_said_goodbye(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_eof() -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    await line.begin()
    line.stream.hear(LOGIN)
    monkeypatch.setattr(line.driver, "write_eof", write_eof)
    line.session.dismiss("57P01", "closing")
    assert line.driver.aborted


async def test_a_paused_driver_is_read_again_at_the_end(line: Line) -> None:
    """What it had to say is dropped; unread, it would turn our FIN into a reset."""
    await line.begin()
    assert isinstance(line.stream.protocol, asyncio.Protocol)
    line.stream.protocol.pause_writing()
    line.stream.lose(SessionLost("gone"))
    await turns()
    assert not line.driver.paused
    line.driver.hear(b"the rest of a COPY")
    assert line.told().sqlstate == "08006"


async def test_a_driver_is_waited_for_while_it_takes_its_last_bytes(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER", 0.001)
    await line.begin()
    sizes = iter([1000, 500, 100, 100])
    monkeypatch.setattr(line.driver, "get_write_buffer_size", lambda: next(sizes))
    line.stream.hear_eof()
    await until(lambda: line.driver.aborted)
    assert not list(sizes)


async def test_a_driver_whose_transport_fails_is_told_nothing(line: Line) -> None:
    await line.begin()
    line.driver.closing = True
    line.stream.hear(LOGIN)
    line.stream.hear_eof()
    await turns()
    assert not line.driver.finished
    line.driver.lose(BrokenPipeError())


@pytest.mark.parametrize("opened", [True, False])
async def test_dismissed(line: Line, opened: bool) -> None:
    if opened:
        await line.begin()
    else:
        line.driver.hear(STARTUP)
        await turns()
    line.session.dismiss("57P01", "the sidecar is shutting down")
    await turns()
    assert (line.told().sqlstate, line.driver.finished) == ("57P01", True)
    assert line.stream.aborted == opened
    assert line.gate.cancelled() != opened


# -- cancels -----------------------------------------------------------------------------------------------------------


async def test_a_cancel_names_its_session_and_waits_for_the_gateways_fin(line: Line) -> None:
    await line.begin(CANCEL)
    assert line.asked == [CancelRequest(42, b"1234")]
    line.stream.hear_eof()
    assert line.driver.finished
    assert not line.driver.take()


@pytest.mark.parametrize("eof", [True, False])
async def test_a_cancel_goes_its_way_when_its_driver_has_gone(line: Line, eof: bool) -> None:
    line.driver.hear(CANCEL)
    if eof:
        line.driver.hear_eof()
    else:
        line.driver.lose(None)
    await turns()
    line.gate.set_result(None)
    await turns()
    assert line.stream.take() == CANCEL
    assert not line.stream.aborted
    assert line.stream.closing != eof, "with its FIN at once, where nobody waits for an answer"


async def test_a_driver_that_leaves_does_not_take_back_its_cancel(line: Line) -> None:
    await line.begin(CANCEL)
    line.driver.lose(None)
    await turns()
    assert not line.stream.aborted
    line.stream.hear_eof()
    await turns()
    assert line.has_left == 1


async def test_a_cancel_that_cannot_be_sent_is_answered_as_all_are(line: Line) -> None:
    line.driver.hear(CANCEL)
    line.gate.set_exception(SessionLost("the session is lost"))
    await turns()
    assert not line.driver.take()
    assert line.driver.finished
