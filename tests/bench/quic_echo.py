"""Echo over stock aioquic and over pgtrunk.quic, alternating: CPU per request of either end.

``python tests/bench/quic_echo.py --shapes 1x40 10x40 --rounds 5``. Each side runs in its own process on uvloop, closed
loop: each stream has one message under way, and the answer to it, of sizes that may differ. ``measure`` is for other
benchmarks.
"""

# ruff: noqa: E402 - helpers are found from anywhere only once the path is set
from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import ssl
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import uvloop
from aioquic.asyncio.client import connect as stock_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve as stock_serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived

from helpers.certificates import Identity
from helpers.quic_loopback import LoopbackServer
from pgtrunk.quic import ClientConfig, connect
from pgtrunk.quic.config import QuicLimits

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection as Pipe

WARM_UP = 0.5
PATIENCE = 60.0
"""Seconds that the server process may take to say anything."""
VARIANTS = ("stock", "pgtrunk")


@dataclass(frozen=True)
class Sizes:
    """Octets of each message and of the answer to it."""

    request: int = 120
    answer: int = 120


@dataclass(frozen=True)
class Result:
    """One run. Microseconds of CPU per request, user and system together."""

    requests: int
    seconds: float
    server_us: float
    client_us: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


# -- the servers, each in a process of its own


class StockEcho(QuicConnectionProtocol):
    sizes = Sizes()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._missing: dict[int, int] = {}
        self._answer = bytes(self.sizes.answer)

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            # A message may come in pieces.
            missing = self._missing.get(event.stream_id, self.sizes.request) - len(event.data)
            if missing <= 0:
                missing += self.sizes.request
                self._quic.send_stream_data(event.stream_id, self._answer, event.end_stream)
            self._missing[event.stream_id] = missing


class PlainEcho(asyncio.Protocol):
    def __init__(self, sizes: Sizes) -> None:
        self._request = self._missing = sizes.request
        self._answer = bytes(sizes.answer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing <= 0:
            self._missing += self._request
            self.transport.write(self._answer)


async def _stock_server(identity: Identity, pipe: Pipe, sizes: Sizes) -> None:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["postgresql"])
    configuration.certificate, configuration.private_key = identity.certificate, identity.key
    echo = type("SizedEcho", (StockEcho,), {"sizes": sizes})
    server = await stock_serve("127.0.0.1", 0, configuration=configuration, create_protocol=echo)
    assert server._transport is not None
    await _serve(pipe, server._transport.get_extra_info("sockname")[1])
    server.close()


async def _pgtrunk_server(identity: Identity, pipe: Pipe, sizes: Sizes) -> None:
    def configure(configuration: QuicConfiguration) -> None:
        configuration.certificate, configuration.private_key = identity.certificate, identity.key

    limits = QuicLimits(max_streams=2100)
    async with LoopbackServer(lambda: PlainEcho(sizes), configure=configure, limits=limits) as server:
        await _serve(pipe, server.port)


