"""A thousand trunks that lose their gateway at the same moment: how long until each has an answer again, at what cost.

``python -m bench.storm`` in tests/. A fleet of two workers, and trunks of one session each in some processes, all on
one machine. Each session asks something once a second; one that fails is opened again at once. Then all workers are
killed (kill -9), and the supervisor starts others. Whatever keeps a session from being opened again counts as refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import uvloop

from bench.errors import BenchError
from bench.machine import cpu_seconds
from bench.poolers import children, gateway
from bench.site import BenchSite
from pgtrunk import StreamManager

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

__all__ = ["Outcome", "Where", "storm"]

TRUNKS: Final = 1000
PROCESSES: Final = 4
WORKERS: Final = 2
PERIOD: Final = 1.0
"""Seconds between two questions of a session."""
_LOGINS: Final = 8
"""Sessions of a process that log in at the same time, before the storm."""
_PATIENCE: Final = 240.0
_NICE: Final = 15
_CONNECT_TIMEOUT: Final = 30.0
_ACQUIRE_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Where:
    """What the trunks need to know of the gateway."""

    gateway: str
    ca_file: str
    dsn: str
    password: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one storm. Times in seconds from the kill."""

    trunks: int
    recovered: list[float]
    """When each trunk that has lost its session had an answer again, in order."""
    refused: dict[str, int]
    """Sessions that could not be opened meanwhile, by error."""
    failed_dials: int
    """QUIC connections that could not be opened, and were tried again."""
    worker_cpu: float
    """Seconds of the new workers, from their start to the last recovery."""
    client_cpu: float
    """Seconds of the trunks' processes, from the kill on."""


# -- the trunks, in processes of their own -----------------------------------------------------------------------------


class _Client:
    """One trunk, and its session."""

    def __init__(self, where: Where) -> None:
        # Patient, so that it is counted whom the gateway refuses, not who gives up beside all others on one machine.
        self.manager = StreamManager(
            where.gateway, ca_file=where.ca_file, connect_timeout=_CONNECT_TIMEOUT, acquire_timeout=_ACQUIRE_TIMEOUT
        )
        self.lost_at = self.back_at = 0.0
        self.refused: Counter[str] = Counter()
        self._where = where
        self._session: asyncpg.Connection | None = None

    async def log_in(self) -> None:
        await self.manager.open()
        self._session = await self.manager.connect(self._where.dsn, password=self._where.password, timeout=60)

    async def live(self) -> None:
        """Asks, again and again, whatever happens."""
        await asyncio.sleep(random.random() * PERIOD)
        while True:
            try:
                if self._session is None:
                    await self.log_in()
                assert self._session is not None
                await self._session.fetchval("SELECT 1", timeout=60)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                self._failed(error)
                continue
            if self.lost_at and not self.back_at:
                self.back_at = time.monotonic()
            await asyncio.sleep(PERIOD)

    def _failed(self, error: Exception) -> None:
        if self._session is None:
            cause = error.__cause__ or error
            self.refused[f"{type(cause).__name__}: {cause}"[:100]] += 1
            return
        self._session.terminate()
        self._session = None
        self.lost_at, self.back_at = self.lost_at or time.monotonic(), 0.0


def _trunks(pipe: Pipe, where: Where, count: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A gateway does not share its processor with those that it serves, nor has it to begin beside them.
    os.nice(_NICE)
    # Each of them would say that its connection is lost.
    logging.disable(logging.WARNING)
    uvloop.run(_live(pipe, where, count))


async def _live(pipe: Pipe, where: Where, count: int) -> None:
    """Says "ready", and then what the state is whenever it is asked, until the other end hangs up."""
    loop = asyncio.get_running_loop()
    clients = [_Client(where) for _ in range(count)]
    turn = asyncio.Semaphore(_LOGINS)

    async def log_in(client: _Client) -> None:
        async with turn:
            await client.log_in()

    await asyncio.gather(*map(log_in, clients))
    tasks = [loop.create_task(client.live()) for client in clients]
    over = asyncio.Event()

    def asked() -> None:
        try:
            pipe.recv()
            pipe.send(_state(clients))
        except (EOFError, OSError):
            over.set()

    loop.add_reader(pipe.fileno(), asked)
    pipe.send("ready")
    await over.wait()
    loop.remove_reader(pipe.fileno())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(client.manager.close() for client in clients))


