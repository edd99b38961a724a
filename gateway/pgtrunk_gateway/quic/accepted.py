"""One connection of a listener, from its first packet on: its driver, and what the listener has to know of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from aioquic.quic.connection import QuicConnectionAdapter, QuicConnectionState

from pgtrunk.quic.driver import ConnectionDriver
from pgtrunk_gateway.quic.server_tls import ServerContext
from pgtrunk_gateway.quic.udp import Path

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pgtrunk.errors import TrunkError
    from pgtrunk.quic.connection import Connection
    from pgtrunk.quic.transport import StreamTransport
    from pgtrunk_gateway.quic.admission import HalfOpen
    from pgtrunk_gateway.quic.listener import Listener

__all__ = ["Accepted", "Hushed"]


class Hushed(QuicConnectionAdapter):
    """aioquic warns of each mistake that a peer makes, and with that any stranger could fill a log."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(logging.DEBUG, msg, *args, **kwargs)


class Accepted:
    """One connection of a listener, from its first packet on."""

    def __init__(self, listener: Listener, quic: Connection, half_open: HalfOpen, path: Path) -> None:
        self._listener = listener
        self._half_open: HalfOpen | None = half_open
        self._quic = quic
        self.driver = ConnectionDriver(
            quic,
            loop=listener.loop,
            send=self._send,
            accept=self._accept,
            on_ready=self._ready,
            on_closed=self._closed,
            on_cid_issued=lambda connection_id: listener.issued(connection_id, self),
            on_cid_retired=listener.retired,
            extra={"sockname": path.sockname, "peercert": None},
        )
        self.receive: Callable[[bytes, Path], object] = self._receive_first

    def _accept(self, transport: StreamTransport) -> asyncio.BaseProtocol:
        if not self.driver.is_ready:
            # Early data, of a client that a ticket vouches for.
            self.driver.extra["peercert"] = self._context.peer_certificate
        return self._listener.door.accept(transport)

    @property
    def _context(self) -> ServerContext:
        context = self._quic.tls
        assert isinstance(context, ServerContext)
        return context

    def _receive_first(self, data: bytes, path: Path) -> None:
        self.receive = self.driver.receive
        self.driver.receive(data, path)
        if self._quic._state is QuicConnectionState.FIRSTFLIGHT:
            # It looked like an Initial packet, but was none: there is nothing to wait for.
            self.driver.abandon(None)

    def moved(self) -> None:
        """The client is at another address, and has shown that it receives there."""
        peer = self.driver.peername
        assert isinstance(peer, Path)
        self.driver.extra["sockname"] = peer.sockname
        self._quic.use_path(self._listener.paths.to(peer[0]), self._listener.loop.time())

    def _send(self, data: bytes, path: Path) -> None:
        # aioquic keeps to the anti-amplification limit with all but its last word, a close (RFC 9000 section 8.1).
        paths = self._quic._network_paths
        if not (paths and paths[0].is_validated) and self._is_over_limit(path):
            return
        if not path.endpoint.send(data, path):
            self._quic.datagram_refused(len(data))

    def _is_over_limit(self, path: Path) -> bool:
        for known in self._quic._network_paths:
            if known.addr == path:
                return not known.is_validated and known.bytes_sent > 3 * known.bytes_received
        return True

    def _ready(self, driver: ConnectionDriver) -> None:
        self._settle()
        driver.extra["peercert"] = self._context.peer_certificate
        if self._listener.farewell is not None:
            driver.control.send(self._listener.farewell())
        # Only now: it has shown that it receives where it sends from.
        peer = self._quic.proved_address
        if peer is not None:
            self._quic.use_path(self._listener.paths.to(peer[0]), self._listener.loop.time())

    def _closed(self, driver: ConnectionDriver, error: TrunkError | None) -> None:
        if self._half_open is not None and error is not None:
            self._listener.failed(driver, error)
        self._settle()
        self._listener.gone(self)

    def _settle(self) -> None:
        if self._half_open is not None:
            self._listener.settled(self._half_open)
            self._half_open = None
