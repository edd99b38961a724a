"""Tells a firewall that lets no UDP through from a host that is not there: by a TCP connection to the same port."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pgtrunk.errors import GatewayUnreachable, UdpBlocked

if TYPE_CHECKING:
    from pgtrunk.address import Address

__all__ = ["told_apart"]

TIMEOUT = 2.0
"""Seconds that the TCP connection may take."""


async def told_apart(error: GatewayUnreachable, address: Address) -> GatewayUnreachable:
    """Returns ``error``, which came since nothing was heard, with what TCP says about it."""
    try:
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return GatewayUnreachable(
            f"{error}; TCP is refused there, so the host is up: either a firewall lets no UDP through to port "
            f"{address.port}, or that is not the gateway's"
        )
    except (OSError, TimeoutError):
        return GatewayUnreachable(f"{error}; TCP does not get there either: is the host up, and the address right?")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return UdpBlocked(
        f"{error}; something answers there over TCP: a firewall on the way lets no UDP through, or the gateway has no "
        'QUIC at this port (quic_listen_port); transport="tcp" does without UDP'
    )
