"""Retry tokens: proof, from the client's side, that it receives at the address it sends from (RFC 9000 section 8.1.2).

A token is sealed with the fleet's keys, so any worker takes what another one gave. It is good for the address and port
it was sent to, for the connection id that the Retry packet announced, and for a few seconds. Nothing is remembered.
Times are seconds since 1970: the worker that reads a token may run on another machine.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgtrunk_gateway.quic.sealing import Sealer

__all__ = ["RetryTokens", "packed_address"]

LIFETIME = 15.0
"""Seconds for which a token is good. Clients answer at once, and a path of satellites takes less than one."""

MAX_SKEW = 5.0
"""Seconds by which the clock of the worker that gave the token may be ahead of ours."""

_TIME_SIZE = 8


def packed_address(address: Sequence[object]) -> bytes:
    """Returns host and port of a socket address as bytes; an IPv4 address inside an IPv6 one counts as itself."""
    host = ip_address(str(address[0]))
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return host.packed + int(str(address[1])).to_bytes(2, "big")


class RetryTokens:
    """Gives tokens and takes them back."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def give(
        self, address: Sequence[object], *, original_id: bytes, retry_id: bytes, now: float, nonce: bytes
    ) -> bytes:
        """Returns the token for a client at ``address``.

        ``original_id`` is the connection id that its first packet went to, ``retry_id`` the one that our Retry packet
        tells it to use instead.
        """
        value = round(now * 1000).to_bytes(_TIME_SIZE, "big") + original_id
        return self._sealer.seal(value, nonce=nonce, context=retry_id + packed_address(address))

    def take(self, token: bytes, address: Sequence[object], *, destination_id: bytes, now: float) -> bytes | None:
        """Returns the original connection id, or None where the token proves nothing.

        ``destination_id`` is the connection id that the packet with the token went to.
        """
        value = self._sealer.open(token, context=destination_id + packed_address(address))
        if value is None:
            return None
        age = now - int.from_bytes(value[:_TIME_SIZE], "big") / 1000
        return value[_TIME_SIZE:] if -MAX_SKEW <= age <= LIFETIME else None
