"""Whether a lost session is said to have sent what it was asked for: asyncpg over real QUIC."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.fake_gateway import Sink
from helpers.fake_postgres import FakePostgres
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import identities
from helpers.trunks import turns, until
from pgtrunk import SessionLost, StreamManager, retry_safe
from pgtrunk.witness import Undertaking, Witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from pgtrunk.quic.driver import ConnectionDriver

DSN = "postgresql://app:secret@/shop"


class World:
    def __init__(self, trunk: StreamManager, server: LoopbackServer, postgres: FakePostgres) -> None:
        self.trunk, self.server, self.postgres = trunk, server, postgres

    @property
    def driver(self) -> ConnectionDriver:
        """The client's end of the connection."""
        assert self.trunk._trunk is not None
        (connection,) = self.trunk._trunk.lines.open.values()
        return connection._driver  # type: ignore[attr-defined, no-any-return]

    def lose(self) -> None:
        self.driver.abandon(SessionLost("the plug was pulled"))

    def block(self, room: int = 0) -> None:
        """Lets so many bytes leave from now on."""
        loss = self.driver.quic._loss
        loss._cc.congestion_window = loss._cc.bytes_in_flight + room


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    postgres = FakePostgres()
    async with (
        LoopbackServer(postgres) as server,
        StreamManager(f"127.0.0.1:{server.port}", ca_data=identities()[0].pem) as trunk,
    ):
        yield World(trunk, server, postgres)
    await turns()  # a connection that was abandoned closes its socket in the next one


async def lost(doing: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> SessionLost:
    with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
        await doing
    assert isinstance(caught.value.__cause__, SessionLost)
    assert retry_safe(caught.value) is caught.value.__cause__.retry_safe is not caught.value.__cause__.sent
    return caught.value.__cause__


async def test_a_query_that_runs_was_sent() -> None:
    async with world() as it:
        connection = await it.trunk.connect(DSN)
        running = asyncio.create_task(connection.execute("sleep"))
        await until(lambda: it.postgres.queries == ["sleep"])
        it.lose()
        assert (await lost(running)).sent


async def test_one_begun_when_the_session_was_lost_already_was_not() -> None:
    async with world() as it:
        connection = await it.trunk.connect(DSN)
        assert await connection.fetchval("select 1") == 1
        it.lose()
        error = await lost(connection.execute("insert"))
        assert not error.sent
        assert str(error) == "the plug was pulled"
        with pytest.raises(asyncpg.InterfaceError, match="connection is closed") as caught:
            await connection.execute("insert")
        assert retry_safe(caught.value)
        assert it.postgres.queries == ["select 1"]


@pytest.mark.parametrize("sql", ["insert", "insert " + "x" * 3000])
async def test_one_that_no_packet_took_was_not(sql: str) -> None:
    async with world() as it:
        connection = await it.trunk.connect(DSN)
        assert await connection.fetchval("select 1") == 1
        it.block()
        waiting = asyncio.create_task(connection.execute(sql))
        await turns()
        it.lose()
        assert not (await lost(waiting)).sent


async def test_one_that_was_sent_in_part_was_sent() -> None:
    async with world() as it:
        connection = await it.trunk.connect(DSN)
        it.block(room=1500)
        waiting = asyncio.create_task(connection.execute("insert " + "x" * 6000))
        await turns()
        it.lose()
        assert (await lost(waiting)).sent


async def test_the_second_step_of_a_query_is_an_operation_of_its_own() -> None:
    async with world() as it:
        connection = await it.trunk.connect(DSN)
        statement = await connection.prepare("select 1")
        it.block()
        waiting = asyncio.create_task(statement.fetchval())
        await turns()
        it.lose()
        assert not (await lost(waiting)).sent


async def test_a_query_that_is_being_cancelled_was_sent() -> None:
    async with world() as it:
        it.postgres.hears_cancels = False
        connection = await it.trunk.connect(DSN)
        running = asyncio.create_task(connection.execute("sleep"))
        await until(lambda: it.postgres.queries == ["sleep"])
        closing = asyncio.create_task(connection.close(timeout=30))
        await until(lambda: it.postgres.cancels != [])
        it.lose()
        with pytest.raises(SessionLost) as caught:
            await running
        assert caught.value.sent
        await asyncio.gather(closing, return_exceptions=True)


async def test_a_login_asks_for_nothing_that_could_take_effect() -> None:
    async with world() as it:
        it.postgres.logs_in = False
        opening = asyncio.create_task(it.trunk.connect(DSN))
        await it.postgres.is_asked.wait()
        it.lose()
        assert not (await lost(opening)).sent


async def test_pools_say_so_too() -> None:
    async with world() as it, it.trunk.create_pool(DSN, min_size=1, max_size=1) as pool:
        running = asyncio.create_task(pool.execute("sleep"))
        await until(lambda: it.postgres.queries == ["sleep"])
        it.lose()
        assert (await lost(running)).sent
        async with pool.acquire() as connection:
            it.lose()
            assert not (await lost(connection.execute("insert"))).sent
        assert await pool.fetchval("select 1") == 1


async def test_any_other_protocol_knows_when_it_has_sent_nothing_at_all() -> None:
    async with world() as it:
        silent, talking = [(await it.trunk.open_stream(Sink))[1] for _ in range(2)]
        talking.transport.write(b"something")
        await turns()
        it.lose()
        for sink, sent in ((silent, False), (talking, True)):
            error = await sink.lost
            assert isinstance(error, SessionLost)
            assert error.sent is sent


# Without a wire.


class Box:
    written = departed = 0


class Protocol(asyncio.Protocol):
    def __init__(self, *, closed: bool = False) -> None:
        self.closed = closed
        self.told: BaseException | None = None

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        self.told = exc


def told(box: Box | None, exc: BaseException | None, *, begun: bool = True, closed: bool = False) -> Any:
    undertaking, protocol = Undertaking(box), Protocol(closed=closed)
    future: asyncio.Future[None] = asyncio.Future()
    if begun:
        undertaking.begin(weakref.ref(future))
        if box is not None:
            box.written += 10
    Witness(protocol, undertaking).connection_lost(exc)
    return protocol.told


async def test_between_two_statements_of_a_transaction() -> None:
    error = told(Box(), SessionLost("gone"))
    assert (error.sent, error.in_transaction, error.retry_safe, error.forgotten) == (False, True, True, False)
    assert told(Box(), SessionLost("a reset", forgotten=True)).forgotten


async def test_a_transport_that_cannot_tell_is_taken_to_have_sent_it() -> None:
    assert told(None, SessionLost("gone")).sent
    assert not told(None, SessionLost("gone"), begun=False).sent


async def test_an_end_without_a_reason() -> None:
    assert "ended the session before the query was sent" in str(told(Box(), None))
    assert told(Box(), None, closed=True) is None
    assert told(None, None) is None


async def test_what_is_not_ours_is_passed_on() -> None:
    error = OSError("of the loop")
    assert told(Box(), error) is error
