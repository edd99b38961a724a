"""One query in the first flight of its session: what is sent, and what becomes of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.fake_gateway import FakeGateway, PipeEnd
from helpers.fake_postgres import FakePostgres, FakeSession
from helpers.trunks import until, until_idle
from pgtrunk import LoginRefused, LoginTimeout, ProtocolViolation, SessionLost, StreamManager, TrunkClosed, UsageError
from pgtrunk.wire import backend
from pgtrunk.wire.frontend import SYNC_MESSAGE, bind, describe_portal, execute, parse
from pgtrunk.wire.startup import StartupMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

FLIGHT = (
    StartupMessage(
        parameters={"user": "web", "database": "shop", "client_encoding": "UTF8"},
        options={"_pq_.early_data": "read-only"},
    ).encode()
    + parse(b"", b"select $1, $2")
    + bind(b"", b"", [b"7", None])
    + describe_portal(b"")
    + execute()
    + SYNC_MESSAGE
)


class Postgres(FakePostgres):
    """Says of each session what the test has it say."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.says: list[bytes] = []

    def __call__(self) -> FakeSession:
        return Saying(self)


class Saying(FakeSession):
    server: Postgres

    def data_received(self, data: bytes) -> None:
        self.server.heard.append(data)
        if len(self.server.heard) <= len(self.server.says):
            self.transport.write(self.server.says[len(self.server.heard) - 1])


WELCOME = backend.authentication_ok() + backend.backend_key_data(1, b"1234") + backend.ready()
ROWS = backend.data_row([b"7", None]) + backend.data_row([b"\xff", b"\xc3\xa4"]) + backend.command_complete("SELECT 2")


class World:
    def __init__(self, manager: StreamManager, gateway: FakeGateway, postgres: Postgres) -> None:
        self.manager = manager
        self.gateway = gateway
        self.postgres = postgres

    def fetch(self, **more: Any) -> Coroutine[Any, Any, list[Any]]:
        return self.manager.fetch_early("select $1, $2", "7", None, user="web", database="shop", **more)

    async def idle(self) -> None:
        assert self.manager._trunk is not None
        await until_idle(self.manager._trunk)
        assert self.gateway.open_streams == 0


@asynccontextmanager
async def world(*says: bytes, early_data: Any = "read-only") -> AsyncIterator[World]:
    postgres = Postgres()
    postgres.says = list(says)
    gateway = FakeGateway(postgres)
    manager = StreamManager("gw.test", dangerously_skip_certificate_verification=True, early_data=early_data)
    manager._dialer.dial = gateway.connect  # type: ignore[method-assign]
    async with manager:
        it = World(manager, gateway, postgres)
        yield it
        await it.idle()


async def test_all_of_it_is_one_flight() -> None:
    async with world(WELCOME + ROWS + backend.ready()) as it:
        assert await it.fetch() == [("7", None), ("\udcff", "ä")]
        assert it.postgres.heard[0] == FLIGHT


async def test_the_database_is_the_users_unless_named() -> None:
    async with world(WELCOME + ROWS + backend.ready()) as it:
        await it.manager.fetch_early("select 1", user="web")
        assert b"database\0web\0" in it.postgres.heard[0]


async def test_answers_in_pieces_are_answers() -> None:
    async with world() as it:
        task = asyncio.ensure_future(it.fetch())
        await until(lambda: it.postgres.heard)
        stream = it.gateway.connections[0].streams[0]
        for octet in WELCOME + ROWS + backend.ready():
            stream.deliver(bytes((octet,)))
        assert len(await task) == 2


@pytest.mark.parametrize(
    ("says", "error", "words"),
    [
        (backend.authentication_cleartext_password(), LoginRefused, "asks for a password"),
        (backend.authentication_sasl(("SCRAM-SHA-256",)), LoginRefused, "asks for a password"),
        (backend.error("53300", "no more", severity="FATAL"), LoginRefused, "no more"),
        (WELCOME + backend.error("42P01", "no such table") + backend.ready(), asyncpg.UndefinedTableError, "no such"),
        (WELCOME + backend.error("57P01", "shut down", severity="FATAL"), SessionLost, "shut down"),
        (b"R\0\0\0\1", ProtocolViolation, "length 1"),
    ],
)
async def test_what_comes_instead_of_rows(says: bytes, error: type[Exception], words: str) -> None:
    async with world(says) as it:
        with pytest.raises(error, match=words):
            await it.fetch()


async def test_negotiation_and_notices_are_passed_over() -> None:
    told = backend.negotiate_protocol(3 << 16, ["_pq_.early_data"]) + backend.notice("00000", "welcome")
    async with world(told + WELCOME + ROWS + backend.ready()) as it:
        assert len(await it.fetch()) == 2


async def test_it_takes_no_longer_than_told() -> None:
    async with world() as it:
        with pytest.raises(LoginTimeout, match=r"timeout=0\.05 s"):
            await it.fetch(timeout=0.05)


async def test_cancelled_it_leaves_nothing() -> None:
    async with world() as it:
        task = asyncio.ensure_future(it.fetch())
        await until(lambda: it.postgres.heard)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("is_early", [True, False])
async def test_one_that_is_lost_at_its_handshake_is_sent_once_more(
    monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    monkeypatch.setattr(
        PipeEnd, "get_extra_info", lambda self, name, default=None: is_early if name == "early" else default
    )
    async with world(b"", WELCOME + ROWS + backend.ready()) as it:
        it.postgres.says[0] = backend.notice("00000", "nothing yet")
        task = asyncio.ensure_future(it.fetch())
        await until(lambda: it.postgres.heard)
        it.gateway.connections[0].lose()
        if is_early:
            assert len(await task) == 2
            assert it.postgres.heard.count(FLIGHT) == 2
        else:
            with pytest.raises(SessionLost):
                await task


@pytest.mark.parametrize("early_data", ["off", "login"])
async def test_it_is_for_those_who_have_said_so(early_data: str) -> None:
    async with world(early_data=early_data) as it:
        with pytest.raises(UsageError, match=f"early_data='{early_data}'"):
            await it.fetch()
    with pytest.raises(TrunkClosed):
        await StreamManager("gw.test", early_data="read-only").fetch_early("select 1", user="web")
