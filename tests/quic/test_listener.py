from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

import pytest

from helpers.listening import SERVER, echo_server, server_config
from helpers.stock_client import stock_client
from pgtrunk.errors import CertificateFileError, UsageError
from pgtrunk_gateway.quic.server import listen

if TYPE_CHECKING:
    from pathlib import Path

    from pgtrunk_gateway.quic.server import ServerConfig


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return server_config(tmp_path)


# Addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "*"])
async def test_a_client_gets_its_answer(config: ServerConfig, host: str) -> None:
    async with echo_server(config, host) as server:
        hosts = {"0.0.0.0": ["127.0.0.1"], "::": ["::1"], "*": ["127.0.0.1", "::1"]}
        for target in hosts.get(host, [address[0] for address in server.listener.addresses]):
            async with stock_client((target, server.port)) as client:
                assert await client.echo(b"to " + target.encode()) == b"to " + target.encode()
                assert server.accepted[-1].get_extra_info("sockname")[:2] == (target, server.port)
                peer = server.accepted[-1].get_extra_info("peername")
                assert client._transport is not None
                assert peer == client._transport.get_extra_info("sockname")


async def test_all_addresses_share_a_port(config: ServerConfig) -> None:
    async with echo_server(config, "*") as server:
        assert [address[0] for address in server.listener.addresses] == ["0.0.0.0", "::"]
        assert len({address[1] for address in server.listener.addresses}) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "*"])
@pytest.mark.parametrize("target", ["127.0.0.2", "127.3.2.1"])
async def test_the_answer_comes_from_the_address_that_was_hit(config: ServerConfig, host: str, target: str) -> None:
    # The client's socket is connected, so it would not even see an answer from elsewhere.
    async with echo_server(config, host) as server, stock_client((target, server.port)) as client:
        assert await client.echo() == b"hello"
        assert server.accepted[0].get_extra_info("sockname") == (target, server.port)


async def test_a_taken_port_is_an_error(config: ServerConfig) -> None:
    async with echo_server(config) as server:
        with pytest.raises(OSError, match=r"127\.0\.0\.1 port") as caught:
            await listen("127.0.0.1", server.port, config=config, accept=lambda transport: asyncio.Protocol())
        assert caught.value.errno == errno.EADDRINUSE


async def test_an_unknown_host_is_an_error(config: ServerConfig) -> None:
    with pytest.raises(socket.gaierror):
        await listen("no such host.invalid", 0, config=config, accept=lambda transport: asyncio.Protocol())


async def test_files_and_keys_are_looked_at_before_ports(tmp_path: Path) -> None:
    with pytest.raises(CertificateFileError, match="quic_key_file"):
        config = server_config(tmp_path, key_file=str(tmp_path / "none"))
        await listen("127.0.0.1", 0, config=config, accept=lambda transport: asyncio.Protocol())
    with pytest.raises(CertificateFileError, match="quic_client_ca_file"):
        config = server_config(tmp_path, client_ca_file=str(tmp_path / "none"))
        await listen("127.0.0.1", 0, config=config, accept=lambda transport: asyncio.Protocol())
    with pytest.raises(UsageError, match="32 bytes"):
        config = server_config(tmp_path, keys=(b"short",))
        await listen("127.0.0.1", 0, config=config, accept=lambda transport: asyncio.Protocol())


async def test_warnings_are_shown(tmp_path: Path) -> None:
    nameless = SERVER.issue("gateway", usage=None)
    async with echo_server(server_config(tmp_path, nameless)) as server:
        assert any("no subject alternative name" in warning for warning in server.listener.warnings)
