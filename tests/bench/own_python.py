"""The gateway's own Python per query: a real session and a real backend, with transports that do nothing.

A gateway is started, a session logs in at a PostgreSQL that is a fake, and prepares its statement; then the transports
are taken away, and queries and answers are handed to the session and the backend directly. What is left is the relay:
no sockets, no event loop, no QUIC.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.errors import BenchError
from bench.point_select import FLOWS, Exchange
from helpers.fake_postgres import FakePostgres
from pgtrunk.wire.backend import ready
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.gateway import Gateway

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.relay.session import Session

__all__ = ["measure"]

_INI = """\
[databases]
bench = host=127.0.0.1 port={port} user=bench

[pgtrunk]
listen_addr = 127.0.0.1
listen_port = 0
auth_type = any
default_pool_size = 1
"""
_PATIENCE = 10.0
_REPEATS = 5


class _Sink(asyncio.Transport):
    """Takes all and does nothing."""

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def measure(queries: int = 20_000) -> dict[str, float]:
    """Microseconds per query of each of ``FLOWS``: the best of some repeats, each of so many queries."""
    return asyncio.run(_measure(queries))


async def _measure(queries: int) -> dict[str, float]:
    async with asyncio.timeout(_PATIENCE * len(FLOWS) + queries / 1000):
        server = await asyncio.get_running_loop().create_server(FakePostgres(), "127.0.0.1", 0)
        async with server:
            with tempfile.TemporaryDirectory(prefix="pgtrunk-") as folder:
                ini = Path(folder) / "gateway.ini"
                ini.write_text(_INI.format(port=server.sockets[0].getsockname()[1]))
                async with Gateway(load(ini)) as gateway:
                    return {name: await _flow(gateway, exchange, queries) for name, exchange in FLOWS.items()}


async def _flow(gateway: Gateway, exchange: Exchange, queries: int) -> float:
    port = int(gateway.fronts[0].addresses[0].rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for message in (_startup(), exchange.parse, exchange.request):
            if message:
                writer.write(message)
                await reader.readuntil(ready())
        (session,) = gateway.context.sessions
        (pool,) = gateway.pools
        (backend,) = pool.backends.values()
        return _timed(cast("Session", session), backend, exchange, queries)
    finally:
        writer.close()
        await writer.wait_closed()
        await gateway.context.sessions_end(_PATIENCE)


def _startup() -> bytes:
    return StartupMessage(parameters={"user": "bench", "database": "bench"}).encode()


def _timed(session: Session, backend: Backend, exchange: Exchange, queries: int) -> float:
    taken: tuple[Any, Any] = session.transport, backend.transport
    sink = _Sink()
    session.transport = backend.transport = sink
    relay, session.relay = session.relay, sink.write
    try:
        best = min(_loop(session.data_received, backend.data_received, exchange, queries) for _ in range(_REPEATS))
    finally:
        session.transport, backend.transport = taken
        session.relay = relay
    if backend.holder is not None or backend.replies.queue:
        raise BenchError(f"the backend was not given back: {backend!r}, {session!r}")
    return best / queries * 1e6


def _loop(ask: Callable[[bytes], None], answer: Callable[[bytes], None], exchange: Exchange, queries: int) -> float:
    request, reply = exchange.request, exchange.answer
    began = time.process_time()
    for _ in range(queries):
        ask(request)
        answer(reply)
    return time.process_time() - began
