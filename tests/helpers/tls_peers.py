"""Both ends of a TLS connection over loopback: contexts, and protocols that record what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any, cast

from helpers.certificates import SERVER_AUTH, Identity, authority
from pgtrunk_gateway.tls import HandshakeError, TlsTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["Peer", "Peers", "client_context", "end_to_end", "own_certificate", "server_context"]


def own_certificate(ca: Identity | None = None) -> tuple[Identity, Identity]:
    """A CA, and a certificate of its for this machine."""
    ca = ca or authority()
    return ca, ca.issue("localhost", usage=[SERVER_AUTH], names=["localhost", "127.0.0.1"])


def server_context(folder: Path, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identity.save(folder, "peer"))
    return context


def client_context(ca: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca.pem.decode())
    return context


class Peer(asyncio.Protocol):
    """One end. It keeps open what the other has ended where ``stays`` is true."""

    def __init__(self, *, stays: bool = False) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.stays = stays
        self.full = False
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data
        self.received += data

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.stays

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.error = exc
        self.lost.set_result(None)


class Peers:
    """The two ends, once both are connected in clear: ``secure`` puts TLS over them."""

    def __init__(self, client: Peer, server: Peer) -> None:
        self.client, self.server = client, server

    async def secure(
        self, server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = "localhost"
    ) -> list[BaseException | None]:
        """Both handshakes -> what each of them raised, the server's first."""
        there = TlsTransport(self.server.transport, server, server_side=True)
        here = TlsTransport(self.client.transport, client, server_side=False, server_hostname=name)
        self.server.transport, self.client.transport = there, here
        done = await asyncio.gather(there.handshake(), here.handshake(), return_exceptions=True)
        for each in done:
            assert each is None or isinstance(each, HandshakeError | OSError)
        return list(done)


@contextlib.asynccontextmanager
async def end_to_end(**options: Any) -> AsyncIterator[Peers]:
    """Two peers connected over TCP."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Queue[Peer] = asyncio.Queue()

    class Accepted(Peer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            accepted.put_nowait(self)

    listening = await loop.create_server(lambda: Accepted(**options), "127.0.0.1", 0)
    try:
        _, client = await loop.create_connection(Peer, *listening.sockets[0].getsockname())
        server = await accepted.get()
        try:
            yield Peers(client, server)
        finally:
            for peer in (client, server):
                peer.transport.abort()
                await peer.lost
    finally:
        listening.close()
        await listening.wait_closed()
