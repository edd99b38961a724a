"""Who gets in over a real socket, and as whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription
from cryptography import x509

from helpers.certificates import SERVER_AUTH, Identity, authority, self_signed
from helpers.listening import CA, SERVER, EchoServer, echo_server, server_config
from helpers.stock_client import stock_client

if TYPE_CHECKING:
    from pathlib import Path

    from pgtrunk_gateway.quic.server import ServerConfig

APP = CA.issue("app")
OTHER = authority("another CA")


@pytest.fixture
def mutual(tmp_path: Path) -> ServerConfig:
    return mutual_config(tmp_path, CA)


def mutual_config(folder: Path, *cas: Identity, **changes: Any) -> ServerConfig:
    file = folder / "client-ca.pem"
    file.write_bytes(b"".join(ca.pem for ca in cas))
    return server_config(folder, client_ca_file=str(file), **changes)


def peer(server: EchoServer) -> x509.Certificate | None:
    certificate: x509.Certificate | None = server.accepted[-1].get_extra_info("peercert")
    return certificate


def on_port_of(server: EchoServer, **options: Any) -> Any:
    return stock_client(server.address, **options)


async def test_without_client_cas_nobody_is_asked(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server, on_port_of(server, client=APP) as client:
        await client.echo()
        assert peer(server) is None


async def test_the_right_certificate_gets_in_and_is_known(mutual: ServerConfig) -> None:
    async with echo_server(mutual) as server, on_port_of(server, client=APP) as client:
        await client.echo()
        assert peer(server) == APP.certificate


REFUSED = {
    "no certificate": (None, AlertDescription.certificate_required),
    "self-signed": (self_signed("app"), AlertDescription.unknown_ca),
    "other CA": (OTHER.issue("app"), AlertDescription.unknown_ca),
    "expired": (CA.issue("app", days=(-9, -1)), AlertDescription.certificate_expired),
    "not yet valid": (CA.issue("app", days=(1, 9)), AlertDescription.certificate_expired),
    "wrong EKU": (CA.issue("app", usage=[SERVER_AUTH]), AlertDescription.unsupported_certificate),
    "the gateway's own": (SERVER, AlertDescription.unsupported_certificate),
    "not its key": (replace(APP, key=OTHER.key), AlertDescription.decrypt_error),
}


@pytest.mark.parametrize(("identity", "alert"), REFUSED.values(), ids=REFUSED.keys())
async def test_the_wrong_certificate_is_told_why(
    mutual: ServerConfig, identity: Identity | None, alert: AlertDescription
) -> None:
    async with echo_server(mutual) as server, on_port_of(server, client=identity, confirmed=False) as client:
        client.write(b"let me in")
        end = await client.end()
        assert end.error_code == QuicErrorCode.CRYPTO_ERROR + alert
        assert server.accepted == [], "nothing of it reaches a session"
        await server.until(half_open=0, connections=0, connection_ids=0)


async def test_no_common_protocol_is_told(tmp_path: Path) -> None:
    config = server_config(tmp_path, alpn=("other",))
    async with echo_server(config) as server, on_port_of(server, start=False) as client:
        assert client._transport is not None
        client.connect(client._transport.get_extra_info("peername"))
        end = await client.end()
        assert end.error_code == QuicErrorCode.CRYPTO_ERROR + AlertDescription.no_application_protocol


# Resumption


async def test_a_client_resumes_as_who_it_was(mutual: ServerConfig) -> None:
    async with echo_server(mutual) as server:
        async with on_port_of(server, client=APP) as client:
            ticket = await client.ticket()
        async with on_port_of(server, ticket=ticket) as client:
            assert client.handshake.session_resumed
            await client.echo()
            assert peer(server) == APP.certificate


async def test_another_worker_resumes(tmp_path: Path) -> None:
    async with echo_server(mutual_config(tmp_path, CA)) as one, on_port_of(one, client=APP) as client:
        ticket = await client.ticket()
    rotated = mutual_config(tmp_path, CA, keys=(b"n" * 32, b"k" * 32))
    async with echo_server(rotated) as two, on_port_of(two, ticket=ticket) as client:
        assert client.handshake.session_resumed
        await client.echo()
        assert peer(two) == APP.certificate
    stranger = mutual_config(tmp_path, CA, keys=(b"n" * 32,))
    async with echo_server(stranger) as three, on_port_of(three, ticket=ticket, client=APP) as client:
        assert not client.handshake.session_resumed


@pytest.mark.parametrize("before", ["no client CAs", "another set"])
async def test_a_ticket_from_before_the_change_of_cas_is_no_way_in(tmp_path: Path, before: str) -> None:
    loose = server_config(tmp_path) if before == "no client CAs" else mutual_config(tmp_path, CA, OTHER)
    async with echo_server(loose) as server, on_port_of(server, client=APP) as client:
        ticket = await client.ticket()
    async with echo_server(mutual_config(tmp_path, CA)) as server:
        async with on_port_of(server, ticket=ticket, confirmed=False) as client:
            end = await client.end()
            assert end.error_code == QuicErrorCode.CRYPTO_ERROR + AlertDescription.certificate_required
        async with on_port_of(server, ticket=ticket, client=APP) as client:
            assert not client.handshake.session_resumed
            await client.echo()
            assert peer(server) == APP.certificate


# Early data


async def test_early_data_is_not_acted_upon_before_the_handshake(tmp_path: Path) -> None:
    async with echo_server(server_config(tmp_path)) as server:
        async with on_port_of(server) as client:
            ticket = await client.ticket()
        assert ticket.max_early_data_size is None
        # A client that sends early data all the same, and remembers the parameters that let it.
        eager = replace(ticket, max_early_data_size=0xFFFFFFFF)
        async with on_port_of(server, ticket=eager, start=False) as client:
            opened = len(server.accepted)
            client.connect(client._transport.get_extra_info("peername"), transmit=False)
            stream_id = client.write(b"replay me")
            early = [packet_type(datagram) for datagram in await server_hears(server, client)]
            assert early.count("0-RTT") >= 1, "early data did go out"
            assert len(server.accepted) == opened, "and nothing came of it"
            async with asyncio.timeout(10):
                await client.wait_connected()
            assert client.handshake.session_resumed
            assert not client.handshake.early_data_accepted
            # What was refused comes again under the handshake's own keys, and is answered then.
            assert await client.hear(stream_id, 9) == b"replay me"


async def server_hears(server: EchoServer, client: Any) -> list[bytes]:
    """Holds the client's answers back until the server has its first flight, and returns that."""
    sent: list[bytes] = []
    real = server.listener._demux.datagram_received

    def spy(data: bytes, path: Any) -> None:
        sent.append(data)
        real(data, path)

    for endpoint in server.listener._endpoints:
        endpoint._receive = spy  # type: ignore[attr-defined]
    client.transmit()
    async with asyncio.timeout(10):
        while server.listener.half_open == 0 and server.listener.connections == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return list(sent)


def packet_type(datagram: bytes) -> str:
    """What is in a datagram behind its Initial packet."""
    at, found = 0, "none"
    while at < len(datagram) and datagram[at] & 0x80:
        found = ["Initial", "0-RTT", "Handshake", "Retry"][datagram[at] >> 4 & 3]
        if found != "Initial":
            return found
        at += 6 + datagram[at + 5]
        at += 1 + datagram[at]
        token, at = varint(datagram, at)
        size, at = varint(datagram, at + token)
        at += size
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    size = 1 << (data[at] >> 6)
    return int.from_bytes(data[at : at + size], "big") & ~(3 << (size * 8 - 2)), at + size
