"""A listener that echoes, with certificates of its own."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from helpers.certificates import SERVER_AUTH, Identity, authority
from pgtrunk.quic.config import ByteBudget, QuicLimits
from pgtrunk_gateway.quic.server import Listener, ServerConfig, listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from pgtrunk.quic.transport import StreamTransport

CA = authority()
SERVER = CA.issue("gateway", usage=[SERVER_AUTH], names=["localhost", "127.0.0.1", "::1"])
PATIENCE = 30.0
KEYS = (b"k" * 32,)


class Echo(asyncio.Protocol):
    """Sends everything back, and remembers who asked."""

    def __init__(self, transport: StreamTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@dataclass
class EchoServer:
    """A listener and the streams that it accepted."""

    listener: Listener
    accepted: list[StreamTransport] = field(default_factory=list)

    @property
    def address(self) -> tuple[Any, ...]:
        return self.listener.addresses[0]

    @property
    def port(self) -> int:
        port: int = self.address[1]
        return port

    @property
    def drivers(self) -> Iterator[Any]:
        return (accepted.driver for accepted in self.listener._accepted)

    async def until(self, **expected: int) -> None:
        """Waits until the listener shows these numbers."""
        async with asyncio.timeout(PATIENCE):
            while any(getattr(self.listener, name) != value for name, value in expected.items()):  # noqa: ASYNC110  # counters have no event
                await asyncio.sleep(0.005)


def server_config(folder: Path, identity: Identity = SERVER, **changes: Any) -> ServerConfig:
    """A configuration with its files in ``folder``."""
    cert_file, key_file = identity.save(folder, "gateway")
    config = ServerConfig(
        cert_file=cert_file,
        key_file=key_file,
        keys=KEYS,
        budget=ByteBudget(256 << 20),
        limits=QuicLimits(socket_buffer=1 << 16),
    )
    return replace(config, **changes)


@contextlib.asynccontextmanager
async def echo_server(config: ServerConfig, host: str = "127.0.0.1") -> AsyncIterator[EchoServer]:
    """Runs a listener, and sees to it that nothing is left of it."""
    accepted: list[StreamTransport] = []

    def accept(transport: StreamTransport) -> asyncio.Protocol:
        accepted.append(transport)
        return Echo(transport)

    listener = await listen(host, 0, config=config, accept=accept)
    try:
        yield EchoServer(listener, accepted)
    finally:
        listener.close()
        async with asyncio.timeout(PATIENCE):
            await listener.wait_closed()
        assert (listener.connections, listener.half_open, listener.connection_ids, listener.streams) == (0, 0, 0, 0)
        assert config.budget.committed == 0
        await asyncio.sleep(0)
