"""A pool without sockets: logins that the test lets succeed or fail, sessions that only note what they are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from helpers.transports import FakeTransport
from pgtrunk.wire import backend as server
from pgtrunk.wire.backend import BackendKeyData
from pgtrunk_gateway.config.settings import PoolKey
from pgtrunk_gateway.pool import opening as opening_module
from pgtrunk_gateway.pool.connect import Opened
from pgtrunk_gateway.pool.handshake import Handshake
from pgtrunk_gateway.pool.limits import PoolLimits
from pgtrunk_gateway.pool.pool import Pool
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.accounts import Account
    from pgtrunk_gateway.pool.allowance import Allowance
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["NoteTaker", "Server", "answer", "asked"]

PARAMETERS = {"client_encoding": "UTF8", "server_version": "18.0"}


class Server:
    """What a pool connects to. Each login waits until the test has said what becomes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
        self.logins: list[asyncio.Future[GatewayError | None]] = []
        """Under way, in the order in which they began."""
        self.begun = 0
        self.transports: list[FakeTransport] = []
        self.targets: list[Target] = []
        """Where each login went, from the first on."""
        self.rest = b""
        """What comes right behind each login."""
        monkeypatch.setattr(opening_module, "log_in", self._log_in)
        self.pool = self.add("shop", "app", **limits)

    def add(
        self,
        database: str,
        user: str,
        *,
        host: Host | None = None,
        accounts: tuple[Account, ...] = (),
        allowance: Allowance | None = None,
        kept: bool = True,
        **limits: Any,
    ) -> Pool:
        """A pool."""
        target = Target(host="127.0.0.1", port=5432, dbname=database, user=user)
        return Pool(
            PoolKey(database, user),
            target,
            PoolLimits(**limits),
            derive=_derive,
            tune=lambda _: None,
            host=host,
            accounts=accounts,
            allowance=allowance,
            kept=kept,
        )

    async def _log_in(self, target: Target, **_: Any) -> Opened:
        self.begun += 1
        self.targets.append(target)
        login: asyncio.Future[GatewayError | None] = asyncio.get_running_loop().create_future()
        self.logins.append(login)
        try:
            error = await login
        finally:
            self.logins.remove(login)
        if error is not None:
            raise error
        handshake = Handshake(target, nonce=bytes(18))
        handshake.parameters = dict(PARAMETERS)
        handshake.key = BackendKeyData(100 + self.begun, b"1234")
        transport = FakeTransport()
        self.transports.append(transport)
        return Opened(transport, handshake, self.rest)

    async def settle(self) -> None:
        """Lets all that is due run."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self, error: GatewayError | None = None, *, count: int | None = None) -> None:
        """Ends the first ``count`` logins under way, all of them by default."""
        await self.settle()
        for login in self.logins[:count]:
            login.set_result(error)
        await self.settle()

    async def open(self, count: int = 1, pool: Pool | None = None) -> list[Backend]:
        """The pool with ``count`` idle backends."""
        pool = pool or self.pool
        takers = [NoteTaker(pool) for _ in range(count)]
        for taker in takers:
            taker.wait()
        await self.answer()
        for taker in takers:
            taker.give_back()
        return list(pool.idle)


def asked(backend: Backend) -> str:
    """What a backend was sent since the last time, as SQL; "" for nothing, or an empty query."""
    transport = backend.transport
    assert isinstance(transport, FakeTransport)
    written = transport.take()
    assert written[:1] in (b"", b"Q")
    return written[5:-1].decode()


def answer(backend: Backend, *, error: str = "", status: bytes = b"I") -> None:
    """Postgres has run what the backend was sent."""
    said = server.error("XX000", error) if error else server.command_complete("DONE")
    backend.data_received(said + server.ready(status))


async def _derive(_: object) -> Any:
    raise AssertionError("no test of a pool logs in")


class NoteTaker:
    """A session as a pool sees it."""

    def __init__(self, pool: Pool, *, accepts: bool = True) -> None:
        self.pool = pool
        self.accepts = accepts
        self.backend: Backend | None = None
        self.offers = 0
        self.refused: GatewayError | None = None
        self.lost: GatewayError | None = None
        self.told = False
        self.received: list[bytes] = []
        self.relay = self.received.append
        self.settles = 0
        self.notified = 0
        self.profile: Profile = ()

    def take(self) -> bool:
        self.backend = self.pool.take(self)
        return self.backend is not None

    def wait(self, timeout: float = 60.0) -> None:
        self.pool.wait(self, timeout)

    def give_back(self) -> None:
        backend, self.backend = self.backend, None
        assert backend is not None
        backend.release()

    def offer(self, backend: Backend) -> bool:
        self.offers += 1
        if self.accepts:
            self.backend = backend
        return self.accepts

    def refuse(self, error: GatewayError) -> None:
        self.refused = error

    def notify(self) -> None:
        self.notified += 1

    def settled(self) -> None:
        self.settles += 1

    def backend_lost(self, error: GatewayError, told: bool) -> None:
        self.backend = None
        self.lost, self.told = error, told

    def backend_full(self) -> None: ...

    def backend_drained(self) -> None: ...
