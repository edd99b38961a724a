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
from pgtrunk_gateway.stats.stages import StageTimes

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
server_tls_sslmode = disable
default_pool_size = 1
"""
_PATIENCE = 10.0
_BATCH = 500
"""Queries timed together: few enough that some batch meets no interrupt, and the best of them is the cost."""


_Take = Callable[[bytes], None]


class _Sink(asyncio.Transport):
    """Takes all and does nothing."""

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def measure(queries: int = 50_000, *, reported: bool = False) -> dict[str, float]:
    """Microseconds per query: the best of many short batches, ``queries`` in all.

    Of each of ``FLOWS``, with a backend that is free; and of "prepared_queued", where each query waits for one.
    ``reported``: for a client that is told how long its queries take here, the telling not included.
    """
    return asyncio.run(_measure(queries, StageTimes() if reported else None))


async def _measure(queries: int, times: StageTimes | None) -> dict[str, float]:
    async with asyncio.timeout(_PATIENCE * len(FLOWS) + queries / 1000):
        server = await asyncio.get_running_loop().create_server(FakePostgres(), "127.0.0.1", 0)
        async with server:
            with tempfile.TemporaryDirectory(prefix="pgtrunk-") as folder:
                ini = Path(folder) / "gateway.ini"
                ini.write_text(_INI.format(port=server.sockets[0].getsockname()[1]))
                async with Gateway(load(ini)) as gateway:
                    found = {
                        name: await _flow(gateway, exchange, 1, queries, times) for name, exchange in FLOWS.items()
                    }
                    return found | {"prepared_queued": await _flow(gateway, FLOWS["prepared"], 2, queries, times)}


async def _flow(gateway: Gateway, exchange: Exchange, clients: int, queries: int, times: StageTimes | None) -> float:
    port = int(gateway.fronts[0].addresses[0].rpartition(":")[2])
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    try:
        for reader, writer in streams:
            for message in (_startup(), exchange.parse, exchange.request):
                if message:
                    writer.write(message)
                    await reader.readuntil(ready())
        (pool,) = gateway.pools
        (backend,) = pool.backends.values()
        sessions = [cast("Session", each) for each in gateway.context.sessions]
        for session in sessions:
            session._report_to(times)
        return _timed(sessions, backend, exchange, queries)
    finally:
        for _, writer in streams:
            writer.close()
            await writer.wait_closed()
        await gateway.context.sessions_end(_PATIENCE)


def _startup() -> bytes:
    return StartupMessage(parameters={"user": "bench", "database": "bench"}).encode()


def _timed(sessions: list[Session], backend: Backend, exchange: Exchange, queries: int) -> float:
    sink = _Sink()
    ends: list[Any] = [*sessions, backend]
    taken = [(end, end.transport) for end in ends]
    for end, _ in taken:
        end.transport = sink
    for session in sessions:
        session.relay = sink.write
    asks: list[_Take] = [session.data_received for session in sessions]
    try:
        loop = _alone if len(sessions) == 1 else _in_turn
        best = min(loop(asks, backend.data_received, exchange) for _ in range(max(2, queries // _BATCH)))
    finally:
        for end, transport in taken:
            end.transport = transport
        for session in sessions:
            session.relay = session.transport.write
    if backend.holder is not None or backend.replies.queue:
        raise BenchError(f"the backend was not given back: {backend!r}")
    return best / _BATCH * 1e6


def _alone(asks: list[_Take], answer: _Take, exchange: Exchange) -> float:
    request, reply = exchange.request, exchange.answer
    (ask,) = asks
    began = time.perf_counter()
    for _ in range(_BATCH):
        ask(request)
        answer(reply)
    return time.perf_counter() - began


def _in_turn(asks: list[_Take], answer: _Take, exchange: Exchange) -> float:
    request, reply = exchange.request, exchange.answer
    first, second = asks
    began = time.perf_counter()
    first(request)
    for _ in range(_BATCH // 2):
        second(request)
        answer(reply)
        first(request)
        answer(reply)
    answer(reply)
    return time.perf_counter() - began
