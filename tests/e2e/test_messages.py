"""Messages that drivers seldom send, and those that they should not: what comes back is what Postgres would say."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from helpers.raw_session import RawSession
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.framing import encode

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

pytestmark = pytest.mark.both_loops

SYNC = frontend.SYNC_MESSAGE
RUN = frontend.bind(b"", b"") + frontend.execute()
SELECT = frontend.query(b"SELECT 1")


@pytest_asyncio.fixture
async def gateway(start: Start) -> LocalGateway:
    """With one backend, so that what is left on it meets the next session."""
    return await start(default_pool_size=1, auth_type="trust", max_packet_size=2_000_000)


@pytest_asyncio.fixture
async def session(gateway: LocalGateway, pooled: Way) -> RawSession:
    return await RawSession.start(gateway, pooled)


@pytest_asyncio.fixture
async def other(gateway: LocalGateway, pooled: Way) -> RawSession:
    return await RawSession.start(gateway, pooled)


async def errors(session: RawSession) -> list[str]:
    """The SQLSTATEs of the errors up to the next ReadyForQuery."""
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


async def test_a_function_call(session: RawSession) -> None:
    # int4pl(20, 22), in binary.
    arguments = struct.pack("!ii", 4, 20) + struct.pack("!ii", 4, 22)
    call = encode(b"F", struct.pack("!ihhh", 177, 1, 1, 2) + arguments + struct.pack("!h", 1))
    session.send(call)
    messages = await session.until_ready()
    assert session.kinds(messages) == "VZI"
    assert messages[0].body == struct.pack("!ii", 4, 42)
    assert await session.ask(frontend.query(b"BEGIN")) == "CZT"
    assert await session.ask(call) == "VZT"
    assert await session.ask(encode(b"F", struct.pack("!ihhh", 0, 0, 0, 0))) == "EZE"
    assert await session.ask(frontend.query(b"ROLLBACK")) == "CZI"


async def test_next_to_nothing(session: RawSession) -> None:
    assert await session.ask(SYNC) == "ZI"
    assert await session.ask(frontend.FLUSH_MESSAGE, SYNC) == "ZI"
    assert await session.ask(frontend.query(b"")) == "IZI"
    assert await session.ask(frontend.query(b";;")) == "IZI"
    assert await session.ask(frontend.parse(b"", b""), RUN, SYNC) == "12IZI"
    for stray in (frontend.copy_data(b"x"), frontend.COPY_DONE_MESSAGE, frontend.copy_fail(b"x")):
        assert await session.ask(stray, SYNC) == "ZI"
        assert await session.ask(stray, SELECT) == "TDCZI"


async def test_portals(session: RawSession) -> None:
    text = frontend.parse(b"", b"SELECT n FROM generate_series(1, 5) n")
    two = frontend.execute(b"", 2)
    assert await session.ask(text, frontend.bind(b"", b""), two, two, two, SYNC) == "12DDsDDsDCZI"
    assert await session.ask(frontend.query(b"BEGIN")) == "CZT"
    assert await session.ask(text, frontend.bind(b"p", b""), frontend.execute(b"p", 2), SYNC) == "12DDsZT"
    assert await session.ask(frontend.describe_portal(b"p"), frontend.execute(b"p", 0), SYNC) == "TDDDCZT"
    assert await session.ask(frontend.close_portal(b"p"), SYNC) == "3ZT"
    assert await session.ask(frontend.query(b"COMMIT")) == "CZI"
    # With the transaction its portals are gone.
    session.send(frontend.execute(b"p"), SYNC)
    assert await errors(session) == ["34000"]


async def test_unnamed_statements_are_their_sessions_own(session: RawSession, other: RawSession) -> None:
    assert await session.ask(frontend.parse(b"", b"SELECT 10"), SYNC) == "1ZI"
    assert await other.ask(frontend.parse(b"", b"SELECT 20"), SYNC) == "1ZI"
    for one, value in ((session, b"10"), (other, b"20"), (session, b"10")):
        one.send(RUN, SYNC)
        assert [message.body[6:] for message in await one.until_ready() if message.kind == "D"] == [value]
    # A simple query ends its session's unnamed statement, and nobody else's.
    assert await session.ask(SELECT) == "TDCZI"
    assert await other.ask(RUN, SYNC) == "2DCZI"


async def test_named_statements_are_their_sessions_own(session: RawSession, other: RawSession) -> None:
    for one, text in ((session, b"SELECT 10"), (other, b"SELECT 20")):
        assert await one.ask(frontend.parse(b"s", text), SYNC) == "1ZI"
    for one, value in ((session, b"10"), (other, b"20")):
        one.send(frontend.bind(b"", b"s"), frontend.execute(), SYNC)
        assert [message.body[6:] for message in await one.until_ready() if message.kind == "D"] == [value]
    assert await session.ask(frontend.close_statement(b"s"), SYNC) == "3ZI"
    assert await other.ask(frontend.bind(b"", b"s"), frontend.execute(), SYNC) == "2DCZI"
    session.send(frontend.bind(b"", b"s"), frontend.execute(), SYNC)
    assert await errors(session) == ["26000"]


@pytest.mark.parametrize("length", [63, 64, 20_000])
async def test_long_names_of_statements(session: RawSession, other: RawSession, length: int) -> None:
    """Postgres tells names apart by their first 63 octets, and closes the connection upon a Describe of 10 kB."""
    names = [b"a" * (length - 1) + letter for letter in (b"a", b"b")]
    for one in (session, other):
        for name, text in zip(names, (b"SELECT 10", b"SELECT 20"), strict=True):
            prepares = frontend.parse(name, text), frontend.describe_statement(name), SYNC
            assert await one.ask(*prepares) == "1tTZI"
    for name, value in zip(names, (b"10", b"20"), strict=True):
        session.send(frontend.bind(b"", name), frontend.execute(), SYNC)
        assert [message.body[6:] for message in await session.until_ready() if message.kind == "D"] == [value]
    assert await session.ask(frontend.close_statement(names[0]), SYNC) == "3ZI"
    assert await other.ask(frontend.bind(b"", names[0]), frontend.execute(), SYNC) == "2DCZI"


async def test_names_that_are_unknown_or_in_use(session: RawSession) -> None:
    for request in (frontend.bind(b"", b"nowhere"), frontend.describe_statement(b"nowhere")):
        session.send(request, SYNC)
        assert await errors(session) == ["26000"]
    # Closing what is not there is no error.
    assert await session.ask(frontend.close_statement(b"nowhere"), frontend.close_portal(b"nowhere"), SYNC) == "33ZI"
    assert await session.ask(frontend.parse(b"s", b"SELECT 1"), SYNC) == "1ZI"
    session.send(frontend.parse(b"s", b"SELECT 2"), SYNC)
    (error,) = [message.error for message in await session.until_ready() if message.kind == "E"]
    assert (error.sqlstate, error.message) == ("42P05", 'prepared statement "s" already exists')
    # A Parse that failed has not taken its name.
    session.send(frontend.parse(b"t", b"selec 1"), SYNC)
    assert await errors(session) == ["42601"]
    assert await session.ask(frontend.parse(b"t", b"SELECT 1"), frontend.bind(b"", b"t"), frontend.execute(), SYNC) == (
        "12DCZI"
    )


async def test_after_an_error_all_is_skipped_to_sync(session: RawSession) -> None:
    bad = frontend.parse(b"", b"selec 1")
    named = frontend.parse(b"n", b"SELECT 1") + frontend.bind(b"", b"n") + frontend.execute()
    assert await session.ask(bad, named, named, SYNC) == "EZI"
    session.send(bad, frontend.FLUSH_MESSAGE)
    assert session.kinds(await session.until("E")) == "E"
    assert await session.ask(named, SYNC) == "ZI"
    assert await session.ask(named, SYNC) == "12DCZI", "what was skipped has not been prepared"


async def test_messages_that_are_too_large(gateway: LocalGateway, session: RawSession, other: RawSession) -> None:
    pids = gateway.backend_pids
    fits = frontend.query(b"SELECT length('" + b"x" * 1_999_000 + b"')")
    assert await session.ask(fits) == "TDCZI"
    session.send(frontend.query(b"SELECT length('" + b"x" * 2_000_000 + b"')"))
    (error,) = [message.error for message in await session.until_lost() if message.kind == "E"]
    assert (error.severity, error.sqlstate) == ("FATAL", "54000")
    assert error.detail == "max_packet_size = 2000000"
    assert await other.ask(SELECT) == "TDCZI"
    # In a transaction, and behind other messages.
    assert await other.ask(frontend.query(b"BEGIN")) == "CZT"
    other.send(SELECT, b"B\x7f\xff\xff\xff" + bytes(100))
    # The rest never comes. It is told at once all the same; the gateway would wait, for drivers that still write.
    assert other.kinds(await other.until("E")) in ("TDCZE", "E", "TDCZTE")
    other.transport.abort()
    await until(lambda: gateway.counts(sessions=0, leased=0))
    assert gateway.backend_pids == pids


@pytest.mark.parametrize("kind", b"pHZ?R\xff\0")
async def test_messages_that_no_client_sends(gateway: LocalGateway, session: RawSession, kind: int) -> None:
    if kind == ord("H"):
        # Flush has no content; what is in it does no harm.
        assert await session.ask(encode(b"H", b"content"), SYNC) in ("ZI", "EZI")
        return
    session.send(encode(bytes([kind]), b"content\0"))
    messages = await session.until_lost()
    assert [(message.error.severity, message.error.sqlstate) for message in messages] == [("FATAL", "08P01")]
    await until(lambda: gateway.counts(sessions=0, leased=0))


async def test_all_that_a_client_has_to_say_at_once(gateway: LocalGateway, pooled: Way) -> None:
    session = await RawSession.open(gateway, pooled)
    session.startup({})
    session.send(SELECT, frontend.parse(b"", b"SELECT 2"), RUN, SYNC, frontend.query(b"BEGIN"))
    assert session.kinds(await session.until_ready(4)) == "RKZTDCZ12DCZCZT"
    session.send(frontend.query(b"COMMIT"), SELECT, frontend.TERMINATE_MESSAGE)
    await session.until_lost()
