"""The plain multiplexer, which is there to be compared with: one channel that breaks off is no end of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from netem.mux import Mux

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echoes a line; asked to, it never ends."""
    try:
        while line := await reader.readline():
            writer.write(line)
            while line == b"all\n":
                writer.write(bytes(60_000))
                await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def multiplexed() -> AsyncIterator[int]:
    """The port where channels begin."""
    running: list[asyncio.Task[None]] = []
    echo = await asyncio.start_server(flood, "127.0.0.1", 0)
    port = echo.sockets[0].getsockname()[1]

    def dial() -> asyncio.Future[Streams]:
        return asyncio.ensure_future(asyncio.open_connection("127.0.0.1", port))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Mux(reader, writer, dial).run()
        writer.close()

    far = await asyncio.start_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*far.sockets[0].getsockname())
    mux = Mux(reader, writer, None)
    near = await asyncio.start_server(mux.open, "127.0.0.1", 0)
    running.append(asyncio.create_task(mux.run()))
    try:
        yield near.sockets[0].getsockname()[1]
        assert not running[0].done(), "the multiplexer has ended"
    finally:
        writer.close()
        await asyncio.gather(*running)
        for server in (near, far, echo):
            server.close()
            await server.wait_closed()
        await asyncio.sleep(0.05)


async def test_a_client_that_breaks_off_does_not_end_the_others() -> None:
    async with asyncio.timeout(30), multiplexed() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(10):
            greedy, asking = await asyncio.open_connection("127.0.0.1", port)
            asking.write(b"all\n")
            await greedy.readexactly(200_000)
            asking.transport.abort()
            writer.write(b"on\n")
            assert await reader.readline() == b"on\n"
        writer.close()
        await writer.wait_closed()
