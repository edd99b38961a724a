"""Opening a connection to Postgres: what can go wrong on the way, and that no socket is left of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helpers.cancelling import MOMENTS, Moment, cancel_at
from pgtrunk.wire import backend as b
from pgtrunk.wire.startup import parse_startup
from pgtrunk_gateway.auth import Derivation, Plain, ScramKeys
from pgtrunk_gateway.auth.scram_server import ServerExchange
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable
from pgtrunk_gateway.pool.connect import Opened, dial, log_in
from pgtrunk_gateway.pool.target import Target

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WELCOME = b.authentication_ok() + b.parameter_status("a", "1") + b.backend_key_data(7, b"key!") + b.ready()


class Server:
    """A server whose connections the test answers. ``ended`` counts those that the gateway has closed."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.begun = self.ended = 0
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.begun += 1
        self.tasks.add(asyncio.ensure_future(self.run(reader, writer)))

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
                while await reader.read(1000):
                    pass
            self.ended += 1
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def target(self, password: str | None = None) -> Target:
        return Target(host="127.0.0.1", port=self.port, dbname="shop", user="app", secret=Plain(password or ""))


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Server]:
    """Ends only when all connections have ended: the gateway has to have closed its own."""
    mine = Server(serve)
    server = await asyncio.start_server(mine.accept, "127.0.0.1", 0)
    mine.port = server.sockets[0].getsockname()[1]
    try:
        yield mine
        async with asyncio.timeout(20):
            await asyncio.gather(*mine.tasks)
    finally:
        server.close()
        for task in mine.tasks:
            task.cancel()
        await asyncio.gather(*mine.tasks, return_exceptions=True)
        await server.wait_closed()


async def startup(reader: asyncio.StreamReader) -> None:
    head = await reader.readexactly(4)
    data = head + await reader.readexactly(int.from_bytes(head, "big") - 4)
    assert parse_startup(data) is not None


async def message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


async def trusting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await startup(reader)
    writer.write(WELCOME)


async def scram(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await startup(reader)
    exchange = ServerExchange(b"salt" * 4, 4096, nonce=b"n" * 18)
    writer.write(b.authentication_sasl(["SCRAM-SHA-256"]))
    first = await message(reader)
    writer.write(b.authentication_sasl_continue(exchange.first(first.split(b"\0", 1)[1][4:])))
    final = exchange.final(await message(reader), Derivation("secret", b"salt" * 4, 4096).run())
    writer.write(b.authentication_sasl_final(final) + WELCOME)


async def derive(derivation: Derivation) -> ScramKeys:
    await asyncio.sleep(0)
    return derivation.run()


def ignore(_: Any) -> None: ...


async def open_connection(target: Target, timeout: float = 10.0) -> Opened:
    return await log_in(target, timeout=timeout, derive=derive, tune=ignore)


@pytest.mark.parametrize("serve", [trusting, scram])
async def test_a_login(serve: Serve) -> None:
    async with serving(serve) as server:
        opened = await open_connection(server.target("secret"))
        assert opened.handshake.parameters == {"a": "1"}
        assert opened.handshake.key == b.BackendKeyData(7, b"key!")
        assert opened.rest == b""
        assert not opened.transport.is_reading()
        opened.transport.abort()


async def test_what_comes_behind_it() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await startup(reader)
        writer.write(WELCOME + b.notice("00000", "hello"))

    async with serving(serve) as server:
        opened = await open_connection(server.target())
        assert opened.rest == b.notice("00000", "hello")
        opened.transport.abort()


async def test_a_port_where_nobody_listens() -> None:
    async with serving(trusting) as server:
        target = server.target()
    with pytest.raises(BackendUnavailable, match=f"cannot connect to the server at 127.0.0.1:{target.port}") as raised:
        await open_connection(target)
    assert raised.value.sqlstate == "08001"
    assert raised.value.log == "connect failed: Connection refused"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70, "/no/such/directory"])
async def test_hosts_that_are_none(host: str) -> None:
    with pytest.raises(BackendUnavailable, match="cannot connect to the server at"):
        await open_connection(Target(host=host, port=5432, dbname="shop", user="app"))


async def test_a_server_that_says_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await startup(reader)

    async with serving(serve) as server:
        with pytest.raises(BackendUnavailable, match=r"within server_connect_timeout = 0\.05 s") as raised:
            await open_connection(server.target(), timeout=0.05)
        assert raised.value.log == "connect timeout"


@pytest.mark.parametrize("said", [b"", b"R\0\0", WELCOME[:-1]])
async def test_a_server_that_hangs_up(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await startup(reader)
        writer.write(said)
        writer.close()

    async with serving(serve) as server:
        with pytest.raises(BackendUnavailable, match="lost during login"):
            await open_connection(server.target())


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad\r\n", b"\0" * 40, b"Z\xff\xff\xff\xff", b"D\0\0\0\x04"])
async def test_something_else_that_listens_there(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    async with serving(serve) as server:
        with pytest.raises(BackendRefused, match="server login failed") as raised:
            await open_connection(server.target())
        assert raised.value.sqlstate == "08P01"


async def test_a_server_that_refuses() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await startup(reader)
        writer.write(b.error("3D000", 'database "shop" does not exist', severity="FATAL"))
        writer.close()

    async with serving(serve) as server:
        with pytest.raises(BackendRefused) as raised:
            await open_connection(server.target())
        assert (raised.value.sqlstate, raised.value.message) == ("3D000", 'database "shop" does not exist')
        # A client that is somebody else in front of the gateway sees whose login it was.
        assert raised.value.detail == "So the server answered the gateway's own login as user 'app'."


async def test_a_server_that_hangs_up_while_keys_are_derived() -> None:
    async def slow(derivation: Derivation) -> ScramKeys:
        await asyncio.sleep(0.1)
        return derivation.run()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await startup(reader)
        writer.write(b.authentication_sasl(["SCRAM-SHA-256"]))
        first = await message(reader)
        exchange = ServerExchange(b"salt" * 4, 4096, nonce=b"n" * 18)
        writer.write(b.authentication_sasl_continue(exchange.first(first.split(b"\0", 1)[1][4:])))
        await writer.drain()
        writer.close()

    async with serving(serve) as server:
        with pytest.raises(BackendUnavailable):
            await log_in(server.target("secret"), timeout=10, derive=slow, tune=ignore)


async def test_options_that_the_system_refuses_leave_no_socket() -> None:
    def refuse(_: Any) -> None:
        raise OSError(22, "Invalid argument")

    async with serving(trusting) as server:
        with pytest.raises(BackendUnavailable, match="Invalid argument"):
            await dial(server.target(), asyncio.Protocol, refuse)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("at", range(1, 7))
async def test_a_login_that_is_cancelled_at_each_await_leaves_no_socket(at: int, moment: Moment) -> None:
    async with serving(scram) as server:
        opened: list[Opened] = []

        async def attempt() -> None:
            opened.append(await open_connection(server.target("secret")))

        cancelled = await cancel_at(attempt(), at, moment)
        assert cancelled is not bool(opened)
        for each in opened:
            each.transport.abort()
