"""Stateless resets: how a worker tells a client that a connection is gone of which it knows nothing (RFC 9000 10.3).

With each connection id a client gets a token, which is a keyed hash of the id: so any worker with the fleet's keys
can make it again, also one that was started after the one that had the connection died. A packet to an id that nobody
has is answered with a datagram that ends in the token; to all others it looks like any packet with a short header.
Pure: clock and random octets are arguments.

No answer is as long as what it answers, so that two ends that both know nothing fall silent after a few, and no answer
is worth forging a question for. An id gives its token away only when its connection is gone: workers must never answer
for an id that another of them has (RFC 9000 section 21.11).
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from pgtrunk.quic.config import CID_LENGTH
from pgtrunk.quic.reset import SMALLEST, TOKEN_SIZE
from pgtrunk_gateway.quic.admission import RateLimit
from pgtrunk_gateway.quic.sealing import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RESETS_PER_SECOND", "ResetTokens", "Resets", "reset_packet"]

RESETS_PER_SECOND = 1000.0
"""Each costs less than the packet that asks for it did; but there may be many of these."""

_LARGEST = 42
"""Octets that are enough to look like a packet."""

_FIXED_BIT, _RANDOM_BITS = 0x40, 0x3F


class ResetTokens:
    """Makes the token of an id."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Takes the fleet's keys: tokens are of the last alone, since each id has one token. That is the key that lasts
        and that seals nothing: what is sealed with random nonces asks for a key that is renewed."""
        self._key = derive(keys[-1], "stateless reset")

    def __call__(self, connection_id: bytes) -> bytes:
        """Returns the token."""
        return hmac.digest(self._key, connection_id, "sha256")[:TOKEN_SIZE]


class Resets:
    """Answers packets to ids that nobody has, up to a rate."""

    def __init__(
        self, token: Callable[[bytes], bytes], *, clock: Callable[[], float], entropy: Callable[[int], bytes]
    ) -> None:
        """Takes the maker of tokens, a clock in seconds, and a source of random bytes."""
        self._token = token
        self._clock = clock
        self._entropy = entropy
        self._rate = RateLimit(RESETS_PER_SECOND)

    def answer(self, connection_id: bytes, data: bytes) -> bytes | None:
        """Returns the reset for the packet in ``data``; None where there is to be none: it is too short for an answer
        that would be shorter still, its id is no id of ours, or there were too many."""
        if len(connection_id) != CID_LENGTH or len(data) <= SMALLEST or not self._rate.allows(self._clock()):
            return None
        return reset_packet(self._token(connection_id), answers=len(data), entropy=self._entropy)


def reset_packet(token: bytes, *, answers: int, entropy: Callable[[int], bytes]) -> bytes:
    """Returns what answers a packet of ``answers`` octets, of which there must be more than 21."""
    octets = bytearray(entropy(min(answers - 1, _LARGEST) - TOKEN_SIZE))
    octets[0] = _FIXED_BIT | octets[0] & _RANDOM_BITS
    return bytes(octets) + token
