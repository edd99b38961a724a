"""One QUIC connection as ping sees it: opened, looked at, pinged, closed."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import hashes

from pgtrunk.quic import connect
from pgtrunk.quic.trust import certified_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cryptography import x509

    from pgtrunk.address import Address
    from pgtrunk.quic import ClientConfig, ClientConnection

__all__ = ["Certificate", "Handshake", "opened", "round_trip"]

SOON = 14
"""Days before a certificate expires at which that is worth a warning."""

PING = 0x70696E67
"""By which our PINGs are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a gateway has shown."""

    names: tuple[str, ...]
    issuer: str
    expires: str
    """In ISO 8601, UTC."""
    days_left: int
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""

    @classmethod
    def of(cls, leaf: x509.Certificate, now: datetime) -> Certificate:
        end = leaf.not_valid_after_utc
        return cls(
            names=certified_names(leaf),
            issuer=leaf.issuer.rfc4514_string(),
            expires=end.isoformat(timespec="seconds"),
            days_left=(end - now).days,
            fingerprint=leaf.fingerprint(hashes.SHA256()).hex(),
        )

    @property
    def expires_soon(self) -> bool:
        return self.days_left < SOON


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What came of one."""

    seconds: float
    """Name resolution included."""
    resumed: bool
    """By a ticket of the one before."""
    address: str
    quic: str
    """The version of QUIC, and of TLS in it."""
    alpn: str
    cipher: str
    streams: int
    """That the gateway allows."""
    datagram: int
    """Octets of a datagram at first; they grow as the path proves that it carries more."""
    certificate: Certificate | None
    """Of a full handshake; a resumed one shows none."""


@asynccontextmanager
async def opened(
    address: Address, config: ClientConfig, timeout: float
) -> AsyncIterator[tuple[ClientConnection, Handshake]]:
    """Opens a connection, and closes it in the end. Raises as `pgtrunk.quic.connect` does."""
    start = time.perf_counter()
    connection = await connect(address.host, address.port, config=config, timeout=timeout)
    seconds = time.perf_counter() - start
    try:
        yield connection, _seen(connection, seconds)
    finally:
        connection.close()
        await connection.wait_closed()


def _seen(connection: ClientConnection, seconds: float) -> Handshake:
    quic = connection.driver.quic
    tls: Any = quic.tls
    leaf, peer = tls._peer_certificate, quic._network_paths[0].addr
    version = quic._version or 0
    return Handshake(
        seconds=seconds,
        resumed=bool(tls._session_resumed),
        address=f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}",
        quic=f"version {version:#x}" if version != 1 else "version 1, TLS 1.3",
        alpn=tls.alpn_negotiated or "",
        cipher="" if tls.key_schedule is None else tls.key_schedule.cipher_suite.name,  # early: not yet known
        streams=connection.stream_credit,
        datagram=quic._max_datagram_size,
        certificate=None if leaf is None else Certificate.of(leaf, datetime.now(UTC)),
    )


async def round_trip(connection: ClientConnection, timeout: float) -> float | None:
    """Sends a PING and returns the seconds until it was acknowledged; None: it was not in time."""
    answered = asyncio.get_running_loop().create_future()
    driver = connection.driver

    def on_pong(uid: int) -> None:
        if uid == PING and not answered.done():
            answered.set_result(time.perf_counter())

    driver.on_pong = on_pong
    # A number is left out (RFC 9000 section 21.4): a gap is acknowledged at once, where a lone PING waits for company.
    driver.quic._packet_number += 1
    start = time.perf_counter()
    driver.quic.send_ping(PING)
    driver.flush()
    try:
        async with asyncio.timeout(timeout):
            end: float = await answered
    except TimeoutError:
        return None
    return end - start
