"""Patroni's REST API, as far as a pooler asks it: ``GET /cluster`` of one node, in the form of its documentation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["FakePatroni", "described", "member"]


def member(server: EmbeddedPostgres, role: str, state: str = "running") -> dict[str, Any]:
    """One server of the cluster."""
    return described(server.host, server.port, role, state)


def described(host: str, port: int, role: str, state: str = "running", **more: Any) -> dict[str, Any]:
    """The same by its address."""
    url = f"http://{host}:8008/patroni"
    known = {"name": f"{host}-{port}", "role": role, "state": state, "api_url": url, "host": host, "port": port}
    return {**known, "timeline": 5, **more}


class FakePatroni:
    """``members``: what it says, or ``answer``. ``broken``: it says 503; ``hangs``: it says nothing."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.members: list[dict[str, Any]] = []
        self.asked = 0
        self.broken = False
        self.hangs = False
        self.answer: bytes | None = None
        self.requests: list[bytes] = []
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme, host = ("http", "127.0.0.1") if self._tls is None else ("https", "localhost")
        return f"{scheme}://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> FakePatroni:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                self.asked += 1
                if self.hangs:
                    await reader.read()
                writer.write(self.answer if self.answer is not None else self._response())
                await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    def _response(self) -> bytes:
        if self.broken:
            return b"HTTP/1.0 503 Service Unavailable\r\nServer: BaseHTTP/0.6\r\n\r\n"
        body = json.dumps({"members": self.members, "scope": "demo"}).encode()
        head = b"HTTP/1.0 200 OK\r\nServer: BaseHTTP/0.6\r\nContent-Type: application/json\r\n"
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
