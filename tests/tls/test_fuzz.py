"""Whatever comes in place of TLS, in whatever pieces: the handshake fails in words, and nothing of it gets through."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tls_peers import Peer, client_context, own_certificate, server_context
from helpers.transports import FakeTransport
from pgtrunk_gateway.tls import HandshakeError, TlsTransport

CA, OWN = own_certificate()
with tempfile.TemporaryDirectory() as folder:
    SERVER = server_context(Path(folder), OWN)
CLIENT = client_context(CA)

record = st.builds(
    lambda kind, version, body, cut: (bytes([kind, 3, version]) + len(body).to_bytes(2, "big") + body)[: cut or None],
    st.sampled_from([20, 21, 22, 23, 24]),
    st.integers(0, 4),
    st.binary(max_size=200),
    st.integers(0, 8),
)
noise = st.lists(st.one_of(record, st.binary(min_size=1, max_size=300)), min_size=1, max_size=8)


def run(feed: Any) -> None:
    async def scene() -> None:
        below = FakeTransport()
        peer = Peer()
        below.set_protocol(peer)
        tls = TlsTransport(below, SERVER, server_side=True)
        handshake = asyncio.ensure_future(tls.handshake())
        await asyncio.sleep(0)
        feed(tls, below)
        tls.eof_received()
        tls.connection_lost(None)
        try:
            await handshake
        except HandshakeError as error:
            assert "\n" not in str(error)
        assert not peer.received
        assert peer.calls.count("lost") == 1

    asyncio.run(scene())


@settings(max_examples=100, deadline=None)
@given(noise)
def test_noise(pieces: list[bytes]) -> None:
    def feed(tls: TlsTransport, _: FakeTransport) -> None:
        for piece in pieces:
            tls.data_received(piece)

    run(feed)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_client_hello_with_a_flipped_octet(data: st.DataObject) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = CLIENT.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        hello = bytearray(outgoing.read())
    at = data.draw(st.integers(0, len(hello) - 1))
    hello[at] ^= data.draw(st.integers(1, 255))

    def feed(tls: TlsTransport, _: FakeTransport) -> None:
        tls.data_received(bytes(hello))
        tls.data_received(b"\x17\x03\x03\x00\x05hello")

    run(feed)
