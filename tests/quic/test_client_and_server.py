"""Our client and our listener, face to face, on both event loops."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from helpers.certificates import SERVER_AUTH, Identity, authority
from helpers.listening import CA, EchoServer, echo_server, server_config
from pgtrunk.errors import CertificateError, GatewayUnreachable
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.quic.connecting import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from pgtrunk.quic.client import ClientConnection


PATIENCE = 30.0


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on asyncio's own loop and on uvloop, whose UDP is another."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    def on_loop(run: Callable[[Coroutine[Any, Any, None]], None], **fixtures: Any) -> None:
        run(test(**fixtures))

    on_loop.__name__ = test.__name__
    parameters = inspect.signature(on_loop).parameters["run"], *inspect.signature(test).parameters.values()
    vars(on_loop)["__signature__"] = inspect.Signature(parameters)
    vars(on_loop)["pytestmark"] = [*vars(on_loop)["pytestmark"], *vars(test).get("pytestmark", [])]
    made: Callable[..., None] = on_loop
    return made


class Asking(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard = bytearray()
        self.news = asyncio.Event()
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.news.set()
        self.lost.set_result(exc)

    async def hear(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            while len(self.heard) < size:
                self.news.clear()
                await self.news.wait()
        return bytes(self.heard)


def client_config(folder: Path, client: Identity | None = None, ca: Identity = CA) -> ClientConfig:
    if client is None:
        return ClientConfig(ca_data=ca.pem)
    cert_file, key_file = client.save(folder, "client")
    return ClientConfig(ca_data=ca.pem, cert_file=cert_file, key_file=key_file)


async def finish(connection: ClientConnection) -> None:
    connection.close()
    async with asyncio.timeout(PATIENCE):
        await connection.wait_closed()


async def echo(connection: ClientConnection, data: bytes) -> bytes:
    transport, protocol = connection.open_stream(Asking)
    transport.write(data)
    answer = await protocol.hear(len(data))
    transport.close()
    return answer


@on_both_loops
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "*"])
async def test_streams_go_there_and_back(tmp_path: Path, host: str) -> None:
    async with echo_server(server_config(tmp_path), host) as server:
        targets = ["127.0.0.1", "::1"] if host == "*" else [host]
        for target in targets:
            connection = await connect(target, server.port, config=client_config(tmp_path), timeout=PATIENCE)
            data = bytes(range(256)) * 200
            answers = await asyncio.gather(*(echo(connection, data[n:]) for n in range(20)))
            assert answers == [data[n:] for n in range(20)]
            await finish(connection)
        await server.until(connections=0, streams=0, connection_ids=0)


@on_both_loops
async def test_retry_is_gone_through(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path, retry="always")) as server:
        connection = await connect("localhost", server.port, config=client_config(tmp_path), timeout=PATIENCE)
        assert await echo(connection, b"hello") == b"hello"
        assert server.listener.counters.retries == 1
        await finish(connection)


def mutual(folder: Path) -> Any:
    file = folder / "client-ca.pem"
    file.write_bytes(CA.pem)
    return server_config(folder, client_ca_file=str(file))


@on_both_loops
async def test_a_client_with_a_certificate_gets_in(tmp_path: Path) -> None:
    app = CA.issue("app")
    async with echo_server(mutual(tmp_path)) as server:
        connection = await connect("127.0.0.1", server.port, config=client_config(tmp_path, app), timeout=PATIENCE)
        assert await echo(connection, b"hello") == b"hello"
        assert server.accepted[0].get_extra_info("peercert") == app.certificate
        await finish(connection)


@on_both_loops
@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (None, "requires a client certificate"),
        (authority("other").issue("app"), "does not lead to a CA"),
        (CA.issue("app", days=(-9, -1)), "expired"),
        (CA.issue("app", usage=[SERVER_AUTH]), "lacks the extended key usage clientAuth"),
    ],
    ids=["no certificate", "other CA", "expired", "wrong EKU"],
)
async def test_a_client_learns_why_it_is_not_let_in(tmp_path: Path, identity: Identity | None, words: str) -> None:
    async with echo_server(mutual(tmp_path)) as server:
        with pytest.raises(CertificateError, match=words):
            await connect("127.0.0.1", server.port, config=client_config(tmp_path, identity), timeout=PATIENCE)
        assert server.accepted == []


@on_both_loops
async def test_a_gateway_of_another_ca_is_not_trusted(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server:
        with pytest.raises(CertificateError):
            await connect("127.0.0.1", server.port, config=client_config(tmp_path, ca=authority()), timeout=PATIENCE)
        await server.until(half_open=0, connections=0, connection_ids=0)


@on_both_loops
async def test_a_draining_gateway_is_unreachable_at_once(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server:
        server.listener.stop_accepting()
        with pytest.raises(GatewayUnreachable, match="CONNECTION_REFUSED"):
            await connect("127.0.0.1", server.port, config=client_config(tmp_path), timeout=PATIENCE)


@on_both_loops
async def test_a_gateway_that_closes_ends_sessions_in_words(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path), "*") as server:
        connection = await connect("127.0.0.1", server.port, config=client_config(tmp_path), timeout=PATIENCE)
        transport, protocol = connection.open_stream(Asking)
        transport.write(b"hello")
        await protocol.hear(5)
        server.listener.close()
        async with asyncio.timeout(PATIENCE):
            error = await protocol.lost
        assert "the gateway is shutting down" in str(error)
        await finish(connection)


@on_both_loops
async def test_connections_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server:
        for _ in range(3):
            await asyncio.gather(*(visit(server, tmp_path) for _ in range(8)))
        await server.until(connections=0, half_open=0, streams=0, connection_ids=0)
        assert server.listener.counters.opened == 24


async def visit(server: EchoServer, folder: Path) -> None:
    connection = await connect("127.0.0.1", server.port, config=client_config(folder), timeout=PATIENCE)
    assert await echo(connection, b"hello") == b"hello"
    await finish(connection)
