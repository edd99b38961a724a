"""A proxy before Postgres that writes down how each connection begins: what somebody on the network would see."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["CANCEL", "SSL", "Recorder", "recorder"]

SSL: Final = bytes.fromhex("04d2162f")
CANCEL: Final = bytes.fromhex("04d2162e")
_CHUNK: Final = 1 << 16


class Recorder:
    """``begun``: the code of each connection's first packet, in order; ``sent``: all that came from the gateway."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = 0
        self.begun: list[bytes] = []
        self.sent = bytearray()
        self.received = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        try:
            head = await reader.read(_CHUNK)
            self.begun.append(head[4:8])
            self.sent += head
            back.write(head)
            await asyncio.gather(self._carry(reader, back, self.sent), self._carry(there, writer, self.received))
        finally:
            writer.transport.abort()
            back.transport.abort()

    @staticmethod
    async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                record += data
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def recorder(host: str, port: int) -> AsyncIterator[Recorder]:
    """A `Recorder` before the server at ``host`` and ``port``."""
    proxy = Recorder(host, port)
    async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy
        await proxy.close()
