"""Stands before Postgres, and does with cancel requests what a server or a network may do that is not well."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Final, Literal

__all__ = ["CancelTrap", "cancel_trap"]

_CANCEL: Final = bytes.fromhex("04d2162e")
_CHUNK: Final = 1 << 16
_FILLERS: Final = 8


class CancelTrap:
    """``how``: what becomes of a cancel request from now on. It passes, or its connection stays open and Postgres does
    not hear of it before :meth:`deliver`, or its connection is closed, and Postgres never does.

    Whatever else comes is carried there and back, unless it is :meth:`deaf <deafen>`.
    """

    def __init__(self, host: str, port: int) -> None:
        self.how: Literal["passes", "holds", "closes"] = "passes"
        self.held = 0
        """Requests that Postgres has not heard of yet."""
        self.seen = 0
        """Cancel requests that have come."""
        self._target = host, port
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._deliver = asyncio.Event()
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._fillers: list[socket.socket] = []

    def listen(self) -> None:
        """Accepts connections, again after :meth:`deafen`."""
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        self._accepting = asyncio.ensure_future(self._accept())

    async def deafen(self) -> None:
        """Accepts none any more, and has the system's queue full, so that most systems do not answer either."""
        assert self._accepting is not None
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        for _ in range(_FILLERS):
            filler = socket.socket()
            filler.setblocking(False)
            self._fillers.append(filler)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.port))

    async def deliver(self) -> None:
        """Postgres hears of all that is held, and has acted on it when this returns."""
        self._deliver.set()
        async with asyncio.timeout(20):
            while self.held:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        self._deliver.clear()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, _ = await loop.sock_accept(self._listening)
            task = asyncio.ensure_future(self._serve(accepted))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            with contextlib.suppress(OSError):
                head = await reader.read(_CHUNK)
                if head[4:8] == _CANCEL:
                    await self._cancel(head)
                elif head:
                    await self._relay(head, reader, writer)
        finally:
            writer.transport.abort()

    async def _cancel(self, request: bytes) -> None:
        self.seen += 1
        if self.how == "holds":
            self.held += 1
            try:
                await self._deliver.wait()
                await self._tell(request)
            finally:
                self.held -= 1
        elif self.how == "passes":
            await self._tell(request)

    async def _tell(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*self._target)
        try:
            writer.write(request)
            assert await reader.read() == b""
        finally:
            writer.transport.abort()

    async def _relay(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        try:
            back.write(head)
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        finally:
            back.transport.abort()

    @staticmethod
    async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    async def close(self) -> None:
        for filler in self._fillers:
            filler.close()
        tasks = {*self._serving} | ({self._accepting} if self._accepting is not None else set())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()


@contextlib.asynccontextmanager
async def cancel_trap(host: str, port: int) -> AsyncIterator[CancelTrap]:
    """A `CancelTrap` before the server at ``host`` and ``port``, which lets all pass at first."""
    trap = CancelTrap(host, port)
    trap.listen()
    try:
        yield trap
    finally:
        await trap.close()
