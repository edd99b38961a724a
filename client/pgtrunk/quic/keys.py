"""Keys for application packets, renewed before they have protected too many.

AES-GCM may protect 2^23 packets, which a busy gateway sends in a quarter of an hour. aioquic can renew keys but never
does so by itself, and forgets the old ones at once, so that all packets under way at that moment are lost. Here they
are kept for as long as such packets may come. RFC 9001 sections 6 and 6.6.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from aioquic._crypto import CryptoError
from aioquic.quic.crypto import CryptoPair

if TYPE_CHECKING:
    from aioquic.quic.crypto import CryptoContext

__all__ = ["PACKETS_PER_KEY", "Keys"]

PACKETS_PER_KEY = 1 << 22
"""Packets after which we renew keys: half of what AES-GCM allows."""


class Keys(CryptoPair):
    """The keys of both directions, and the receiving one before the last renewal."""

    def __init__(self) -> None:
        super().__init__()
        self._before: CryptoContext | None = None

    def decrypt_packet(
        self, packet: bytes, encrypted_offset: int, expected_packet_number: int
    ) -> tuple[bytes, bytes, int]:
        """Return (header, payload, packet number). Raises CryptoError."""
        try:
            return super().decrypt_packet(packet, encrypted_offset, expected_packet_number)
        except CryptoError:
            if self._before is None:
                raise
            before = self._before.decrypt_packet(packet, encrypted_offset, expected_packet_number)
            if before[3]:
                raise  # of the phase after the old one: that is the current one, which has just failed
            return before[:3]

    def _update_key(self, trigger: str) -> None:
        self._before = copy(self.recv)
        super()._update_key(trigger)

    def forget_before(self) -> None:
        """No packet of the old keys can come any more (RFC 9001 section 6.5)."""
        self._before = None

    @property
    def remembers(self) -> bool:
        """Whether old keys are kept."""
        return self._before is not None
