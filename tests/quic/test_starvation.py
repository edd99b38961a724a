"""Blocked streams hold their own windows and nothing else: the rest of the connection goes on, within the budgets."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.quic_pair import Echo, Pair, Recorder, sessions_of
from pgtrunk.quic.config import ByteBudget, QuicLimits


class Blocked(Recorder):
    """A session that does not read: it waits for a backend, say."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()


class Once:
    """Protocols for a server: all blocked but the last."""

    def __init__(self, blocked: int) -> None:
        self.blocked = blocked
        self.made = 0

    def __call__(self) -> Recorder:
        self.made += 1
        return Blocked() if self.made <= self.blocked else Echo()


@pytest.mark.parametrize("streams", [40, 400])
def test_all_streams_but_one_blocked_by_sessions_that_do_not_read(streams: int) -> None:
    budget = ByteBudget(64 << 20)
    pair = Pair(accept=Once(streams - 1), budget=budget, server=QuicLimits(max_streams=1000)).connect()
    blocked = [pair.open() for _ in range(streams - 1)]
    for protocol in blocked:
        protocol.transport.write(bytes(40_000))
    pair.run(5.0)
    held = pair.server.driver.held_bytes
    assert held == sum(stream.unread for stream in pair.server.driver.quic._streams.values())
    assert held == (streams - 1) * pair.server.driver.quic.limits.initial_window
    assert held <= pair.server.driver.quic.limits.connection_budget
    assert budget.held == held <= budget.limit

    free = pair.open()
    start = pair.loop.time()
    free.transport.write(b"COMMIT")
    pair.until(lambda: free.data == b"COMMIT")
    assert pair.loop.time() - start < 0.2
    free.transport.write(bytes(1_000_000))
    pair.until(lambda: len(free.data) == 1_000_006)
    assert pair.server.driver.held_bytes == held

    for protocol in pair.server.accepted[: streams - 1]:
        protocol.transport.resume_reading()
    pair.until(lambda: all(len(each.data) == 40_000 for each in pair.server.accepted[: streams - 1]))
    pair.run(1.0)
    assert pair.server.driver.held_bytes == budget.held == 0


@pytest.mark.parametrize("streams", [40, 250])
def test_all_streams_but_one_blocked_by_a_client_that_does_not_read(streams: int) -> None:
    """The same the other way: the gateway's data waits at the gateway, bounded by its watermarks, and the 40th
    passes."""
    pair = Pair(accept=Recorder).connect()
    near = [pair.open(Blocked) for _ in range(streams - 1)]
    for protocol in near:
        protocol.transport.write(b"SELECT")
    pair.until(lambda: len(pair.server.accepted) == streams - 1)
    for protocol in pair.server.accepted:
        protocol.transport.write(bytes(300_000))
        assert protocol.calls[-1] == "pause"  # so the backend is not read any further
    pair.run(5.0)
    client = pair.client.driver
    assert (
        client.held_bytes == (streams - 1) * client.quic.limits.initial_window <= client.quic.limits.connection_budget
    )
    free = pair.open()
    free.transport.write(b"x")
    pair.until(lambda: len(pair.server.accepted) == streams)
    there = pair.server.accepted[-1]
    there.transport.write(bytes(1_000_000))
    pair.until(lambda: len(free.data) == 1_000_000)


def test_windows_that_grew_cannot_starve_the_connection_either() -> None:
    """Streams read quickly until their windows are wide, then all stop at once."""
    limits = QuicLimits(max_streams=100, connection_budget=4 << 20)
    pair = Pair(accept=Recorder, server=limits).connect()
    near = [pair.open() for _ in range(20)]
    for protocol in near:
        protocol.transport.write(bytes(500_000))
    pair.until(lambda: sum(len(each.data) for each in pair.server.accepted) == 10_000_000)
    windows = [stream.window for stream in sessions_of(pair.server.driver.quic).values()]
    assert max(windows) > limits.initial_window
    for protocol in pair.server.accepted:
        protocol.transport.pause_reading()
    for protocol in near:
        protocol.transport.write(bytes(1_000_000))
    pair.run(10.0)
    assert 20 * limits.initial_window < pair.server.driver.held_bytes < limits.connection_budget * 3 // 4
    free = pair.open()
    free.transport.write(bytes(500_000))
    pair.until(lambda: len(pair.server.accepted) == 21 and len(pair.server.accepted[-1].data) == 500_000)


