"""A gateway that is reached over UDP and over TCP at one port, and a network that lets through what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from helpers.datagrams import Relay
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Echo, identities
from helpers.tcp_gateway import TcpGateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["BothWays", "both_ways"]


class BothWays:
    """``port`` is that of both; ``udp.is_silent`` swallows datagrams."""

    def __init__(self, quic: LoopbackServer, udp: Relay, tcp: TcpGateway) -> None:
        self.quic, self.udp, self.tcp = quic, udp, tcp
        self.port = udp.port

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def both_ways(
    accept: Callable[[], asyncio.BaseProtocol] = Echo, *, silent: bool = True, **tcp: Any
) -> AsyncIterator[BothWays]:
    """Open, with UDP swallowed where ``silent``; ``tcp`` are options of `TcpGateway`."""
    async with contextlib.AsyncExitStack() as stack:
        quic = await stack.enter_async_context(LoopbackServer(accept))
        while True:
            udp = Relay(quic.port)
            try:
                over_tcp = await stack.enter_async_context(TcpGateway(accept, port=udp.port, **tcp))
            except OSError:
                # Somebody has that number over TCP.
                udp.close()
                continue
            break
        stack.callback(udp.close)
        udp.is_silent = silent
        yield BothWays(quic, udp, over_tcp)


def trust() -> dict[str, Any]:
    """Settings of a `StreamManager` that trusts both."""
    return {"ca_data": identities()[0].pem}
