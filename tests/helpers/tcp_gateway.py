"""A gateway reduced to its TCP: it is asked for TLS or takes it at once, as it is told, and echoes or what you like."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from helpers.quic_pair import Echo, identities
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.wire.startup import SSLRequest
from pgtrunk_gateway.tls import TlsTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.certificates import Identity

__all__ = ["TcpGateway"]

SSL_REQUEST = SSLRequest().encode()


class TcpGateway:
    """``async with TcpGateway(accept) as gateway`` listens on ``gateway.port`` of 127.0.0.1."""

    def __init__(
        self,
        accept: Callable[[], asyncio.BaseProtocol] = Echo,
        *,
        port: int = 0,
        identity: Identity | None = None,
        clients: Identity | None = None,
        direct: bool = True,
        tls: bool = True,
        answers: bool = True,
        alpn: str | None = "postgresql",
    ) -> None:
        self.accept = accept
        self.direct, self.tls, self.answers = direct, tls, answers
        self.port = port
        self.connections: list[Arrival] = []
        """All that have come, in order."""
        self.protocols: list[Any] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.num_tickets = 0
        with tempfile.TemporaryDirectory() as folder:
            self.context.load_cert_chain(*(identity or identities()[1]).save(Path(folder), "gateway"))
        if alpn is not None:
            self.context.set_alpn_protocols([alpn])
        if clients is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_verify_locations(cadata=clients.pem.decode())
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> TcpGateway:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Arrival(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def vanish(self) -> None:
        """Closes all sockets without a word."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self.connections:
            connection.transport.abort()
            if connection.tls is not None:
                connection.tls.cancel()
        await asyncio.gather(*(connection.gone.wait() for connection in self.connections))

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return sum(not connection.gone.is_set() for connection in self.connections)

    def client(self, **settings: Any) -> ClientConfig:
        """How a client reaches it."""
        return ClientConfig(**{"ca_data": identities()[0].pem, **settings})


class Arrival(asyncio.Protocol):
    """One connection, until it has TLS; then its session's protocol has its place."""

    def __init__(self, gateway: TcpGateway) -> None:
        self.gateway = gateway
        self.transport: asyncio.Transport
        self.first = b""
        """What came first: SSLRequest, or the beginning of a ClientHello."""
        self.gone = asyncio.Event()
        self.tls: asyncio.Task[None] | None = None
        self._session: Any = None
        self._early = b""
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.gateway.connections.append(self)

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.data_received(data)
            return
        if self.tls is not None:
            # Of the session, behind a handshake that is over; whoever waits for it has not had its turn.
            self._early += data
            return
        gateway = self.gateway
        if not gateway.answers:
            return
        asked = self.first == SSL_REQUEST
        self.first = self.first or data
        if data == SSL_REQUEST:
            self.transport.write(b"S" if gateway.tls else b"N")
        elif gateway.tls and data[:1] == b"\x16" and (asked or gateway.direct):
            self.tls = asyncio.ensure_future(self._shake(data))
        else:
            # As a server that has taken it for a startup packet.
            self.transport.write(b"Einvalid length of startup packet\0")
            self.transport.close()

    async def _shake(self, data: bytes) -> None:
        tls = TlsTransport(self.transport, self.gateway.context, server_side=True)
        tls.set_protocol(self)
        try:
            await tls.handshake(data)
        except OSError:
            return
        self._session = self.gateway.accept()
        self.gateway.protocols.append(self._session)
        self._session.connection_made(tls)
        if self._early:
            self._session.data_received(self._early)
        if self._ended and not self._session.eof_received():
            tls.close()

    def eof_received(self) -> Any:
        self._ended = True
        return self._session.eof_received() if self._session is not None else self.tls is not None

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._session is not None:
            self._session.connection_lost(exc)
        self.gone.set()
