"""Certificates that are replaced under a listener: who comes later sees the new ones, who is there goes on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from helpers.certificates import SERVER_AUTH, authority
from helpers.listening import CA, EchoServer, echo_server, server_config
from pgtrunk.errors import CertificateError, CertificateFileError
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.quic.connecting import connect
from pgtrunk_gateway.quic.identity import Identity

if TYPE_CHECKING:
    from pathlib import Path

    from helpers import certificates
    from pgtrunk.quic.client import ClientConnection

NEXT = authority("the next")
PATIENCE = 30.0


class Asking(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard = bytearray()
        self.done = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.done.set()


async def enter(server: EchoServer, config: ClientConfig) -> ClientConnection:
    return await connect("127.0.0.1", server.port, config=config, timeout=PATIENCE)


async def leave(connection: ClientConnection) -> None:
    connection.close()
    async with asyncio.timeout(PATIENCE):
        await connection.wait_closed()


async def echo(connection: ClientConnection) -> None:
    transport, protocol = connection.open_stream(Asking)
    transport.write(b"hello")
    async with asyncio.timeout(PATIENCE):
        while len(protocol.heard) < 5:
            protocol.done.clear()
            await protocol.done.wait()
    transport.close()


def renewed(folder: Path, ca: certificates.Identity, client_ca: certificates.Identity | None = None) -> Identity:
    own = ca.issue("gateway", usage=[SERVER_AUTH], names=["127.0.0.1"])
    cert_file, key_file = own.save(folder, "renewed")
    clients = None
    if client_ca is not None:
        clients = str(folder / "clients.pem")
        (folder / "clients.pem").write_bytes(client_ca.pem)
    return Identity.load(cert_file, key_file, clients, now=time.time())


async def test_a_new_certificate_under_a_running_connection(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server:
        running = await enter(server, ClientConfig(ca_data=CA.pem))
        await echo(running)
        server.listener.reload_certificates(renewed(tmp_path, NEXT))
        await echo(running)
        later = await enter(server, ClientConfig(ca_data=NEXT.pem))
        await echo(later)
        with pytest.raises(CertificateError):
            await enter(server, ClientConfig(ca_data=CA.pem))
        await echo(running)
        await leave(running)
        await leave(later)


async def test_clients_have_to_show_a_certificate_from_now_on(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server:
        running = await enter(server, ClientConfig(ca_data=CA.pem))
        server.listener.reload_certificates(renewed(tmp_path, CA, client_ca=NEXT))
        with pytest.raises(CertificateError, match="requires a client certificate"):
            await enter(server, ClientConfig(ca_data=CA.pem))
        cert_file, key_file = NEXT.issue("app").save(tmp_path, "app")
        later = await enter(server, ClientConfig(ca_data=CA.pem, cert_file=cert_file, key_file=key_file))
        await echo(later)
        await echo(running)
        await leave(running)
        await leave(later)


async def test_what_is_given_out_already_stays_as_it_is(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server:
        before = server.listener.door.quic
        certificate = before.certificate
        server.listener.reload_certificates(renewed(tmp_path, NEXT))
        assert before.certificate == certificate
        assert server.listener.door.quic.certificate != certificate


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    cert_file, _ = NEXT.issue("gateway").save(tmp_path, "one")
    _, key_file = NEXT.issue("gateway").save(tmp_path, "two")
    with pytest.raises(CertificateFileError, match="is not the key of"):
        Identity.load(cert_file, key_file, None, now=time.time())


def test_warnings_of_both_files(tmp_path: Path) -> None:
    own = NEXT.issue("gateway", usage=[SERVER_AUTH], names=["db"], days=(-9, -1))
    cert_file, key_file = own.save(tmp_path, "old")
    (tmp_path / "clients.pem").write_bytes(authority(days=(-9, -1)).pem)
    identity = Identity.load(cert_file, key_file, str(tmp_path / "clients.pem"), now=time.time())
    assert sum("expired" in warning for warning in identity.warnings) == 2
