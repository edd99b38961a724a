"""A login and a first row over one stream, and how many round trips each took: by counting the flights that left.

A flight is what asyncpg writes before it waits for the gateway; each is answered, so there are as many round trips.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pgtrunk.errors import GatewayUnreachable, LoginRefused, LoginTimeout
from pgtrunk.wire.backend import AUTHENTICATION, NEGOTIATE_PROTOCOL
from pgtrunk.wire.startup import StartupMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk.quic import ClientConnection

__all__ = ["Login", "log_in", "protocol_of"]

METHODS = {0: "trust or certificate", 3: "password", 5: "md5", 10: "scram-sha-256"}
"""By the code of the first Authentication message (PostgreSQL documentation, "Message Formats")."""

PROTOCOL_3_2 = 3 << 16 | 2

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What one took."""

    method: str
    login_trips: int
    """Round trips until it was ready for a query."""
    query_trips: int
    """Those of a simple query of one row."""
    seconds: float
    """Of both."""


class Count:
    """Of one session."""

    def __init__(self) -> None:
        self.flights = 0
        self.code: int | None = None
        """Of the first Authentication."""
        self._speaks = False

    def wrote(self) -> None:
        if not self._speaks:
            self._speaks = True
            self.flights += 1

    def heard(self, data: bytes) -> None:
        self._speaks = False
        if self.code is None and data[0] == AUTHENTICATION and len(data) >= 9:
            self.code = int.from_bytes(data[5:9], "big")


class Counted(asyncio.Protocol):
    """Stands between a stream and asyncpg's protocol, which gets itself as the transport's stand-in."""

    def __init__(self, protocol: Any, count: Count) -> None:
        self._protocol, self._count = protocol, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(CountedTransport(transport, self._count))

    def data_received(self, data: bytes) -> None:
        self._count.heard(data)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        answer: bool | None = self._protocol.eof_received()
        return answer

    def connection_lost(self, exc: BaseException | None) -> None:
        self._protocol.connection_lost(exc)


class CountedTransport:
    """What asyncpg writes to."""

    def __init__(self, transport: Any, count: Count) -> None:
        self._transport, self._count = transport, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        self._count.wrote()
        self._transport.write(data)


class StreamLoop:
    """The running loop, but that asyncpg's connection is a stream; see `pgtrunk.asyncpg_adapter`."""

    def __init__(self, connection: ClientConnection, count: Count) -> None:
        self._connection, self._count = connection, count
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._loop

    def __hash__(self) -> int:
        return hash(self._loop)

    async def create_unix_connection(self, factory: Callable[[], P], *_: object, **__: object) -> tuple[Any, P]:
        transport, counted = self._connection.open_stream(lambda: Counted(factory(), self._count))
        return transport, counted._protocol


async def log_in(
    connection: ClientConnection, *, user: str, database: str, password: str | None, timeout: float
) -> Login:
    """Logs in, asks for one row, and leaves. Raises `LoginRefused`, `LoginTimeout`, `SessionLost`."""
    import asyncpg

    count = Count()
    # None as the password would make asyncpg look for one in PGPASSWORD and ~/.pgpass.
    arguments: dict[str, Any] = {
        "user": user,
        "database": database,
        "password": password or "",
        "timeout": None,
        "loop": StreamLoop(connection, count),
        "host": "/pgtrunk/ping",
        "port": 1,
        "ssl": False,
    }
    start = time.perf_counter()
    try:
        async with asyncio.timeout(timeout):
            session = await asyncpg.connect(**arguments)
            before = count.flights
            await session.execute("SELECT 1")
            seconds = time.perf_counter() - start
            flights = count.flights
            await session.close()
    except TimeoutError as exc:
        raise LoginTimeout(f"the login of {user!r} was not done within --timeout {timeout:g} s") from exc
    except asyncpg.PostgresError as exc:
        if isinstance(exc.__cause__, OSError):
            raise exc.__cause__ from None
        sqlstate = str(getattr(exc, "sqlstate", None) or LoginRefused.sqlstate)
        error = LoginRefused(f"login of {user!r} to {database!r} refused: {exc} ({sqlstate})")
        error.sqlstate = sqlstate
        raise error from exc
    method = METHODS.get(-1 if count.code is None else count.code, "unknown")
    return Login(method=method, login_trips=before, query_trips=flights - before, seconds=seconds)


async def protocol_of(connection: ClientConnection, *, user: str, database: str, timeout: float) -> str:
    """Asks for protocol 3.2 and returns the version that the gateway is willing to speak. No login follows."""

    class First(asyncio.Protocol):
        def __init__(self) -> None:
            self.data: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def data_received(self, data: bytes) -> None:
            if not self.data.done():
                self.data.set_result(data)

        def connection_lost(self, exc: BaseException | None) -> None:
            if not self.data.done():
                self.data.set_exception(GatewayUnreachable("the gateway closed the stream of a StartupMessage"))

    transport, first = connection.open_stream(First)
    parameters = {"user": user, "database": database}
    transport.write(StartupMessage(protocol=PROTOCOL_3_2, parameters=parameters).encode())
    try:
        async with asyncio.timeout(timeout):
            data = await first.data
    except TimeoutError as exc:
        raise LoginTimeout(f"no answer to a StartupMessage within --timeout {timeout:g} s") from exc
    finally:
        transport.abort()
    if data[0] == NEGOTIATE_PROTOCOL and len(data) >= 9:
        return f"3.{int.from_bytes(data[5:9], 'big') & 0xFFFF}"
    return "3.2"
