"""Names of gateways become addresses, within a deadline. What is an address already needs no resolver and no thread."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import TYPE_CHECKING, cast

from pgtrunk.errors import GatewayUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sockets import AddressInfo

__all__ = ["interleaved", "resolve"]


async def resolve(host: str, port: int, deadline: float, timeout: float) -> list[AddressInfo]:
    """Return the addresses of a host, the resolver's favourite first (RFC 6724), each once.

    ``timeout`` is the setting that the deadline comes from. Raises GatewayUnreachable.
    """
    try:
        found: Sequence[object] = _literal(host, port)
        if not found:
            async with asyncio.timeout_at(deadline):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except TimeoutError as exc:
        raise GatewayUnreachable(f"host {host!r} was not resolved within {timeout:g} s (connect_timeout)") from exc
    except (OSError, UnicodeError) as exc:
        raise GatewayUnreachable(f"host {host!r} cannot be resolved: {exc}") from exc
    return list(dict.fromkeys(cast("list[AddressInfo]", found)))


def _literal(host: str, port: int) -> Sequence[object]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return []


def interleaved(addresses: list[AddressInfo]) -> list[AddressInfo]:
    """Put families in turns, beginning with that of the first address (RFC 8305 section 4)."""
    seen: Counter[int] = Counter()
    turns = []
    for address in addresses:
        turns.append((seen[address[0]], address))
        seen[address[0]] += 1
    families = list(seen)
    turns.sort(key=lambda turn: (turn[0], families.index(turn[1][0])))
    return [address for _, address in turns]
