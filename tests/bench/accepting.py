"""How connections get to the workers of a fleet, by each of three ways: how many a second, and how evenly.

    handed  the supervisor accepts, and passes each to the worker with the fewest (what the gateway does)
    shared  all workers accept from one listening socket
    group   each worker has a listening socket of its own (SO_REUSEPORT); the kernel goes by a hash

``python -m bench.accepting`` in tests/. A worker does no more than say its number: what differs is the way alone. The
spread is that of connections that stay, opened one after the other and ten at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, cast

import uvloop

from pgtrunk_gateway.fleet.acceptor import Acceptor, Choice
from pgtrunk_gateway.fleet.board import Board, Field
from pgtrunk_gateway.fleet.hand import Hand
from pgtrunk_gateway.fronts.handed import HandedFront, Receiver

Way = Literal["handed", "shared", "group"]
WAYS: Final[tuple[Way, ...]] = ("handed", "shared", "group")
WORKERS: Final = (2, 4)
STAYING: Final = (20, 50)
AT_ONCE: Final = (1, 10)
ROUNDS: Final = 5
CONNECTS: Final = 4000
"""For the rate; they come and go."""


class Greeting(asyncio.Protocol):
    """Says the worker's number."""

    def __init__(self, index: int, count: Callable[[int], None]) -> None:
        self._index = index
        self._count = count

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._count(1)
        cast("asyncio.Transport", transport).write(bytes([self._index]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._count(-1)


async def _worker(way: Way, index: int, board: Board, hand: Hand, listening: socket.socket) -> None:
    def count(change: int) -> None:
        board.write(index, Field.SESSIONS, board.read(index, Field.SESSIONS) + change)

    def taken() -> None:
        board.write(index, Field.TAKEN, board.read(index, Field.TAKEN) + 1)

    loop = asyncio.get_running_loop()
    if way == "handed":
        front = HandedFront("tcp", [], 0, lambda _: Greeting(index, count))  # type: ignore[arg-type,return-value]
        _receiver = Receiver(socket.socket(fileno=hand.descriptor), [front], taken)
    else:
        await loop.create_server(lambda: Greeting(index, count), sock=listening, backlog=512)
    await asyncio.Event().wait()


async def _supervise(hands: list[Hand], board: Board, listening: socket.socket) -> None:
    choice = Choice(lambda index: board.read(index, Field.SESSIONS), lambda index: board.read(index, Field.TAKEN))
    acceptor = Acceptor(choice, dict(enumerate(hands)), lambda: 60.0)
    for index in range(len(hands)):
        acceptor.join(index)
    acceptor.listen("tcp", listening)
    await asyncio.Event().wait()


@contextmanager
def fleet(way: Way, count: int) -> Iterator[tuple[int, list[int]]]:
    """The port, and the pids of its processes, of which the last is the supervisor's where there is one."""
    board, hands = Board.create(count), [Hand() for _ in range(count)]
    listening: list[socket.socket] = []
    for _ in range(count if way == "group" else 1):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if way == "group":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", listening[0].getsockname()[1] if listening else 0))
        sock.listen(512)
        sock.setblocking(False)
        listening.append(sock)
    context = multiprocessing.get_context("fork")
    mains: list[Callable[[], object]] = [
        lambda index=index: uvloop.run(  # type: ignore[misc]
            _worker(way, index, board, hands[index], listening[index % len(listening)])
        )
        for index in range(count)
    ]
    if way == "handed":
        mains.append(lambda: uvloop.run(_supervise(hands, board, listening[0])))
    processes = [context.Process(target=main, daemon=True) for main in mains]
    for process in processes:
        process.start()
    try:
        time.sleep(0.5)
        yield int(listening[0].getsockname()[1]), [process.pid or 0 for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
        for sock in listening:
            sock.close()
        for hand in hands:
            hand.close()
        board.close()


async def _connect(port: int) -> tuple[int, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return (await reader.readexactly(1))[0], writer


async def spread(port: int, staying: int, at_once: int) -> int:
    """The most sessions that one worker has got."""
    got: Counter[int] = Counter()
    writers = []
    for _ in range(0, staying, at_once):
        for index, writer in await asyncio.gather(*(_connect(port) for _ in range(at_once))):
            got[index] += 1
            writers.append(writer)
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    return max(got.values())


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rate(port: int) -> float:
    """Connects a second, sixteen at a time."""

    async def some() -> None:
        for _ in range(CONNECTS // 16):
            _, writer = await _connect(port)
            writer.transport.abort()

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(16)))
    return CONNECTS / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(
        "way     workers  connects/s  CPU us of each: all, supervisor   most of one worker, of 20 and of 50 (at once)"
    )
    for count in WORKERS:
        rates: dict[Way, list[float]] = {way: [] for way in WAYS}
        costs: dict[Way, list[tuple[float, float]]] = {way: [] for way in WAYS}
        spreads: dict[Way, dict[tuple[int, int], list[int]]] = {way: {} for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                with fleet(way, count) as (port, pids):
                    for staying in STAYING:
                        for at_once in AT_ONCE:
                            most = uvloop.run(spread(port, staying, at_once))
                            spreads[way].setdefault((staying, at_once), []).append(most)
                            time.sleep(0.05)
                    before = [cpu(pid) for pid in pids]
                    rates[way].append(uvloop.run(rate(port)))
                    used = [(cpu(pid) - was) / CONNECTS * 1e6 for pid, was in zip(pids, before, strict=True)]
                    costs[way].append((sum(used), used[-1] if way == "handed" else 0.0))
        for way in WAYS:
            told = "; ".join(
                f"{staying}/{at_once}: {statistics.mean(found):.1f} (at worst {max(found)})"
                for (staying, at_once), found in spreads[way].items()
            )
            whole, part = (statistics.median(each) for each in zip(*costs[way], strict=True))
            print(f"{way:7} {count:7} {statistics.median(rates[way]):11.0f} {whole:12.0f} {part:4.0f}   {told}")


if __name__ == "__main__":
    main()
