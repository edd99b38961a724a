"""The first login message goes along with the StartupMessage, where the gateway's first word is known."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.fake_gateway import FakeGateway, PipeEnd
from helpers.fake_postgres import FakePostgres, FakeSession
from helpers.logins import ITERATIONS, SALT, secret_of
from helpers.trunks import turns, until, until_idle
from pgtrunk import StreamManager
from pgtrunk.connection import AGAIN
from pgtrunk.login_memory import REMEMBERED, LoginMemory
from pgtrunk.wire import backend
from pgtrunk.wire.frontend import parse_sasl_initial_response
from pgtrunk_gateway.auth.scram_server import ServerExchange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

DSN = "postgresql://app:secret@/shop"
SCRAM = backend.authentication_sasl(("SCRAM-SHA-256",))


class ScramPostgres(FakePostgres):
    """Asks for SCRAM, or whatever else; what it says waits until the test lets a flight go."""

    def __init__(self) -> None:
        super().__init__()
        self.asks = "scram"
        self.waiting: list[tuple[Any, bytes]] = []
        self.heard: list[str] = []
        """What came, and "|" where a flight went the other way."""

    def __call__(self) -> FakeSession:
        return ScramSession(self)

    def fly(self) -> None:
        flight, self.waiting = self.waiting, []
        if flight:
            self.heard.append("|")
        for transport, data in flight:
            transport.write(data)


class Outgoing:
    """What a session writes to."""

    def __init__(self, server: ScramPostgres, transport: Any) -> None:
        self._server = server
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._server.waiting.append((self._transport, data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ScramSession(FakeSession):
    server: ScramPostgres

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = Outgoing(self.server, transport)
        self._exchange: ServerExchange | None = None

    def _log_in(self) -> None:
        self.server.heard.append("startup")
        match self.server.asks:
            case "scram":
                self.transport.write(SCRAM)
            case "password":
                self.transport.write(backend.authentication_cleartext_password())
            case "nothing":
                super()._log_in()
            case "refusal":
                self.transport.write(backend.error("53300", "no more connections allowed", severity="FATAL"))

    def _message(self, kind: str, body: bytes) -> None:
        if kind == "p" and self.server.asks == "scram" and self._exchange is None:
            self.server.heard.append("first")
            data = parse_sasl_initial_response(body).data
            assert data is not None
            self._exchange = ServerExchange(SALT, ITERATIONS, nonce=b"server-nonce-18-b.")
            self.transport.write(backend.authentication_sasl_continue(self._exchange.first(data)))
        elif kind == "p" and self._exchange is not None:
            self.server.heard.append("proof")
            final = self._exchange.final(body, secret_of("secret"))
            self.transport.write(backend.authentication_sasl_final(final))
            super()._log_in()
        elif kind == "p" and self.server.asks == "password" and b"SCRAM" not in body:
            self.server.heard.append("password")
            super()._log_in()
        else:
            super()._message(kind, body)


class World:
    def __init__(self, manager: StreamManager, gateway: FakeGateway, postgres: ScramPostgres) -> None:
        self.manager = manager
        self.gateway = gateway
        self.postgres = postgres

    @property
    def saved(self) -> int:
        return self.manager.stats().sessions.round_trips_saved

    async def fly(self, work: Awaitable[Any]) -> int:
        """Does ``work``, one flight at a time -> how many there were from the gateway."""
        self.postgres.heard.clear()
        task = asyncio.ensure_future(work)
        for _ in range(20):
            await turns(40)
            if task.done():
                break
            self.postgres.fly()
        await task
        return self.postgres.heard.count("|")

    async def connect(self, **arguments: Any) -> int:
        """Opens a session and closes it -> how many flights from the gateway opening it took."""
        opened: list[asyncpg.Connection] = []

        async def work() -> None:
            opened.append(await self.manager.connect(DSN, **arguments))

        flights = await self.fly(work())
        opened[0].terminate()
        trunk = self.manager._trunk
        assert trunk is not None
        await until_idle(trunk)
        return flights


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    postgres = ScramPostgres()
    gateway = FakeGateway(postgres)
    manager = StreamManager("gw.test", dangerously_skip_certificate_verification=True, **settings)
    manager._dialer.dial = gateway.connect  # type: ignore[method-assign]
    async with manager:
        yield World(manager, gateway, postgres)


async def test_a_login_by_scram_saves_a_round_trip_when_it_is_known() -> None:
    async with world() as it:
        assert await it.connect() == 3
        assert it.postgres.heard == ["startup", "|", "first", "|", "proof", "|"]
        before = it.saved
        assert await it.connect() == 2
        assert it.postgres.heard == ["startup", "first", "|", "proof", "|"]
        assert it.saved == before + 1
        assert await it.connect(user="else") == 3  # what is known of one is not known of another


async def test_pools_save_it_too() -> None:
    async with world() as it:

        async def work() -> None:
            async with it.manager.create_pool(DSN, min_size=3, max_size=3):
                pass

        await it.fly(work())
        before = it.saved
        await it.fly(work())
        assert it.saved == before + 3


async def test_without_early_data_nothing_is_said_ahead() -> None:
    async with world(early_data="off") as it:
        assert await it.connect() == 3
        assert await it.connect() == 3


@pytest.mark.parametrize(("asks", "flights"), [("password", 2), ("nothing", 1)])
async def test_another_login_than_expected_is_begun_anew(asks: str, flights: int) -> None:
    async with world() as it:
        await it.connect()
        before = it.saved
        it.postgres.asks = asks
        assert await it.connect() == 1 + flights
        assert it.postgres.heard.count("startup") == 2
        assert it.saved == before
        # From now on that is known, or at least nothing else.
        assert await it.connect() == flights
        it.postgres.asks = "scram"
        assert await it.connect() == 3
        assert await it.connect() == 2


async def test_a_refusal_is_a_refusal() -> None:
    async with world() as it:
        await it.connect()
        it.postgres.asks = "refusal"
        with pytest.raises(asyncpg.TooManyConnectionsError, match="no more connections"):
            await it.connect()
        assert it.postgres.heard.count("startup") == 1
        it.postgres.asks = "scram"
        assert await it.connect() == 2


async def test_a_session_that_is_lost_after_its_handshake_is_not_opened_again() -> None:
    async with world() as it:
        task = asyncio.ensure_future(it.manager.connect(DSN))
        await turns(20)
        it.gateway.connections[0].lose()
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await task
        assert it.postgres.heard == ["startup"]


async def test_a_session_that_is_lost_before_its_handshake_is_complete_is_opened_again_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway acts on nothing before that, so nothing has happened. Of several more than one may be away."""
    monkeypatch.setattr(PipeEnd, "get_extra_info", lambda self, name, default=None: name == "early" or default)
    async with world() as it:
        task = asyncio.ensure_future(it.manager.connect(DSN))
        await turns(20)
        for number in range(AGAIN + 1):
            await until(lambda: len(it.postgres.heard) > number)  # noqa: B023  # it is awaited here
            it.gateway.connections[number].lose()
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await task
        assert it.postgres.heard == ["startup"] * (AGAIN + 1)


