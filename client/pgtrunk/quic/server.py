"""Where a gateway's QUIC begins: ``listen`` loads certificates, opens sockets and returns a ``Listener``.

From then on ``accept`` is called for each stream that a client opens. Whatever can be wrong with files, keys and ports
is found before the first packet is read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import dataclass, field, replace

from pgtrunk.quic.admission import AdmissionLimits, RetryMode
from pgtrunk.quic.config import ALPN, ByteBudget, QuicLimits, quic_configuration
from pgtrunk.quic.identity import Identity
from pgtrunk.quic.listener import Acceptor, Door, Listener
from pgtrunk.quic.retry import RetryTokens
from pgtrunk.quic.sealing import Sealer
from pgtrunk.quic.server_tls import HandshakePolicy
from pgtrunk.quic.sockets import bind_all, tune
from pgtrunk.quic.tickets import Tickets

__all__ = ["Acceptor", "Identity", "Listener", "ServerConfig", "listen"]


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
    """Secrets of 32 bytes, the current one first, that seal session tickets and Retry tokens. Workers of one fleet
    share them, and keep the previous one for as long as tickets live."""
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

    @property
    def admission(self) -> AdmissionLimits:
        """The limits on who may begin."""
        return AdmissionLimits(
            retry=self.retry,
            max_half_open=self.max_half_open,
            max_half_open_per_address=self.max_half_open_per_address,
        )


async def listen(host: str, port: int, *, config: ServerConfig, accept: Acceptor) -> Listener:
    """Listens on a UDP port and returns the listener.

    ``host`` is an address, a name (all of its addresses), or "*" for all addresses of both families; on wildcards
    answers leave from the address that was hit. Port 0 takes a free one, the same on all addresses.

    Raises ``CertificateFileError`` for what cannot be loaded, ``UsageError`` for keys too short, and ``OSError`` for a
    name that cannot be resolved or a port that cannot be had; then nothing stays open.
    """
    door = _door(config, accept, now=time.time())
    infos = await asyncio.get_running_loop().getaddrinfo(
        None if host == "*" else host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    )
    sockets = bind_all(infos)
    clamped = {warning for sock in sockets if (warning := tune(sock, config.limits.socket_buffer)) is not None}
    listener = Listener(replace(door, warnings=(*door.warnings, *clamped)))
    try:
        for sock in sockets:
            await listener.attach(sock)
    except BaseException:
        listener.close()
        for sock in sockets:
            sock.close()
        raise
    return listener


def _door(config: ServerConfig, accept: Acceptor, *, now: float) -> Door:
    """Loads all that is in files, and puts together what the listener works with."""
    identity = Identity.load(config.cert_file, config.key_file, config.client_ca_file, now=now)
    quic = quic_configuration(config.limits, is_client=False, alpn=config.alpn)
    return Door(
        quic=identity.presented_by(quic),
        limits=config.limits,
        budget=config.budget,
        admission=config.admission,
        policy=HandshakePolicy(
            Tickets(Sealer(config.keys, "ticket")),
            identity.authority,
            clock=time.time,
            entropy=os.urandom,
        ),
        tokens=RetryTokens(Sealer(config.keys, "retry")),
        accept=accept,
        warnings=identity.warnings,
    )
