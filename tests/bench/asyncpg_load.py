"""asyncpg sessions over a trunk in a process of their own, each with one point select after the other.

:func:`measure` is what others call. The two processes talk over a pipe: the load says "ready", then answers each
message with what it has done so far, until the other end hangs up; every answer of the database is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg
import uvloop

from bench.errors import BenchError
from bench.point_select import ACCOUNTS, QUERY, expected
from pgtrunk import StreamManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection as Pipe

    from bench.site import BenchSite

__all__ = ["Load", "measure"]

_WARM_UP = 1.0
_LOGINS = 32
"""Sessions that log in at the same time."""
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """One run: queries per second, and microseconds of CPU per query of either process."""

    qps: float
    gateway_us: float
    client_us: float


@dataclass(frozen=True, slots=True)
class _Order:
    """What the load is to do."""

    gateway: str
    ca_file: str
    dsn: str
    connections: int
    streams: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the load is: queries answered, when, and its CPU seconds."""

    queries: int
    at: float
    cpu: float


def measure(
    site: BenchSite,
    connections: int,
    streams: int,
    *,
    seconds: float,
    port: int | None = None,
    cpu: Callable[[], float] | None = None,
) -> Load:
    """Runs ``connections`` x ``streams`` sessions, through the site's gateway or the one at ``port``, whose CPU seconds
    ``cpu`` tells. Raises :class:`BenchError` where the load ends early."""
    order = _Order(
        f"127.0.0.1:{site.port if port is None else port}", str(site.files.ca_cert), site.dsn, connections, streams
    )
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_process, args=(order, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        return _watch(ours, cpu or (lambda: site.gateway_cpu), seconds)
    except EOFError:
        raise BenchError(f"the load of {connections}x{streams} sessions ended early; it says why above") from None
    finally:
        ours.close()
        process.join(10)
        process.kill()


def _watch(pipe: Pipe, gateway_cpu: Callable[[], float], seconds: float) -> Load:
    _receive(pipe)
    marks = []
    for pause in (seconds, 0):
        pipe.send(None)
        mark = _receive(pipe)
        assert isinstance(mark, _Mark)
        marks.append((mark, gateway_cpu()))
        time.sleep(pause)
    (first, gateway_before), (last, gateway_after) = marks
    queries = last.queries - first.queries
    if not queries:
        raise BenchError("the load got no answer in all this time")
    return Load(
        queries / (last.at - first.at),
        (gateway_after - gateway_before) / queries * 1e6,
        (last.cpu - first.cpu) / queries * 1e6,
    )


def _receive(pipe: Pipe) -> object:
    if not pipe.poll(_PATIENCE):
        raise BenchError(f"the load said nothing for {_PATIENCE:g} s")
    return pipe.recv()


# -- in the other process


def _process(order: _Order, pipe: Pipe) -> None:
    # Ctrl-C in the terminal is for the other end, which then hangs up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(asyncio.CancelledError):
        uvloop.run(_Asking(order, pipe).run())


class _Asking:
    """The sessions, and the count of their answers."""

    def __init__(self, order: _Order, pipe: Pipe) -> None:
        self._order = order
        self._pipe = pipe
        self._queries = 0
        self._is_ready = False
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        order = self._order
        self._task = asyncio.current_task()
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._asked)
        async with StreamManager(
            order.gateway,
            ca_file=order.ca_file,
            connections=order.connections,
            streams_per_connection=order.streams,
            acquire_timeout=_PATIENCE,
        ) as trunk:
            sessions = await self._log_in(trunk)
            async with asyncio.TaskGroup() as group:
                for session in sessions:
                    group.create_task(self._ask(session))
                await asyncio.sleep(_WARM_UP)
                self._is_ready = True
                self._pipe.send("ready")
                await self._over.wait()
            for session in sessions:
                session.terminate()

    async def _log_in(self, trunk: StreamManager) -> list[asyncpg.Connection]:
        turn = asyncio.Semaphore(_LOGINS)

        async def log_in() -> asyncpg.Connection:
            async with turn:
                return await trunk.connect(self._order.dsn)

        async with asyncio.TaskGroup() as group:
            count = self._order.connections * self._order.streams
            logins = [group.create_task(log_in()) for _ in range(count)]
        return [login.result() for login in logins]

    async def _ask(self, session: asyncpg.Connection) -> None:
        over = self._over
        while not over.is_set():
            account = int(random.random() * ACCOUNTS) + 1
            balance = await session.fetchval(QUERY, account)
            if balance != expected(account):
                raise BenchError(f"account {account} has {balance}, not {expected(account)}")
            self._queries += 1

    def _asked(self) -> None:
        try:
            self._pipe.recv()
            self._pipe.send(_Mark(self._queries, time.perf_counter(), time.process_time()))
        except (EOFError, OSError):
            # The other end hung up: we are done, or it is gone before all was ready.
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._over.set()
            if not self._is_ready and self._task is not None:
                self._task.cancel()
