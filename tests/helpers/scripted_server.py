"""A Postgres that says what it is told to, whatever it hears: for what no Postgres would say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import SSLRequest, parse_startup

__all__ = ["ScriptedServer", "scripted_server"]

Answer = bytes | Callable[[bytes], bytes]
"""What is said next, or what makes it from the body of the message that came last."""


@dataclass
class ScriptedServer:
    """Listens at ``port``. Each connection gets the script: the first answer upon its startup packet, one more upon
    each message that follows, and behind the last one the end of the connection."""

    script: Sequence[Answer]
    port: int = 0
    heard: list[bytes] = field(default_factory=list)
    """Bodies of the messages that came, of all connections."""
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError):
                body = await self._startup(reader, writer)
                messages = MessageReader(1 << 20)
                message: tuple[int, bytes] | None = None
                for number, answer in enumerate(self.script, 1):
                    writer.write(answer if isinstance(answer, bytes) else answer(body))
                    await writer.drain()
                    while number < len(self.script) and (message := messages.next()) is None:
                        data = await reader.read(1 << 16)
                        if not data:
                            return
                        messages.feed(data)
                    if message is not None:
                        body = message[1]
                        self.heard.append(body)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        data = b""
        while True:
            parsed = parse_startup(data)
            if parsed is None:
                more = await reader.read(1 << 16)
                if not more:
                    raise ConnectionResetError
                data += more
            elif isinstance(parsed[0], SSLRequest):
                writer.write(b"N")
                data = b""
            else:
                return data


@asynccontextmanager
async def scripted_server(*script: Answer) -> AsyncIterator[ScriptedServer]:
    """A server, until the end of ``async with``."""
    server = ScriptedServer(script)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server
