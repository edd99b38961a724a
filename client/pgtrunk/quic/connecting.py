"""A QUIC connection is opened: to a name, by whichever of its addresses answers first; or as part of a larger race."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pgtrunk.errors import CertificateError, GatewayUnreachable

from .client import ClientConnection
from .ending import show
from .racing import ATTEMPT_DELAY, race
from .resolving import interleaved, resolve
from .resumption import Resumption, gateway_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioquic.quic.configuration import QuicConfiguration

    from pgtrunk.errors import TrunkError

    from .client_config import ClientConfig
    from .sockets import AddressInfo

__all__ = ["Opener", "connect", "unreachable"]


class Opener:
    """Makes the connections of one dial. Files are read once for each name that a certificate must carry."""

    def __init__(self, config: ClientConfig, timeout: float) -> None:
        self._config = config
        self._timeout = timeout
        # It is the timeout of the dial that must decide.
        self._limits = replace(
            config.limits, max_streams=0, handshake_timeout=max(timeout, config.limits.handshake_timeout)
        )
        self._configurations: dict[str, QuicConfiguration] = {}

    def read(self, host: str) -> QuicConfiguration:
        """Return aioquic's configuration for a host. Raises CertificateFileError, and UsageError where it is none."""
        if host not in self._configurations:
            self._configurations[host] = self._config.quic(host, now=time.time())
        return self._configurations[host]

    def connection(self, host: str, address: AddressInfo) -> ClientConnection:
        """Return a connection to one address of a host, which is to be opened. Raises what ``read`` does."""
        configuration, tickets = self.read(host), self._config.tickets
        resumption = None
        if tickets is not None:
            name = gateway_name(configuration, address[4][1])
            resumption = Resumption(tickets, name, show(address[4]), early=self._config.early)
        connection = ClientConnection(configuration, self._limits, address, resumption, self._timeout)
        connection.measure(self._config.stages, timings=self._config.timings)
        now = asyncio.get_running_loop().time()
        connection.driver.quic.use_path(self._config.paths.to(address[4][0]), now)
        return connection


async def connect(host: str, port: int, *, config: ClientConfig, timeout: float) -> ClientConnection:
    """Connect within ``timeout`` seconds, name resolution included.

    Raises GatewayUnreachable, CertificateError when either end does not accept the other's certificate, and
    CertificateFileError for files that cannot be loaded. Cancelled, it leaves nothing behind.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    opener = Opener(config, timeout)
    opener.read(host)
    addresses = iter(interleaved(await resolve(host, port, deadline, timeout)))
    outcome = await race(
        lambda: next(addresses, None),
        lambda address: opener.connection(host, address),
        lambda _: ATTEMPT_DELAY,
        deadline=deadline,
    )
    if outcome.winner is None:
        errors = [attempt.error for attempt in outcome.attempts if attempt.error is not None]
        raise unreachable(f"gateway {host}:{port} cannot be reached at any of its addresses", errors)
    return outcome.winner.connection


def unreachable(what: str, errors: Sequence[TrunkError]) -> TrunkError:
    """Return the error of a dial that failed at all addresses, for these reasons, at least one.

    A wrong certificate stays wrong, so it is a CertificateError where nothing else is the matter; an address that may
    come back is worth waiting for.
    """
    if len(errors) == 1:
        return errors[0]
    words = f"{what}: " + "; ".join(dict.fromkeys(map(str, errors)))
    first = errors[0]
    if isinstance(first, CertificateError) and all(isinstance(error, CertificateError) for error in errors):
        return CertificateError(words, presented=first.presented, expected=first.expected)
    return GatewayUnreachable(words)
