"""A gateway reduced to its QUIC: a socket on loopback, and a driver for whoever sends an Initial packet."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from helpers.quic_pair import Echo, identities, present
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.quic.config import ByteBudget, QuicLimits, quic_configuration
from pgtrunk.quic.connection import Connection
from pgtrunk.quic.driver import ConnectionDriver
from pgtrunk.quic.sockets import tune

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic import tls
    from aioquic.quic.configuration import QuicConfiguration


class LoopbackServer(asyncio.DatagramProtocol):
    """``async with LoopbackServer(accept) as server`` listens on ``server.port`` of 127.0.0.1 (or ``host``)."""

    def __init__(
        self,
        accept: Callable[[], asyncio.BaseProtocol] = Echo,
        *,
        limits: QuicLimits | None = None,
        budget: ByteBudget | None = None,
        host: str = "127.0.0.1",
        configure: Callable[[QuicConfiguration], None] = present,
        make_tls: Callable[[tls.Context], tls.Context] | None = None,
        answers: bool = True,
    ) -> None:
        self.accept = accept
        self.limits = limits or QuicLimits()
        self.budget = budget
        self.host = host
        self.answers = answers
        self.drivers: list[ConnectionDriver] = []
        self.protocols: list[Any] = []
        self._make_tls = make_tls
        self._by_cid: dict[bytes, ConnectionDriver] = {}
        self._wire: asyncio.DatagramTransport | None = None
        self._configuration = quic_configuration(self.limits, is_client=False)
        self._gone = asyncio.Event()
        configure(self._configuration)

    async def __aenter__(self) -> LoopbackServer:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM)
        tune(sock, self.limits.socket_buffer)
        sock.bind((self.host, 0))
        sock.setblocking(False)
        self.port: int = sock.getsockname()[1]
        wire, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)
        self._wire = wire
        return self

    async def __aexit__(self, *_: object) -> None:
        for driver in self.drivers:
            driver.close()
            driver.abandon(None)
        self.vanish()
        await self._gone.wait()

    def vanish(self) -> None:
        """Close the socket without a word."""
        if self._wire is not None:
            self._wire.close()

    @property
    def driver(self) -> ConnectionDriver:
        return self.drivers[-1]

    def client(self, **settings: Any) -> ClientConfig:
        """How a client reaches this server."""
        return ClientConfig(**{"ca_data": identities()[0].pem, **settings})

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if not self.answers:
            return
        cid = data[6 : 6 + data[5]] if data[0] & 0x80 else data[1:9]
        driver = self._by_cid.get(cid)
        if driver is None:
            if not data[0] & 0x80:
                return
            driver = self._by_cid[cid] = self._new(cid)
        driver.receive(data, addr)

    def _new(self, cid: bytes) -> ConnectionDriver:
        assert self._wire is not None
        wire = self._wire
        quic = Connection(
            configuration=self._configuration,
            limits=self.limits,
            budget=self.budget,
            make_tls=self._make_tls,
            original_destination_connection_id=cid,
        )
        driver = ConnectionDriver(
            quic,
            loop=asyncio.get_running_loop(),
            send=lambda data, addr: None if wire.is_closing() else wire.sendto(data, addr),
            accept=self._accepted,
            on_cid_issued=lambda cid: self._by_cid.__setitem__(cid, driver),
            on_cid_retired=lambda cid: self._by_cid.pop(cid),
        )
        for cid in driver.cids:
            self._by_cid[cid] = driver
        self.drivers.append(driver)
        return driver

    def _accepted(self, transport: asyncio.Transport) -> asyncio.BaseProtocol:
        self.protocols.append(self.accept())
        protocol: asyncio.BaseProtocol = self.protocols[-1]
        return protocol

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
