"""What a gateway asks of logins, as it has asked before. Pure.

Only an offer of SCRAM is worth remembering: it can be answered before it comes, by a message that proves nothing. What
asks for a password, or for nothing, is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.backend import AUTHENTICATION, parse_authentication, parse_sasl_mechanisms
from pgtrunk.wire.framing import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["LoginMemory"]

REMEMBERED = 1000
"""Logins; who has more of them, one for each tenant, say, is not to collect them without end."""

SASL = 10
"""In Authentication: a list of mechanisms follows (PostgreSQL documentation, "Message Formats", AuthenticationSASL)."""


class LoginMemory:
    """Of one trunk. ``who`` stands for a user and a database, in whatever form the caller has them."""

    def __init__(self) -> None:
        self._offers: dict[Hashable, bytes] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def expected(self, who: Hashable) -> bytes:
        """The message with which the gateway is going to begin this login; empty where that is not known."""
        return self._offers.get(who, b"")

    def learn(self, who: Hashable, first: bytes) -> None:
        """``first`` is the message with which it has begun one."""
        if not _offers_scram(first):
            self._offers.pop(who, None)
            return
        if len(self._offers) >= REMEMBERED and who not in self._offers:
            self._offers.clear()
        self._offers[who] = first


def _offers_scram(message: bytes) -> bool:
    if message[0] != AUTHENTICATION:
        return False
    try:
        asked = parse_authentication(message[HEADER_SIZE:])
        return asked.code == SASL and "SCRAM-SHA-256" in parse_sasl_mechanisms(asked.data)
    except ProtocolViolation:
        return False