async def test_a_cancelled_connect_leaves_nothing_wherever_it_is() -> None:
    async with world() as it:
        await it.connect()
        for flights in range(2):
            task = asyncio.ensure_future(it.manager.connect(DSN))
            for _ in range(flights):
                await turns(40)
                it.postgres.fly()
            await turns(40)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert it.manager._trunk is not None
            await until_idle(it.manager._trunk)


# The memory.


@pytest.mark.parametrize(
    ("first", "is_kept"),
    [
        (SCRAM, True),
        (backend.authentication_sasl(("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256")), True),
        (backend.authentication_sasl(("OAUTHBEARER",)), False),
        (backend.authentication_ok(), False),
        (backend.authentication_md5_password(b"salt"), False),
        (backend.negotiate_protocol(3 << 16, []), False),
        (b"R\0\0\0\4", False),
    ],
)
def test_only_an_offer_of_scram_is_remembered(first: bytes, is_kept: bool) -> None:
    memory = LoginMemory()
    memory.learn("app", first)
    assert memory.expected("app") == (first if is_kept else b"")
    memory.learn("app", backend.authentication_ok())
    assert memory.expected("app") == b""


def test_the_memory_is_bounded() -> None:
    memory = LoginMemory()
    for number in range(3 * REMEMBERED):
        memory.learn(number, SCRAM)
    assert len(memory) <= REMEMBERED
    assert memory.expected(3 * REMEMBERED - 1) == SCRAM
