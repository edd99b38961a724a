"""The keys that the gateway gives its clients in BackendKeyData, for a CancelRequest to show. Pure.

The pid has PgBouncer's layout, so that gateways and PgBouncers can forward each other's cancels: its first bit is clear
(some clients take pid for a positive number), octets 1 and 2 are the ``peer_id``, little endian, the rest is random.
Of the secret there are two kinds:

- for a client that speaks protocol 3.0, 4 octets, as PgBouncer has them: the lowest two bits of the last one are a hop
  count, which changes on the way between peers, all else is random;
- for one that speaks 3.2, 32 octets, all of them random. A request that is forwarded has a 33rd octet, its hop count,
  which no PgBouncer reads: it drops what is that long.

The hop count says how often a request may still be forwarded, from 3 down to 0, so that peers whose settings lead in a
circle do not send it around for ever.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass, field

from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2

__all__ = [
    "KEY_OCTETS",
    "LONG_KEY_OCTETS",
    "CancelKey",
    "as_minted",
    "forwarded",
    "hops",
    "is_secret",
    "mint",
    "peer_of",
    "protocol_of",
]

KEY_OCTETS = 8
"""Random octets that :func:`mint` needs for a key of protocol 3.0,"""
LONG_KEY_OCTETS = 36
"""and for one of 3.2."""
_HOPS = 0b11
"""The hop count of a request that comes from a client, and the bits of it in a short secret."""
_SHORT = KEY_OCTETS - 4
"""Octets of a secret that has a hop count in it,"""
_LONG = LONG_KEY_OCTETS - 4
"""and of one behind which there may be one."""


@dataclass(frozen=True, slots=True)
class CancelKey:
    """``pid`` names the session, ``secret`` (4 octets, or 32) proves that a request comes from it."""

    pid: int
    secret: bytes = field(repr=False)


def mint(peer_id: int, noise: bytes) -> CancelKey:
    """A key made of ``KEY_OCTETS`` or ``LONG_KEY_OCTETS`` random octets; ``pid`` is greater than 0."""
    key = bytearray(noise)
    key[0] &= 0x7F
    key[1:3] = peer_id.to_bytes(2, "little")
    if len(key) == KEY_OCTETS:
        key[-1] |= _HOPS
    (pid,) = struct.unpack_from("!i", key)
    return CancelKey(pid or 1, bytes(key[4:]))


def peer_of(pid: int) -> int:
    """The ``peer_id`` of the gateway that minted a key with this pid; 0 where it had none."""
    return int.from_bytes(pid.to_bytes(4, "big", signed=True)[1:3], "little")


def is_secret(key: CancelKey, shown: bytes) -> bool:
    """Whether a request with this secret may use ``key``. Takes the same time for any wrong one of its length."""
    return hmac.compare_digest(_without_hops(key.secret), _without_hops(shown))


def _without_hops(secret: bytes) -> bytes:
    return secret[:-1] + bytes([secret[-1] | _HOPS]) if len(secret) == _SHORT else secret


# -- on the way between peers ------------------------------------------------------------------------------------------


def protocol_of(secret: bytes) -> int | None:
    """The version of the protocol to which such a secret belongs, 3.0 or 3.2; None: no gateway mints one like it."""
    return {_SHORT: PROTOCOL_3_0, _LONG: PROTOCOL_3_2}.get(len(as_minted(secret)))


def hops(secret: bytes) -> int:
    """How often a request with this secret may still be forwarded: 0 for what no gateway has minted, too."""
    if len(secret) == _SHORT:
        return secret[-1] & _HOPS
    if _has_been_forwarded(secret):
        return secret[-1]
    return _HOPS if len(secret) == _LONG else 0


def forwarded(secret: bytes) -> bytes:
    """The secret for the next gateway, which may forward it once less. There must be a hop left."""
    left = hops(secret) - 1
    if len(secret) == _SHORT:
        return secret[:-1] + bytes([secret[-1] & ~_HOPS | left])
    return secret[:_LONG] + bytes([left])


def as_minted(secret: bytes) -> bytes:
    """The secret as its gateway has given it to the client, however often the request has been forwarded."""
    return secret[:_LONG] if _has_been_forwarded(secret) else _without_hops(secret)


def _has_been_forwarded(secret: bytes) -> bool:
    return len(secret) == _LONG + 1 and secret[-1] < _HOPS
