"""Where a gateway's QUIC begins: ``listen`` loads certificates, opens sockets and returns a ``Listener``.

From then on ``accept`` is called for each stream that a client opens. Whatever can be wrong with files, keys and ports
is found before the first packet is read. In a fleet one process has sockets for all made by ``bind``, and each worker
does the rest, with its own, by ``listen_on``.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pgtrunk.quic.config import ALPN, ByteBudget, QuicLimits, quic_configuration
from pgtrunk.quic.sockets import tune
from pgtrunk_gateway.quic.admission import AdmissionLimits, RetryMode
from pgtrunk_gateway.quic.groups import bind_group
from pgtrunk_gateway.quic.identity import Identity
from pgtrunk_gateway.quic.listener import Acceptor, Door, Listener
from pgtrunk_gateway.quic.resets import ResetTokens
from pgtrunk_gateway.quic.retry import RetryTokens
from pgtrunk_gateway.quic.sealing import Sealer
from pgtrunk_gateway.quic.server_tls import HandshakePolicy
from pgtrunk_gateway.quic.steering import ALONE
from pgtrunk_gateway.quic.ticket_keys import PURPOSE
from pgtrunk_gateway.quic.tickets import Tickets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgtrunk.quic.qlog import QlogFolder
    from pgtrunk_gateway.quic.elders import Elders
    from pgtrunk_gateway.quic.listener import Forward
    from pgtrunk_gateway.quic.steering import Place
    from pgtrunk_gateway.quic.ticket_keys import TicketKeys

__all__ = ["Acceptor", "Identity", "Listener", "ServerConfig", "bind", "listen", "listen_on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How a listener behaves."""

    cert_file: str
    """The gateway's certificate and what is between it and its root, in PEM (quic_cert_file)."""
    key_file: str
    """Its private key, in PEM, not encrypted (quic_key_file)."""
    client_ca_file: str | None = None
    """CAs in PEM; where set, every client must show a certificate of theirs (quic_client_ca_file)."""
    keys: tuple[bytes, ...]
    """Secrets of 32 bytes: the first seals Retry tokens, and from the last the tokens of stateless resets are made.
    Workers of one fleet share them."""
    ticket_keys: Sealer | TicketKeys | None = None
    """What seals session tickets, the same for all workers; None: made from ``keys``, and not renewed."""
    early_data: bool = False
    """Whether tickets permit early data, and early data is taken (quic_early_data)."""
    budget: ByteBudget
    """Bytes that all connections of the process may hold together."""
    limits: QuicLimits = field(default_factory=QuicLimits)
    retry: RetryMode = "auto"
    """When a client must prove its address before a handshake (quic_retry)."""
    max_half_open: int = AdmissionLimits().max_half_open
    """Handshakes in progress, in all; above it first packets are dropped."""
    max_half_open_per_address: int = AdmissionLimits().max_half_open_per_address
    """Handshakes in progress from one IPv4 address or one IPv6 /64."""
    alpn: tuple[str, ...] = ALPN
    qlog: QlogFolder | None = None
    """Where each connection writes a log of its packets (quic_qlog_dir); None: nowhere."""

    @property
    def admission(self) -> AdmissionLimits:
        """The limits on who may begin."""
        return AdmissionLimits(
            retry=self.retry,
            max_half_open=self.max_half_open,
            max_half_open_per_address=self.max_half_open_per_address,
        )


async def listen(host: str | Sequence[str], port: int, *, config: ServerConfig, accept: Acceptor) -> Listener:
    """Listens on a UDP port of one host or several, as ``bind`` has them, and returns the listener.

    Raises ``CertificateFileError`` for what cannot be loaded, ``UsageError`` for keys too short, and ``OSError`` for a
    name that cannot be resolved or a port that cannot be had; then nothing stays open.
    """
    door = _door(config, accept, now=time.time())
    [sockets] = await bind([host] if isinstance(host, str) else host, port)
    return await _open(door, sockets, ALONE, None)


async def listen_on(
    sockets: Sequence[socket.socket],
    *,
    config: ServerConfig,
    accept: Acceptor,
    place: Place = ALONE,
    forward: Forward | None = None,
    elders: Elders | None = None,
) -> Listener:
    """Listens on bound sockets, which it takes over: those of the worker at ``place``, one for each address, in the
    same order on all workers. ``forward`` and what follows from it: see ``Listener``.

    Raises as ``listen``, and then closes the sockets.
    """
    try:
        door = _door(config, accept, now=time.time())
    except BaseException:
        _close(sockets)
        raise
    return await _open(door, sockets, place, forward, elders)


async def bind(hosts: Sequence[str], port: int, count: int = 1) -> list[list[socket.socket]]:
    """Binds a UDP port for ``count`` workers, and returns for each of them its sockets, one for each address.

    A host is an address, a name (all of its addresses), or "*" for all addresses of both families; on wildcards answers
    leave from the address that was hit. Port 0 takes a free one, the same on all addresses. See ``bind_group`` for how
    several workers share a port. Raises ``OSError``, and then leaves nothing open.
    """
    loop = asyncio.get_running_loop()
    workers: list[list[socket.socket]] = [[] for _ in range(count)]
    try:
        for host in hosts:
            at = port or (workers[0][0].getsockname()[1] if workers[0] else 0)
            infos = await loop.getaddrinfo(
                None if host == "*" else host, at, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
            for sockets, more in zip(workers, bind_group(infos, count), strict=True):
                sockets += more
    except BaseException:
        for sockets in workers:
            _close(sockets)
        raise
    return workers


async def _open(
    door: Door,
    sockets: Sequence[socket.socket],
    place: Place,
    forward: Forward | None,
    elders: Elders | None = None,
) -> Listener:
    clamped = {warning for sock in sockets if (warning := tune(sock, door.limits.socket_buffer)) is not None}
    listener = Listener(replace(door, warnings=(*door.warnings, *clamped)), place, forward, elders)
    try:
        for sock in sockets:
            await listener.attach(sock)
    except BaseException:
        listener.close()
        _close(sockets)
        raise
    return listener


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _door(config: ServerConfig, accept: Acceptor, *, now: float) -> Door:
    """Loads all that is in files, and puts together what the listener works with."""
    identity = Identity.load(config.cert_file, config.key_file, config.client_ca_file, now=now)
    quic = quic_configuration(config.limits, is_client=False, alpn=config.alpn)
    quic.quic_logger = config.qlog
    return Door(
        quic=identity.presented_by(quic),
        limits=config.limits,
        budget=config.budget,
        admission=config.admission,
        policy=HandshakePolicy(
            Tickets(config.ticket_keys or Sealer(config.keys, PURPOSE)),
            identity.authority,
            clock=time.time,
            entropy=os.urandom,
            early=config.early_data,
        ),
        tokens=RetryTokens(Sealer(config.keys, "retry")),
        reset_token=ResetTokens(config.keys),
        accept=accept,
        warnings=identity.warnings,
    )
