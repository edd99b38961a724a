"""The keys that the gateway gives its clients in BackendKeyData, for a CancelRequest to show. Pure.

PgBouncer's layout, so that gateways and PgBouncers can forward each other's cancels: in the eight octets of pid and
secret, the first bit is clear (some clients take pid for a positive number), octets 1 and 2 are the ``peer_id``, little
endian, the lowest two bits of the last octet are a hop count, and all else is random.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

__all__ = ["KEY_OCTETS", "CancelKey", "mint", "peer_of"]

KEY_OCTETS = 8
"""Random octets that :func:`mint` needs."""
_HOPS = 0b11


@dataclass(frozen=True, slots=True)
class CancelKey:
    """``pid`` names the session, ``secret`` (4 octets) proves that a request comes from it."""

    pid: int
    secret: bytes = field(repr=False)


def mint(peer_id: int, noise: bytes) -> CancelKey:
    """A key made of ``KEY_OCTETS`` random octets; ``pid`` is greater than 0."""
    key = bytearray(noise)
    key[0] &= 0x7F
    key[1:3] = peer_id.to_bytes(2, "little")
    key[7] |= _HOPS
    (pid,) = struct.unpack_from("!i", key)
    return CancelKey(pid or 1, bytes(key[4:]))


def peer_of(pid: int) -> int:
    """The ``peer_id`` of the gateway that minted a key with this pid; 0 where it had none."""
    return int.from_bytes(pid.to_bytes(4, "big", signed=True)[1:3], "little")