def _state(clients: Sequence[_Client]) -> dict[str, Any]:
    refused = sum((client.refused for client in clients), Counter[str]())
    return {
        "lost": sum(client.lost_at > 0 for client in clients),
        "back": [client.back_at for client in clients if client.back_at],
        "refused": dict(refused),
        "failed_dials": sum(client.manager.stats().connections_failed for client in clients),
        "cpu": time.process_time(),
    }


@contextlib.contextmanager
def _processes(where: Where, trunks: int, processes: int) -> Iterator[list[Pipe]]:
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    started = []
    try:
        for number in range(processes):
            ours, theirs = context.Pipe()
            count = trunks // processes + (number < trunks % processes)
            process = context.Process(target=_trunks, args=(theirs, where, count), daemon=True)
            process.start()
            theirs.close()
            started.append(process)
            pipes.append(ours)
        for pipe in pipes:
            if not pipe.poll(_PATIENCE) or pipe.recv() != "ready":
                raise BenchError("trunks did not get up")
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in started:
            process.join(20)
            process.kill()
            process.join()


def _ask(pipes: Sequence[Pipe]) -> list[dict[str, Any]]:
    """Raises :class:`BenchError`."""
    for pipe in pipes:
        pipe.send("?")
    for pipe in pipes:
        if not pipe.poll(_PATIENCE):
            raise BenchError("trunks do not answer")
    return [pipe.recv() for pipe in pipes]


# -- the storm ---------------------------------------------------------------------------------------------------------


def storm(where: Where, workers: Callable[[], Sequence[int]], trunks: int, processes: int = PROCESSES) -> Outcome:
    """Opens ``trunks``, kills the ``workers`` (their pids now; the supervisor starts others), and waits for all to be
    back. Raises :class:`BenchError` where that does not happen."""
    with _processes(where, trunks, processes) as pipes:
        before = _ask(pipes)
        dead = list(workers())
        killed_at = time.monotonic()
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        deadline = killed_at + _PATIENCE
        while True:
            time.sleep(0.25)
            states = _ask(pipes)
            back: list[float] = sorted(at - killed_at for state in states for at in state["back"])
            if len(back) == trunks:
                break
            if time.monotonic() > deadline:
                raise BenchError(f"{trunks - len(back)} of {trunks} trunks did not come back: {states}")
        refused = sum((Counter(state["refused"]) for state in states), Counter[str]())
        return Outcome(
            trunks=trunks,
            recovered=[round(seconds, 3) for seconds in back],
            refused=dict(refused),
            failed_dials=sum(s["failed_dials"] - b["failed_dials"] for b, s in zip(before, states, strict=True)),
            worker_cpu=round(sum(cpu_seconds(pid) for pid in workers() if pid not in dead), 2),
            client_cpu=round(sum(s["cpu"] - b["cpu"] for b, s in zip(before, states, strict=True)), 2),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trunks", type=int, default=TRUNKS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with BenchSite() as site:
        site.open()
        with gateway(site, arguments.workers) as pooler:
            where = Where(f"127.0.0.1:{pooler.port}", str(site.files.ca_cert), site.dsn, site.password)
            supervisor = pooler.others[0]
            for _ in range(arguments.rounds):
                outcome = storm(where, lambda: children(supervisor), arguments.trunks)
                quantiles = statistics.quantiles(outcome.recovered, n=100)
                print(
                    f"{outcome.trunks} trunks: back after {outcome.recovered[0]:.1f} s (the first, as soon as a worker"
                    f" has started), {quantiles[49]:.1f} (half), {quantiles[98]:.1f} (99 %),"
                    f" {outcome.recovered[-1]:.1f} (all); CPU of the workers {outcome.worker_cpu:.1f} s, of the trunks"
                    f" {outcome.client_cpu:.1f} s; {outcome.failed_dials} attempts of QUIC connections failed;"
                    f" refused: {json.dumps(outcome.refused)}"
                )


if __name__ == "__main__":
    main()
