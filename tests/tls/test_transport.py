"""TLS over a transport: what each end is told, in which order, and when it is paused."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from helpers.certificates import authority
from helpers.tls_peers import Peer, Peers, client_context, end_to_end, own_certificate, server_context
from helpers.transports import FakeTransport
from helpers.waiting import until
from pgtrunk_gateway.tls import HandshakeError, TlsTransport

LARGE = bytes(range(256)) * 4096  # 1 MB: more than a record, and than one read of a socket


class Contexts:
    def __init__(self, folder: Path) -> None:
        self.ca, self.own = own_certificate()
        self.server = server_context(folder, self.own)
        self.client = client_context(self.ca)

    async def secure(self, peers: Peers) -> None:
        assert await peers.secure(self.server, self.client) == [None, None]


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    return Contexts(tmp_path)


async def test_both_ways(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        await contexts.secure(peers)
        peers.client.transport.write(b"ping")
        peers.server.transport.write(LARGE)
        peers.server.transport.writelines([b"and", bytearray(b" "), memoryview(b"more")])
        await until(lambda: len(peers.client.received) == len(LARGE) + 8)
        assert peers.client.received == LARGE + b"and more"
        await until(lambda: peers.server.received == b"ping")


async def test_what_is_known_of_it(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        below = peers.server.transport
        await contexts.secure(peers)
        server, client = peers.server.transport, peers.client.transport
        assert str(server.get_extra_info("tls")).startswith("TLSv1.3/TLS_")
        assert server.get_extra_info("tls") == client.get_extra_info("tls")
        assert client.get_extra_info("peercert") == contexts.own.certificate
        assert server.get_extra_info("peercert") is None
        assert server.get_extra_info("sslcontext") is contexts.server
        assert isinstance(server.get_extra_info("ssl_object"), ssl.SSLObject)
        assert server.get_extra_info("peername") == below.get_extra_info("peername")
        assert server.get_extra_info("socket") is not None
        assert server.get_protocol() is peers.server
        assert id(below.get_protocol()) == id(server)
        assert "open" in repr(server)


async def test_a_certificate_that_openssl_alone_can_read_is_none(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: bytes) -> None:
        raise ValueError("invalid version")

    async with end_to_end() as peers:
        await contexts.secure(peers)
        monkeypatch.setattr("cryptography.x509.load_der_x509_certificate", refuse)
        assert peers.client.transport.get_extra_info("peercert") is None


async def test_close_sends_all_that_was_written_and_a_close_notify(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        await contexts.secure(peers)
        peers.server.transport.write(LARGE)
        peers.server.transport.close()
        assert peers.server.transport.is_closing()
        peers.server.transport.write(b"too late")
        await peers.client.lost
        assert peers.client.received == LARGE
        assert peers.client.calls == ["eof", "lost"]
        await peers.server.lost
        assert (peers.server.calls, peers.server.error) == (["lost"], None)


async def test_who_stays_after_the_end_of_the_other_may_still_write(contexts: Contexts) -> None:
    async with end_to_end(stays=True) as peers:
        await contexts.secure(peers)
        tls: ssl.SSLObject = peers.client.transport.get_extra_info("ssl_object")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        peers.client.transport._flush()  # type: ignore[attr-defined]
        await until(lambda: peers.server.calls == ["eof"])
        assert not peers.server.transport.is_closing()
        peers.server.transport.write(b"last words")
        peers.server.transport.close()
        await until(lambda: peers.client.calls)


async def test_an_end_without_close_notify_is_an_end(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        below = peers.client.transport
        await contexts.secure(peers)
        peers.client.transport.write(b"bye")
        below.write_eof()
        await peers.server.lost
        assert peers.server.received == b"bye"
        assert (peers.server.calls, peers.server.error) == (["eof", "lost"], None)


async def test_abort_is_for_both_sides_at_once(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        await contexts.secure(peers)
        peers.server.transport.abort()
        await peers.server.lost
        await peers.client.lost
        peers.server.transport.write(b"nobody")
        peers.server.transport.close()
        peers.server.transport.pause_reading()
        peers.server.transport.resume_reading()
        assert peers.server.calls == ["lost"]


async def test_a_reader_that_pauses_holds_the_writer_up(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        await contexts.secure(peers)
        peers.client.transport.pause_reading()
        assert not peers.client.transport.is_reading()
        sent = 0
        while not peers.server.full:
            peers.server.transport.write(LARGE)
            sent += 1
            await asyncio.sleep(0)
            assert sent < 1000
        assert peers.server.transport.get_write_buffer_size() > 0
        assert not peers.client.received
        peers.client.transport.resume_reading()
        assert not peers.client.received  # never from within the call
        await until(lambda: not peers.server.full)
        await until(lambda: len(peers.client.received) == sent * len(LARGE))


async def test_pausing_in_the_middle_of_what_has_been_read(contexts: Contexts) -> None:
    """Each piece is delivered once, in order, and none while it is paused; the end comes last."""
    async with end_to_end() as peers:
        await contexts.secure(peers)
        client, transport = peers.client, peers.client.transport
        taken: list[int] = []

        def take(data: bytes) -> None:
            assert transport.is_reading()
            client.received += data
            taken.append(len(data))
            transport.pause_reading()

        client.data_received = take  # type: ignore[method-assign]
        transport.set_protocol(client)
        peers.server.transport.write(LARGE)
        peers.server.transport.close()
        while len(client.received) < len(LARGE):
            before = len(taken)
            transport.resume_reading()
            await until(lambda before=before: len(taken) > before)  # type: ignore[misc]
            assert not client.calls
        assert client.received == LARGE
        transport.resume_reading()
        await client.lost
        assert client.calls == ["eof", "lost"]


async def test_octets_that_were_read_ahead(contexts: Contexts) -> None:
    """Direct TLS: the ClientHello is with somebody else already, who found out what it is."""
    async with end_to_end() as peers:
        client = TlsTransport(peers.client.transport, contexts.client, server_side=False, server_hostname="localhost")
        peers.client.transport = client
        greeting = asyncio.ensure_future(client.handshake())
        await until(lambda: peers.server.received)
        server = TlsTransport(peers.server.transport, contexts.server, server_side=True)
        peers.server.transport = server
        await server.handshake(bytes(peers.server.received))
        await greeting


async def test_octet_by_octet(contexts: Contexts) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts.client.wrap_bio(incoming, outgoing, server_hostname="localhost")
    below = FakeTransport()
    peer = Peer()
    below.set_protocol(peer)
    server = TlsTransport(below, contexts.server, server_side=True)
    handshake = asyncio.ensure_future(server.handshake())
    while not handshake.done():
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        for octet in outgoing.read():
            server.data_received(bytes([octet]))
        await asyncio.sleep(0)
        incoming.write(below.take())
    client.write(b"octets")
    for octet in outgoing.read():
        server.data_received(bytes([octet]))
    assert peer.received == b"octets"
    server.abort()
    server.connection_lost(None)


# -- handshakes that fail ----------------------------------------------------------------------------------------------


async def test_a_certificate_that_nobody_vouches_for(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        server, client = await peers.secure(contexts.server, client_context(authority("another CA")))
        assert isinstance(client, HandshakeError)
        assert str(client) == "certificate verify failed: unable to get local issuer certificate"
        assert isinstance(server, HandshakeError)
        assert "unknown ca" in str(server)
        await peers.client.lost
        await peers.server.lost
        assert (peers.server.calls, peers.server.error) == (["lost"], server)


async def test_a_certificate_for_another_name(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        _, client = await peers.secure(contexts.server, contexts.client, name="db.example")
        assert "Hostname mismatch" in str(client)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, b"\0" * 8])
async def test_what_is_no_handshake(contexts: Contexts, said: bytes) -> None:
    async with end_to_end() as peers:
        server = TlsTransport(peers.server.transport, contexts.server, server_side=True)
        peers.server.transport = server
        peers.client.transport.write(said)
        with pytest.raises(HandshakeError):
            await server.handshake()
        server.write(b"what nobody could read")
        await peers.server.lost
        await peers.client.lost
        assert b"nobody" not in peers.client.received


async def test_one_that_leaves_in_the_handshake(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        server = TlsTransport(peers.server.transport, contexts.server, server_side=True)
        peers.server.transport = server
        peers.client.transport.write(b"\x16\x03\x01")
        peers.client.transport.write_eof()
        with pytest.raises(HandshakeError, match="unexpected eof"):
            await server.handshake()
        await peers.server.lost


async def test_one_that_is_cut_off_in_the_handshake(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        server = TlsTransport(peers.server.transport, contexts.server, server_side=True)
        peers.server.transport = server
        handshake = asyncio.ensure_future(server.handshake())
        await asyncio.sleep(0)
        peers.server.transport.abort()
        with pytest.raises(ConnectionError):
            await handshake


async def test_a_handshake_that_is_given_up(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        server = TlsTransport(peers.server.transport, contexts.server, server_side=True)
        peers.server.transport = server
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await server.handshake()
        server.close()
        await peers.server.lost


async def test_a_record_that_was_tampered_with_ends_it(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        below = peers.client.transport
        await contexts.secure(peers)
        below.write(b"\x17\x03\x03\x00\x20" + b"\x2a" * 32)
        await peers.server.lost
        assert isinstance(peers.server.error, ConnectionAbortedError)
        assert not peers.server.received
        await peers.client.lost


async def test_with_an_implementation_that_is_not_ours(contexts: Contexts) -> None:
    async with end_to_end() as peers:
        sockets = peers.server.transport.get_extra_info("peername")
        assert sockets
        server = TlsTransport(peers.server.transport, contexts.server, server_side=True)
        handshake = asyncio.ensure_future(server.handshake())
        stock = await asyncio.get_running_loop().start_tls(
            peers.client.transport, peers.client, contexts.client, server_hostname="localhost"
        )
        assert stock is not None
        peers.client.transport, peers.server.transport = stock, server
        await handshake
        stock.write(LARGE)
        server.write(LARGE)
        await until(lambda: len(peers.server.received) == len(peers.client.received) == len(LARGE))
        stock.close()
        await peers.server.lost
        assert peers.server.calls == ["eof", "lost"]
