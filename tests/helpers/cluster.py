"""A cluster without sockets: what each of its servers is, and what its lists of hosts make of that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from helpers.transports import FakeTransport
from pgtrunk.wire.backend import BackendKeyData
from pgtrunk_gateway.config.entries import Place
from pgtrunk_gateway.config.settings import PoolKey
from pgtrunk_gateway.errors import BackendUnavailable, GatewayError
from pgtrunk_gateway.pool import primary as primary_module
from pgtrunk_gateway.pool.connect import Opened
from pgtrunk_gateway.pool.handshake import Handshake
from pgtrunk_gateway.pool.limits import PoolLimits
from pgtrunk_gateway.pool.pool import Pool
from pgtrunk_gateway.pool.primary import HostList
from pgtrunk_gateway.pool.standing import reported
from pgtrunk_gateway.pool.target import Target, Wish

if TYPE_CHECKING:
    import pytest

    from pgtrunk_gateway.config.entries import LoadBalance, SessionAttrs

__all__ = ["DOWN", "NAMES", "PRIMARY", "READ_ONLY", "STANDBY", "FakeCluster", "where"]

PRIMARY: Final = {"in_hot_standby": "off", "default_transaction_read_only": "off"}
READ_ONLY: Final = {"in_hot_standby": "off", "default_transaction_read_only": "on"}
STANDBY: Final = {"in_hot_standby": "on", "default_transaction_read_only": "off"}
DOWN: Final = BackendUnavailable("connection refused")
NAMES: Final = "abc"


class FakeCluster:
    """Servers ``a``, ``b`` ... at port 5432. ``kinds``: what each is from now on, or how it refuses logins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *kinds: dict[str, str] | GatewayError) -> None:
        self.kinds = dict(zip(NAMES, kinds, strict=False))
        self.logins: list[str] = []
        """Where there have been logins, since the last time that was asked."""
        self.gate: asyncio.Event | None = None
        """Logins wait for it."""
        self.transports: list[FakeTransport] = []
        self.pools: list[Pool] = []
        monkeypatch.setattr(primary_module, "log_in", self._log_in)

    def servers(
        self, attrs: SessionAttrs = "primary", balance: LoadBalance = "round-robin", retry: float = 0.01
    ) -> HostList:
        return HostList(self.places, attrs, balance, label="abc", retry=lambda: retry)

    @property
    def places(self) -> list[Place]:
        return [Place(name, 5432) for name in self.kinds]

    def pool(self, servers: HostList, user: str = "app", **limits: Any) -> Pool:
        wish = Wish(tuple(self.places), servers.attrs, "round-robin")
        pool = Pool(
            PoolKey("shop", user),
            Target(host="a", port=5432, dbname="shop", user=user, wish=wish),
            PoolLimits(**{"retry": 0.01, **limits}),
            derive=_derive,
            tune=lambda _: None,
            host=servers,
        )
        self.pools.append(pool)
        return pool

    def asked(self) -> str:
        """The names of the servers at which there was a login, one after the other."""
        logins, self.logins = self.logins, []
        return "".join(logins)

    async def _log_in(self, target: Target, **_: Any) -> Opened:
        self.logins.append(target.host)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        kind = self.kinds[target.host]
        if isinstance(kind, GatewayError):
            raise kind
        handshake = Handshake(target, nonce=bytes(18))
        handshake.parameters = {"client_encoding": "UTF8", **kind}
        handshake.key = BackendKeyData(100 + len(self.transports), b"1234")
        transport = FakeTransport()
        self.transports.append(transport)
        return Opened(transport, handshake, b"", reported(kind))


def where(pool: Pool) -> str:
    """At which servers the backends of a pool are."""
    return "".join(sorted(backend.target.host for backend in pool.backends.values()))


async def _derive(_: object) -> Any:
    raise AssertionError("no test of a list logs in")
