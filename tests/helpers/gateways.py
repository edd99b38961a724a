"""Gateways inside the test's own loop, the ways in, and the check that nothing is left behind.

``start(default_pool_size=1)`` gives a `LocalGateway` with all fronts; ``gateway.connect("quic")`` gives an asyncpg
connection. At the end of the test all of it is closed, and whatever is not given back fails the test.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import asyncpg
import pytest
import pytest_asyncio

from helpers.site import DATABASE, PASSWORD, USER, Site, site
from helpers.waiting import until
from pgtrunk import StreamManager
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.fronts.quic import QuicFront
from pgtrunk_gateway.fronts.tcp import TcpFront
from pgtrunk_gateway.gateway import Gateway

if TYPE_CHECKING:
    from helpers.raw_session import RawSession

__all__ = ["POOLED", "WAYS", "Connect", "LocalGateway", "Start", "Way", "connect", "pooled", "site", "start", "way"]

Way = Literal["direct", "tcp", "unix", "quic"]
WAYS: Final[tuple[Way, ...]] = ("direct", "tcp", "unix", "quic")
"""How a session reaches Postgres; "direct" goes past the gateway, and shows that a test asks for no more than it."""
POOLED: Final[tuple[Way, ...]] = ("tcp", "unix", "quic")

_NONE_AFTER: Final = (
    "sessions", "admitted", "cancel_keys", "cancels", "leased", "walsenders", "connecting", "waiting",
    "quic_streams", "quic_half_open", "quic_held_bytes",
)  # fmt: skip
"""Counters that are zero once all clients have left."""


class LocalGateway:
    """A gateway in this loop, and the sessions that the test has opened through it."""

    def __init__(self, site: Site, settings: Mapping[str, Any]) -> None:
        self.site = site
        self.place = site.place()
        self.ini = site.write_ini(self.place, **settings)
        self.gateway = Gateway(load(self.ini))
        self.connections: list[asyncpg.Connection] = []
        self.raw_sessions: list[RawSession] = []
        self.trunks: list[StreamManager] = []

    # -- the ways in

    @property
    def port(self) -> int:
        """Of the TCP front, and in the unix socket's name."""
        return next(front.port for front in self.gateway.fronts if isinstance(front, TcpFront))

    @property
    def quic(self) -> QuicFront:
        return next(front for front in self.gateway.fronts if isinstance(front, QuicFront))

    def address(self, way: Way) -> dict[str, Any]:
        """Host and port, as asyncpg and psycopg take them."""
        if way == "direct":
            return {"host": self.site.postgres.host, "port": self.site.postgres.port}
        return {"host": "127.0.0.1" if way == "tcp" else str(self.place), "port": self.port}

    def conninfo(self, way: Way, **options: Any) -> dict[str, Any]:
        """What libpq needs to log in."""
        login = {"user": USER, "password": PASSWORD, "dbname": DATABASE, "connect_timeout": 20}
        return {**self.address(way), "sslmode": "disable", "gssencmode": "disable", **login, **options}

    async def trunk(self, *, port: Any = None, **settings: Any) -> StreamManager:
        """A new trunk to the QUIC front; or to ``port``, which leads there."""
        settings = {"ca_file": str(self.site.certificates.ca_cert), **settings}
        manager = StreamManager(f"127.0.0.1:{port or self.quic.port}", **settings)
        await manager.open()
        self.trunks.append(manager)
        return manager

    async def connect(self, way: Way, **options: Any) -> asyncpg.Connection:
        """A session of the tests' user; over QUIC all of them share one trunk. Closed when the test is over."""
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20, **options}
        if way == "quic":
            trunk = self.trunks[0] if self.trunks else await self.trunk()
            connection = await trunk.connect(**login)
        else:
            connection = await asyncpg.connect(ssl=False, **self.address(way), **login)
        self.connections.append(connection)
        return connection

    # -- what is seen of it

    def counters(self) -> dict[str, int]:
        return self.gateway.counters()

    def counts(self, **expected: int) -> bool:
        """Whether the counters are these."""
        counters = self.counters()
        return all(counters[name] == value for name, value in expected.items())

    @property
    def backend_pids(self) -> set[int]:
        return {backend.pid for pool in self.gateway.pools for backend in pool.backends.values()}

    # -- the end

    async def settle(self) -> None:
        """Closes the sessions that are still open, and waits until nobody has anything of the gateway."""
        for connection in self.connections:
            connection.terminate()
        for raw in self.raw_sessions:
            raw.abort()
        for trunk in self.trunks:
            await until(lambda trunk=trunk: not _in_use(trunk))  # type: ignore[misc]
            await trunk.close()
        await until(lambda: not self._leftovers())
        pids = self.backend_pids
        await until(lambda: {self.site.admin.backends().get(pid) for pid in pids} <= {"idle"})

    def _leftovers(self) -> dict[str, int]:
        counters = self.counters()
        return {name: counters[name] for name in _NONE_AFTER if counters.get(name)}

    async def close(self) -> None:
        await self.gateway.close()


def _in_use(trunk: StreamManager) -> int:
    stats = trunk.stats()
    return stats.streams_in_use + stats.cancels_in_use + stats.waiting + stats.connections_connecting


class Start(Protocol):
    def __call__(self, **settings: Any) -> Awaitable[LocalGateway]: ...


@pytest_asyncio.fixture
async def start(site: Site) -> AsyncIterator[Start]:
    """Starts gateways; settings are those of gateway.ini, and ``databases``, ``sections`` of `Site.write_ini`."""
    tasks = asyncio.all_tasks()
    gateways: list[LocalGateway] = []

    async def start(**settings: Any) -> LocalGateway:
        gateway = LocalGateway(site, settings)
        await gateway.gateway.start()
        gateways.append(gateway)
        return gateway

    try:
        yield start
        for gateway in gateways:
            await gateway.settle()
    finally:
        for gateway in gateways:
            await gateway.close()
    await until(lambda: not site.admin.backends())
    left = asyncio.all_tasks() - tasks - {asyncio.current_task()}
    assert not left, f"tasks left: {left}"
    # A socket that nobody closed says so when it is collected, and warnings are errors.
    gc.collect()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """Each way to Postgres, the direct one too."""
    chosen: Way = request.param
    return chosen


@pytest.fixture(params=POOLED)
def pooled(request: pytest.FixtureRequest) -> Way:
    """Each way through the gateway."""
    chosen: Way = request.param
    return chosen


Connect = Callable[..., Awaitable[asyncpg.Connection]]


@pytest_asyncio.fixture
async def connect(start: Start, way: Way) -> Connect:
    """Opens sessions by each way in turn, through a gateway with the settings that are the default."""
    gateway = await start()

    async def connect(**options: Any) -> asyncpg.Connection:
        return await gateway.connect(way, **options)

    return connect
