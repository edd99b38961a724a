"""Stateless resets, as whom they are for tells them from damaged packets (RFC 9000 section 10.3): a gateway that knows
nothing of a connection any more ends a datagram in the token that came with the connection id."""

from __future__ import annotations

import hmac

__all__ = ["SMALLEST", "TOKEN_SIZE", "is_reset"]

TOKEN_SIZE = 16

SMALLEST = 5 + TOKEN_SIZE
"""Octets that a reset must have (RFC 9000 section 10.3)."""


def is_reset(data: bytes, token: bytes) -> bool:
    """Whether a datagram that cannot be read as a packet says, by ``token``, that its connection is gone."""
    return len(data) >= SMALLEST and hmac.compare_digest(data[-TOKEN_SIZE:], token)