async def _serve(pipe: Pipe, port: int) -> None:
    """Tell the port, then answer each message with the CPU seconds used so far, until the other end hangs up."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def asked() -> None:
        try:
            pipe.recv()
            pipe.send(time.process_time())
        except EOFError:
            loop.remove_reader(pipe.fileno())
            over.set_result(None)

    loop.add_reader(pipe.fileno(), asked)
    pipe.send(port)
    await over


def _server_process(variant: str, certificate: bytes, key: bytes, pipe: Pipe, sizes: Sizes) -> None:
    # Ctrl-C in the terminal is for the other end, which then hangs up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    identity = Identity(x509.load_pem_x509_certificate(certificate), load_pem_private_key(key, None))  # type: ignore[arg-type]
    uvloop.run({"stock": _stock_server, "pgtrunk": _pgtrunk_server}[variant](identity, pipe, sizes))


# -- the clients: both count answers and ask again


class StockClient(QuicConnectionProtocol):
    answers = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._missing: dict[int, int] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            # An answer may come in pieces.
            missing = self._missing.get(event.stream_id, self._answer) - len(event.data)
            if missing <= 0:
                missing += self._answer
                self.answers += 1
                self._quic.send_stream_data(event.stream_id, self._request)
            self._missing[event.stream_id] = missing

    def start(self, streams: int, sizes: Sizes) -> None:
        self._request, self._answer = bytes(sizes.request), sizes.answer
        for _ in range(streams):
            self._quic.send_stream_data(self._quic.get_next_available_stream_id(), self._request)
        self.transmit()


class Asker(asyncio.Protocol):
    answers = 0

    transport: Any

    def __init__(self, sizes: Sizes) -> None:
        self._request = bytes(sizes.request)
        self._answer = self._missing = sizes.answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing <= 0:
            self._missing += self._answer
            self.answers += 1
            self.transport.write(self._request)


async def _run_stock(port: int, connections: int, streams: int, sizes: Sizes, timed: Callable[..., Any]) -> Result:
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        clients: list[StockClient] = []
        for _ in range(connections):
            configuration = QuicConfiguration(alpn_protocols=["postgresql"], verify_mode=ssl.CERT_NONE)
            client = await stack.enter_async_context(
                stock_connect("127.0.0.1", port, configuration=configuration, create_protocol=StockClient)
            )
            assert isinstance(client, StockClient)
            clients.append(client)
        for client in clients:
            client.start(streams, sizes)
        result: Result = await timed(lambda: sum(client.answers for client in clients))
        return result


async def _run_pgtrunk(port: int, connections: int, streams: int, sizes: Sizes, timed: Callable[..., Any]) -> Result:
    config = ClientConfig(verify=False, limits=QuicLimits(max_streams=0))
    links = [await connect("127.0.0.1", port, config=config, timeout=10) for _ in range(connections)]
    askers = [link.open_stream(lambda: Asker(sizes))[1] for link in links for _ in range(streams)]
    try:
        result: Result = await timed(lambda: sum(asker.answers for asker in askers))
        return result
    finally:
        for link in links:
            link.close()
        for link in links:
            await link.wait_closed()


def measure(
    variant: str, connections: int, streams: int, *, seconds: float = 2.0, sizes: Sizes | None = None
) -> Result:
    """Run one variant ("stock" or "pgtrunk") in one shape, a server process beside this one."""
    from helpers.quic_pair import identities

    sizes = sizes or Sizes()
    identity = identities()[1]
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_server_process, args=(variant, identity.pem, identity.key_pem, theirs, sizes), daemon=True
    )
    process.start()
    theirs.close()

    async def timed(count: Callable[[], int]) -> Result:
        await asyncio.sleep(WARM_UP)
        marks = []
        for pause in (seconds, 0):
            ours.send(None)
            marks.append((count(), time.perf_counter(), ours.recv(), time.process_time()))
            await asyncio.sleep(pause)
        (n0, t0, s0, c0), (n1, t1, s1, c1) = marks
        return Result(n1 - n0, t1 - t0, (s1 - s0) / (n1 - n0) * 1e6, (c1 - c0) / (n1 - n0) * 1e6)

    try:
        if not ours.poll(PATIENCE):
            raise TimeoutError(f"the {variant} server said nothing within {PATIENCE:g} s")
        port = ours.recv()
        run = {"stock": _run_stock, "pgtrunk": _run_pgtrunk}[variant]
        return uvloop.run(run(port, connections, streams, sizes, timed))
    finally:
        ours.close()
        process.join(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="+", default=["1x1", "1x40", "10x40"], metavar="CxS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, {arguments.rounds} rounds of {arguments.seconds:g} s; median (min)")
    for shape in arguments.shapes:
        connections, streams = map(int, shape.split("x"))
        results: dict[str, list[Result]] = {variant: [] for variant in VARIANTS}
        for _ in range(arguments.rounds):
            for variant in VARIANTS:
                results[variant].append(measure(variant, connections, streams, seconds=arguments.seconds))
        medians = {}
        for variant, runs in results.items():
            server = [run.server_us for run in runs]
            client = [run.client_us for run in runs]
            medians[variant] = statistics.median(server)
            print(
                f"{shape:>7} {variant:8} {statistics.median(run.rate for run in runs):8.0f} req/s   "
                f"server {medians[variant]:6.1f} ({min(server):.1f}) us   "
                f"client {statistics.median(client):6.1f} ({min(client):.1f}) us"
            )
        print(f"{shape:>7} ratio    {medians['pgtrunk'] / medians['stock']:.2f}")


if __name__ == "__main__":
    main()
