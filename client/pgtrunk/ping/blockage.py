"""Tells a firewall that lets no UDP through from a gateway that is not there: by asking at the same port over TCP."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pgtrunk.errors import GatewayUnreachable, UdpBlocked
from pgtrunk.wire.startup import SSLRequest

if TYPE_CHECKING:
    from pgtrunk.address import Address

__all__ = ["told_apart"]

TIMEOUT = 2.0
"""Seconds that the TCP connection, and an answer over it, may take."""


async def told_apart(error: GatewayUnreachable, address: Address) -> GatewayUnreachable:
    """Returns ``error``, which came since nothing was heard, with what TCP says about it."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(SSLRequest().encode())
            # Who hangs up is there, too.
            await reader.read(1)
    except ConnectionRefusedError:
        return GatewayUnreachable(
            f"{error}; TCP is refused there, so the host is up: either a firewall lets no UDP through to port "
            f"{address.port}, or that is not the gateway's"
        )
    except OSError as exc:
        if writer is None:
            return GatewayUnreachable(f"{error}; TCP does not get there either: is the host up, and the address right?")
        if isinstance(exc, TimeoutError):
            # For one that is starting, or whose event loop stands still, the kernel accepts.
            return GatewayUnreachable(
                f"{error}; TCP is accepted there, but not answered: is the gateway starting, or stuck?"
            )
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return UdpBlocked(
        f"{error}; something answers there over TCP: a firewall on the way lets no UDP through, or the gateway has no "
        'QUIC at this port (quic_listen_port); transport="tcp" does without UDP'
    )
