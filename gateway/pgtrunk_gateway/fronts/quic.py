"""Sessions over QUIC: each bidirectional stream that a client opens is one."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING

from pgtrunk.errors import CertificateFileError
from pgtrunk.quic.config import ByteBudget, QuicLimits
from pgtrunk.quic.server import Identity, Listener, ServerConfig, listen
from pgtrunk_gateway.address import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgtrunk.quic.driver import ConnectionDriver
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.errors import ConfigError
    from pgtrunk_gateway.fronts.front import SessionFactory

__all__ = ["QuicFront"]

log = logging.getLogger(__name__)

_KEY_OCTETS = 32


class QuicFront:
    """The UDP sockets of ``quic_listen_addr`` and ``quic_listen_port``, and the connections behind them."""

    name = "quic"

    def __init__(self, listeners: Sequence[Listener], budget: ByteBudget) -> None:
        self.listeners = listeners
        self.budget = budget
        """What all connections hold unread, and may hold (quic_memory_budget)."""
        addresses = [address for listener in listeners for address in listener.addresses]
        self.addresses = [readable(address) for address in addresses]
        self.port: int = addresses[0][1]

    @classmethod
    async def listen(cls, loaded: Loaded, session: SessionFactory) -> QuicFront:
        """Raises :class:`ConfigError` for certificates that do not load, OSError where an address is not to be had."""
        config = loaded.config
        budget = ByteBudget(config.quic_memory_budget)
        server = _server_config(config, budget)
        listeners: list[Listener] = []
        try:
            for host in config.quic_listen_addr:
                port = config.quic_listen_port or (listeners[0].addresses[0][1] if listeners else 0)
                listeners.append(await listen(host, port, config=server, accept=lambda _: session("quic")))
        except CertificateFileError as error:
            raise _blamed(loaded, error) from error
        except BaseException:
            await cls._close(listeners)
            raise
        for warning in dict.fromkeys(warning for listener in listeners for warning in listener.warnings):
            log.warning("quic: %s", warning)
        return cls(listeners, budget)

    @property
    def connections(self) -> int:
        """QUIC connections whose handshake is complete."""
        return sum(listener.connections for listener in self.listeners)

    @property
    def drivers(self) -> list[ConnectionDriver]:
        """The connections themselves, for whoever wants to see more of them."""
        return [driver for listener in self.listeners for driver in listener.drivers]

    @property
    def half_open(self) -> int:
        """Handshakes in progress."""
        return sum(listener.half_open for listener in self.listeners)

    @property
    def streams(self) -> int:
        """Open streams; each is a session, or about to become one."""
        return sum(listener.streams for listener in self.listeners)

    def prepare(self, loaded: Loaded) -> Callable[[], None]:
        """For new connections: the certificates as they are now, and other limits. Without quic_cert_file all stays."""
        config = loaded.config
        if config.quic_cert_file is None or config.quic_key_file is None:
            return lambda: None
        try:
            identity = Identity.load(
                config.quic_cert_file, config.quic_key_file, config.quic_client_ca_file, now=time.time()
            )
        except CertificateFileError as error:
            raise _blamed(loaded, error) from error
        return lambda: self._apply(config, identity)

    def _apply(self, config: Config, identity: Identity) -> None:
        for warning in identity.warnings:
            log.warning("quic: %s", warning)
        self.budget.limit = config.quic_memory_budget
        for listener in self.listeners:
            listener.reload_certificates(identity)
            listener.reload_limits(_limits(config), config.quic_retry)

    def drain(self) -> None:
        self.stop_accepting()

    def stop_accepting(self) -> None:
        for listener in self.listeners:
            listener.stop_accepting()

    async def close(self) -> None:
        await self._close(self.listeners)

    @staticmethod
    async def _close(listeners: Sequence[Listener]) -> None:
        for listener in listeners:
            listener.close()
        await asyncio.gather(*(listener.wait_closed() for listener in listeners))


def _blamed(loaded: Loaded, error: CertificateFileError) -> ConfigError:
    return loaded.at(error.setting or "quic_cert_file").error(str(error))


def _server_config(config: Config, budget: ByteBudget) -> ServerConfig:
    assert config.quic_cert_file is not None and config.quic_key_file is not None
    return ServerConfig(
        cert_file=config.quic_cert_file,
        key_file=config.quic_key_file,
        client_ca_file=config.quic_client_ca_file,
        keys=(os.urandom(_KEY_OCTETS),),
        budget=budget,
        limits=_limits(config),
        retry=config.quic_retry,
    )


def _limits(config: Config) -> QuicLimits:
    return QuicLimits(
        idle_timeout=config.quic_idle_timeout,
        max_streams=config.quic_max_streams,
        connection_budget=config.quic_connection_budget,
        congestion_floor=config.quic_congestion_floor,
        redundancy=config.quic_redundancy,
    )
