"""A plain multiplexer, all sessions over one TCP connection: for comparison only, to show what streams are worth.

    python -m netem.mux near LISTEN_PORT FAR_ADDRESS FAR_PORT      on the client's host
    python -m netem.mux far LISTEN_ADDRESS LISTEN_PORT PORT        on the gateway's, in front of 127.0.0.1:PORT

A frame is a channel, a length, and so many octets; length 0 ends the channel. Whoever is slow makes all others wait, as
they must on one connection without credit for each channel.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable

__all__ = ["main"]

_HEAD = struct.Struct("!II")
_READ = 64 << 10
_HIGH = 1 << 20


class Mux:
    """One end of the connection. ``dial`` opens what a channel of the other end's leads to; None: it opens none."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dial: Callable[[], asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] | None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._dial = dial
        self._channels: dict[int, asyncio.StreamWriter] = {}
        self._next = 0
        self._pumps: set[asyncio.Task[None]] = set()
        writer.transport.set_write_buffer_limits(high=_HIGH)

    def open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new channel of this end's."""
        self._next += 1
        self._carry(self._next, reader, writer)

    def _carry(self, channel: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._channels[channel] = writer
        pump = asyncio.create_task(self._pump(channel, reader))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)

    async def _pump(self, channel: int, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(_READ):
                self._writer.write(_HEAD.pack(channel, len(data)) + data)
                await self._writer.drain()
        except OSError:
            pass
        self._writer.write(_HEAD.pack(channel, 0))
        self._end(channel)

    def _end(self, channel: int) -> None:
        writer = self._channels.pop(channel, None)
        if writer is not None:
            writer.close()

    async def run(self) -> None:
        """Until the connection ends."""
        try:
            while True:
                channel, size = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                data = await self._reader.readexactly(size)
                if not size:
                    self._end(channel)
                    continue
                if channel not in self._channels and self._dial is not None:
                    self._carry(channel, *await self._dial())
                if (writer := self._channels.get(channel)) is not None and not await _deliver(writer, data):
                    self._end(channel)
        except (asyncio.IncompleteReadError, OSError):
            for channel in list(self._channels):
                self._end(channel)


async def _deliver(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """Whether the channel's own end has taken ``data``; one that is gone is no concern of the other channels."""
    try:
        writer.write(data)
        await writer.drain()
    except (OSError, RuntimeError):
        # uvloop's for what is closed already.
        return False
    return True


async def _near(port: str, far_address: str, far_port: str) -> None:
    mux = Mux(*await asyncio.open_connection(far_address, int(far_port)), None)
    server = await asyncio.start_server(lambda reader, writer: mux.open(reader, writer), "127.0.0.1", int(port))
    async with server:
        print("open", flush=True)
        await mux.run()


async def _far(address: str, port: str, gateway_port: str) -> None:
    def dial() -> asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return asyncio.ensure_future(asyncio.open_connection("127.0.0.1", int(gateway_port)))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Mux(reader, writer, dial).run()
        writer.close()

    server = await asyncio.start_server(accept, address, int(port))
    async with server:
        print("open", flush=True)
        await server.serve_forever()


def main() -> int:
    side, *arguments = sys.argv[1:]
    program = {"near": _near, "far": _far}[side](*arguments)
    try:
        import uvloop
    except ImportError:
        asyncio.run(program)
    else:
        uvloop.run(program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
