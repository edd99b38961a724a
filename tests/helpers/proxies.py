"""Servers that a gateway meets instead of Postgres: one that lets connections wait, one that never says a word."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

__all__ = ["Gate", "gate", "silence"]

_CHUNK: Final = 1 << 16
_LATE: Final = 5
"""Turns of the loop in which a connection may still come that was accepted before its server was closed."""

_CANCEL: Final = bytes.fromhex("04d2162e")


class Gate:
    """Stands before Postgres. While it is shut, new connections are accepted and not carried on."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = 0
        self.waiting = 0
        """Connections before the shut gate."""
        self._opened = asyncio.Event()
        self._opened.set()
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def shut(self) -> None:
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def hold(self) -> None:
        """What clients send from now on is kept back, as it is on a slow network; new connections are not affected."""
        self._passes.clear()

    def let_pass(self) -> None:
        self._passes.set()

    def cut(self) -> None:
        """Ends all connections without a word."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.waiting += 1
        try:
            await self._opened.wait()
        finally:
            self.waiting -= 1
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            # As the client would see it.
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            # A cancel request has a connection of its own, on which the first 16 octets are all.
            head = await reader.read(16)
            back.write(head)
            held = None if head[4:8] == _CANCEL else self._passes
            await asyncio.gather(self._carry(reader, back, held), self._carry(there, writer))
        finally:
            self._writers -= {writer, back}
            back.transport.abort()

    @staticmethod
    async def _carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: asyncio.Event | None = None
    ) -> None:
        # uvloop has a RuntimeError for a transport that has gone meanwhile.
        with contextlib.suppress(OSError, RuntimeError):
            while data := await reader.read(_CHUNK):
                if held is not None:
                    await held.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def gate(host: str, port: int) -> AsyncIterator[Gate]:
    """A `Gate` before the server at ``host`` and ``port``, open at first."""
    proxy = Gate(host, port)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # Not a `finally` in the task: one that is cancelled before its first step never gets there.
        task.add_done_callback(lambda _: writer.transport.abort())

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            # Who was accepted in the last moment comes in the next turns of the loop.
            for _ in range(_LATE):
                await asyncio.sleep(0)
                proxy.cut()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def silence() -> AsyncIterator[int]:
    """The port of a server that accepts and never answers."""
    writers: list[asyncio.StreamWriter] = []

    def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()
