"""aioquic's own client on a connected socket, so that tests of our server do not depend on our client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioquic.tls import SessionTicket

    from helpers.certificates import Identity

PATIENCE = 30.0


class StockClient(QuicConnectionProtocol):
    """A client that remembers what it is told."""

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        self.tickets: list[SessionTicket] = []
        self.handshake: events.HandshakeCompleted | None = None
        self.terminated: events.ConnectionTerminated | None = None
        self.ended = asyncio.Event()
        self._answers: dict[int, bytearray] = {}
        self._news = asyncio.Event()

    @property
    def quic(self) -> QuicConnection:
        return self._quic

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            self._answers.setdefault(event.stream_id, bytearray()).extend(event.data)
            self._news.set()
        elif isinstance(event, events.HandshakeCompleted):
            self.handshake = event
        elif isinstance(event, events.ConnectionTerminated):
            self.terminated = event
            self.ended.set()

    def write(self, data: bytes) -> int:
        """Sends data on a new stream and returns the stream's id."""
        stream_id = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(stream_id, data)
        self.transmit()
        return stream_id

    async def hear(self, stream_id: int, size: int) -> bytes:
        """Waits for so much on a stream."""
        async with asyncio.timeout(PATIENCE):
            while len(self._answers.get(stream_id, b"")) < size:
                self._news.clear()
                await self._news.wait()
        return bytes(self._answers[stream_id])

    async def echo(self, data: bytes = b"hello") -> bytes:
        """Sends data on a new stream and waits for as much to come back."""
        return await self.hear(self.write(data), len(data))

    async def end(self) -> events.ConnectionTerminated:
        """Waits for the connection's end and returns what it was told."""
        async with asyncio.timeout(PATIENCE):
            await self.ended.wait()
        assert self.terminated is not None
        return self.terminated

    async def ticket(self) -> SessionTicket:
        """Waits for a session ticket: it comes before the answer to anything that is asked."""
        await self.ping()
        assert self.tickets
        return self.tickets[-1]

    async def move(self, source: str) -> None:
        """Goes on from a new socket at ``source``, as after a NAT's rebinding."""
        old, remote = self._transport, self._quic._network_paths[0].addr
        assert old is not None
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind((source, 0))
        sock.connect(remote)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=sock)
        old.abort()


def configuration(
    *, client: Identity | None = None, ticket: SessionTicket | None = None, versions: tuple[int, ...] = (1,)
) -> QuicConfiguration:
    made = QuicConfiguration(
        is_client=True,
        alpn_protocols=["postgresql"],
        server_name="localhost",
        verify_mode=0,
        session_ticket=ticket,
        supported_versions=list(versions) or [QuicProtocolVersion.VERSION_1],
    )
    if client is not None:
        made.certificate, made.private_key = client.certificate, client.key
        made.certificate_chain = list(client.chain)
    return made


@contextlib.asynccontextmanager
async def stock_client(
    address: tuple[Any, ...], *, start: bool = True, confirmed: bool = True, **options: Any
) -> AsyncIterator[StockClient]:
    """Connects to ``address``; with ``start`` waits for the handshake, with ``confirmed`` until the server has it too.

    ``options`` are those of ``configuration``.
    """
    heard: list[SessionTicket] = []
    quic = QuicConnection(configuration=configuration(**options), session_ticket_handler=heard.append)
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_datagram_endpoint(lambda: StockClient(quic), remote_addr=address[:2])
    client.tickets = heard
    try:
        if start:
            client.connect(transport.get_extra_info("peername"))
            async with asyncio.timeout(PATIENCE):
                await client.wait_connected()
                if confirmed:
                    await client.ping()
        yield client
    finally:
        client.close()
        if client._timer is not None:
            client._timer.cancel()
        for each in {transport, client._transport}:
            if each is not None:
                each.abort()
