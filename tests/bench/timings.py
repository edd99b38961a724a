"""What it costs a client to time an exchange, and a gateway to note one: alternating with the same without.

``python tests/bench/timings.py``. The client's is a stream's transport whose connection does nothing; the gateway's is
what ``own_python`` measures, with and without somebody to report to.
"""

# ruff: noqa: E402 - helpers are found from anywhere only once the path is set; it is a program
from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).parents[1])]

from bench import own_python
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.stages import ConnectionStages, StageMeter
from pgtrunk.quic.stream import Stream
from pgtrunk.quic.timed import TimedTransport
from pgtrunk.quic.transport import StreamTransport
from pgtrunk.wire.backend import ready

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["client"]

REQUEST, ANSWER = bytes(60), bytes(90) + ready()
BATCH = 500
"""Exchanges timed together; the best batch is the cost."""


def client(exchanges: int = 100_000) -> dict[str, float]:
    """Microseconds for writing a request and delivering its answer, without times and with."""
    stages = ConnectionStages(StageMeter())
    plain = _logged_in(StreamTransport)
    timed = _logged_in(lambda *at: TimedTransport(*at, took=stages.took, clock=time.monotonic))
    found = {"plain": float("inf"), "timed": float("inf")}
    for _ in range(max(2, exchanges // BATCH)):
        for name, transport in (("plain", plain), ("timed", timed)):
            found[name] = min(found[name], _batch(transport))
    assert len(stages._times) > 0
    return found


def _logged_in(make: Callable[[Any, Stream], StreamTransport]) -> StreamTransport:
    quic = SimpleNamespace(limits=QuicLimits(), consume=lambda stream, size: False, activate=lambda stream: None)
    stream = Stream(0, 1 << 20, 1 << 20)
    # It stays what it is: nothing is ever sent.
    stream.queued = True
    stream.sender = SimpleNamespace(  # type: ignore[assignment]
        write=lambda data: None, _buffer=b"", _reset_error_code=None
    )
    transport = make(SimpleNamespace(quic=quic, touch=lambda: None), stream)
    transport.set_protocol(_Sink())
    transport.receive(ready(), False)
    return transport


class _Sink(asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        pass


def _batch(transport: StreamTransport) -> float:
    write, receive = transport.write, transport.receive
    began = time.perf_counter()
    for _ in range(BATCH):
        write(REQUEST)
        receive(ANSWER, False)
    return (time.perf_counter() - began) / BATCH * 1e6


def main() -> None:
    for name, us in client().items():
        print(f"client   {name:22} {us:6.2f} us")
    for reported in (False, True, False, True):
        found = own_python.measure(20_000, reported=reported)
        print(f"gateway  {'reported' if reported else 'plain':22} {found['prepared']:6.2f} us")


if __name__ == "__main__":
    main()