def test_two_connections_share_the_process_budget() -> None:
    budget = ByteBudget(1 << 20, reserve=64 << 10)
    limits = QuicLimits(max_streams=100, stream_window=64 << 10)
    hog = Pair(accept=Blocked, budget=budget, server=limits).connect()
    other = Pair(accept=Echo, budget=budget, server=limits, seed=2).connect()
    for _ in range(60):
        hog.open().transport.write(bytes(100_000))
    hog.run(5.0)
    assert budget.held == hog.server.driver.held_bytes
    assert (1 << 20) * 3 // 4 < budget.held <= budget.limit
    free = other.open()
    free.transport.write(bytes(300_000))
    other.until(lambda: len(free.data) == 300_000)
    assert budget.committed <= budget.limit
    hog.server.driver.close()
    hog.run(3.0)
    assert (budget.held, hog.server.driver.held_bytes) == (0, 0)
    assert budget.committed == budget.reserve or budget.committed <= budget.limit // 2


@pytest.mark.parametrize("end", ["abort", "close", "reset", "lost"])
def test_unread_bytes_are_given_back_however_a_stream_ends(end: str) -> None:
    budget = ByteBudget(8 << 20)
    pair = Pair(accept=Blocked, budget=budget).connect()
    near = [pair.open() for _ in range(10)]
    for protocol in near:
        protocol.transport.write(bytes(50_000))
    pair.run(2.0)
    assert budget.held > 100_000
    for protocol, there in zip(near, pair.server.accepted, strict=True):
        if end == "abort":
            there.transport.abort()
        elif end == "close":
            there.transport.close()
        elif end == "reset":
            protocol.transport.abort()
    if end == "lost":
        pair.client.driver.close()
    pair.run(3.0)
    assert budget.held == pair.server.driver.held_bytes == 0
    assert all(len(each.lost) == 1 for each in pair.server.accepted)
    if end != "lost":
        assert not sessions_of(pair.server.driver.quic)
        # Nothing was lost on the way: the connection's credit still covers a long upload.
        pair.open().transport.write(b"x")
        pair.run(0.1)
        there = pair.server.accepted[-1]
        there.transport.resume_reading()
        pair.client.driver.streams[40].write(bytes(6_000_000))
        pair.until(lambda: len(there.data) == 6_000_001)
        assert budget.held == 0


def test_a_connection_that_filled_its_budget_goes_on_when_something_is_read() -> None:
    """A client that opens more streams than its budget holds windows of."""
    limits = QuicLimits(max_streams=0, connection_budget=128 << 10)
    pair = Pair(client=limits).connect()
    near = [pair.open(Blocked) for _ in range(4)]
    for protocol in near:
        protocol.transport.write(b"SELECT")
    pair.until(lambda: len(pair.server.accepted) == 4)
    for there in pair.server.accepted:
        there.transport.write(bytes(64 << 10))
    pair.run(2.0)
    assert pair.client.driver.held_bytes == 128 << 10
    for protocol in near:
        protocol.transport.resume_reading()
    pair.until(lambda: all(len(each.data) == 64 << 10 for each in near))
    assert pair.client.driver.held_bytes == 0


def test_data_after_our_stop_is_dropped_and_counted() -> None:
    """A far end that ignores STOP_SENDING for a while fills nothing."""
    pair = Pair(accept=Recorder).connect()
    near = pair.open()
    near.transport.write(bytes(400_000))
    pair.until(lambda: pair.server.accepted != [])
    there = pair.server.accepted[0]
    pair.down.drop = lambda data: True  # STOP_SENDING does not arrive
    there.transport.abort()
    received = len(there.data)
    pair.run(0.3)
    assert pair.server.driver.held_bytes == 0
    assert len(there.data) == received
    pair.down.drop = lambda data: False
    pair.run(3.0)
    assert isinstance(near.lost[0], Exception)
    assert not sessions_of(pair.client.driver.quic)
