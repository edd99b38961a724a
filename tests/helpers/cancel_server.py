"""A server that takes cancel requests and nothing else, and backends that seem to run something there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from helpers.transports import FakeTransport
from pgtrunk.wire.backend import BackendKeyData
from pgtrunk_gateway.pool.backend import Backend
from pgtrunk_gateway.pool.target import Target
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared

__all__ = ["KEY", "CancelServer", "cancel_server", "running_backend"]

KEY = BackendKeyData(4711, b"\1\2\3\4")


class CancelServer:
    """Takes cancel requests, and closes their connections when the test says so."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.may_close = asyncio.Event()
        self.port = 0
        self.open = 0
        """Connections that are open now,"""
        self.most = 0
        """and at most at a time."""
        self.serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            self.requests.append(await reader.read(300))
            self.arrived.set()
            await self.may_close.wait()
        finally:
            self.open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def cancel_server() -> AsyncIterator[CancelServer]:
    held = CancelServer()
    server = await asyncio.start_server(held.accept, "127.0.0.1", 0)
    held.port = server.sockets[0].getsockname()[1]
    try:
        yield held
    finally:
        held.may_close.set()
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(10):
            await asyncio.gather(*held.serving, return_exceptions=True)


def running_backend(port: int, key: BackendKeyData | None = KEY) -> Backend:
    """A backend that owes the answer to a query."""
    target = Target(host="127.0.0.1", port=port, dbname="d", user="u")
    replies = Replies(Prepared(10), {})
    backend = Backend(FakeTransport(), target, key, replies, on_free=_ignore, on_lost=_ignore)
    replies.push(owed.QUERY)
    return backend


def _ignore(*_: Any) -> None: ...
