"""The connection ids that we issue: 8 octets that lead each packet to the worker that holds the connection.

Octet 0 is free for a load balancer (QUIC-LB), octet 1 is the bucket, of 256, that decides which worker it is, the two
high bits of octet 2 are a generation (workers old and new, while one is replaced), and the rest is random. The id that
a client makes up for its first packets is read by the same rule: it has a bucket like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.quic.config import CID_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BUCKETS", "GENERATIONS", "ConnectionIds", "bucket_of", "generation_of"]

BUCKETS = 256
GENERATIONS = 4

_GENERATION_SHIFT = 6
_RANDOM_BITS = (1 << _GENERATION_SHIFT) - 1


class ConnectionIds:
    """Issues ids that lead to one worker."""

    def __init__(
        self, entropy: Callable[[int], bytes], *, buckets: Sequence[int] = range(BUCKETS), generation: int = 0
    ) -> None:
        """Takes a source of random bytes and the buckets that are this worker's; all of them, for a single one."""
        self._entropy = entropy
        self._buckets = bytes(buckets)
        self._generation = generation % GENERATIONS << _GENERATION_SHIFT

    def __call__(self) -> bytes:
        """Returns a new id."""
        octets = bytearray(self._entropy(CID_LENGTH))
        octets[1] = self._buckets[octets[1] % len(self._buckets)]
        octets[2] = octets[2] & _RANDOM_BITS | self._generation
        return bytes(octets)


def bucket_of(connection_id: bytes) -> int:
    """Returns the bucket of an id of at least two octets, ours or a client's."""
    return connection_id[1]


def generation_of(connection_id: bytes) -> int:
    """Returns the generation of an id that we issued."""
    return connection_id[2] >> _GENERATION_SHIFT
