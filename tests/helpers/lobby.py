"""A gateway for one session that logs in: its pool, its cancels and its transport are the test's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from helpers.session_pair import FakeCancels
from helpers.transports import FakeTransport
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.auth import Derivation, LoginLimiter, LoginPolicy, Plain, ScramKeys, Userlist
from pgtrunk_gateway.cancel.keys import CancelKey
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.relay.context import Context
from pgtrunk_gateway.relay.session import Session
from pgtrunk_gateway.session.state import State
from pgtrunk_gateway.session.statements import Catalogue
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError

__all__ = ["PARAMETERS", "USERS", "Lobby"]

PARAMETERS = {"client_encoding": "UTF8", "DateStyle": "ISO, MDY", "application_name": "", "server_version": "18.0"}
USERS = Userlist({"app": Plain("secret")})


class Greeter:
    """A pool, as far as a login is concerned."""

    def __init__(self) -> None:
        self.error: GatewayError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.taken: set[object] = set()
        self.entrusted: list[object] = []
        """What clients have logged in with."""
        self.stats = PoolStats()
        self.trouble = " The last connection failed: no."
        self.sessions = 0

    def enter(self) -> None:
        self.sessions += 1

    def exit(self) -> None:
        self.sessions -= 1

    def entrust(self, *credentials: object) -> None:
        self.entrusted.append(credentials)

    def take(self, holder: object) -> None:
        """Every backend is in use."""

    def wait(self, holder: object, timeout: float) -> None:
        """And stays so."""

    def leave(self, holder: object) -> None: ...

    async def greet(self) -> dict[str, str]:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return PARAMETERS


class Cancels(FakeCancels):
    def __init__(self) -> None:
        super().__init__()
        self.served: list[object] = []
        self.keys: list[CancelKey] = []

    def register(self, session: object, *, long: bool = False) -> CancelKey:
        key = CancelKey(77, b"abcd" * (8 if long else 1))
        self.keys.append(key)
        return key

    def forget(self, key: CancelKey) -> None:
        self.keys.remove(key)

    async def serve(self, request: object, address: str | None) -> None:
        self.served.append(request)


class Lobby:
    """A gateway for one session that logs in."""

    def __init__(
        self,
        *,
        auth_type: Any = "trust",
        users: Userlist | None = None,
        transport: FakeTransport | None = None,
        **config: Any,
    ) -> None:
        self.pool = Greeter()
        self.cancels = Cancels()
        self.deriving = asyncio.Event()
        self.deriving.set()
        self.context = Context(
            config=Config(databases={"shop": DatabaseConfig(name="shop")}, **config),
            catalogue=Catalogue(),
            policy=LoginPolicy(auth_type=auth_type, userlist=users, mock_key=b"m" * 32),
            limiter=LoginLimiter(2, 60),
            cancels=self.cancels,
            derive=self._derive,
            pool=cast("Any", lambda entry, user: self.pool),
            random=lambda size: bytes(range(size)),
        )
        self.transport = transport or FakeTransport(peername=("192.0.2.1", 40000))
        self.session = Session(self.context, "tcp" if transport is None else "quic")
        self.session.connection_made(self.transport)

    async def _derive(self, derivation: Derivation) -> ScramKeys:
        await self.deriving.wait()
        return derivation.run()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def send(self, data: bytes) -> bytes:
        """Sends, and gives what came back."""
        if self.session.state is not State.CLOSED:
            self.session.data_received(data)
        await self.settle()
        return self.transport.take()

    async def startup(self, **parameters: str) -> bytes:
        packet = StartupMessage(parameters={"user": "app", "database": "shop", **parameters})
        return await self.send(packet.encode())

    async def end(self) -> None:
        """The connection is over: nothing of the session may be left."""
        self.session.connection_lost(None)
        await self.settle()
        assert self.context.sessions == set()
        assert self.context.admitted == self.pool.sessions == 0
        assert not self.context.tally.databases
        assert not self.context.tally.users
        assert self.cancels.keys == []
