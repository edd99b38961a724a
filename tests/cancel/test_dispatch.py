"""What a cancel request comes to: whose it is, whether it is looked at, and that each is counted once."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from helpers.cancel_server import cancel_server, running_backend
from helpers.waiting import until
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.auth import LoginLimiter
from pgtrunk_gateway.cancel.dispatch import Dispatcher
from pgtrunk_gateway.cancel.keys import CancelKey, mint
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.cancel.peer import Peer
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgtrunk_gateway.pool.backend import Backend

HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


class Session:
    def __init__(self, backend: Backend | None, *, waits: bool = False) -> None:
        self.backend = backend
        self.waits = waits
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1
        self.waits = False


def _ignore(*_: Any) -> None: ...


def dispatcher(
    timeout: float = 10.0, *, limit: int = 10, peers: Mapping[int, Peer] | None = None, peer_id: int = 0
) -> Dispatcher:
    limiter = LoginLimiter(limit, 3600.0)
    return Dispatcher(
        peer_id=peer_id, random=os.urandom, timeout=timeout, tune=_ignore, limiter=limiter, peers=peers or {}
    )


def peer(number: int, port: int) -> Peer:
    return Peer(number, Target(host="127.0.0.1", port=port, dbname="", user=""), 20)


def counted(cancels: Dispatcher, **expected: int) -> bool:
    """Whether the outcomes are these and no others."""
    return {
        outcome.name.lower(): count for outcome, count in cancels.outcomes.items() if count
    } == expected and cancels.received == sum(expected.values())


def request_of(key: CancelKey) -> CancelRequest:
    return CancelRequest(key.pid, key.secret)


def wrong(number: int = 0) -> CancelRequest:
    return CancelRequest(1 + number, b"nope")


async def test_what_runs_is_cancelled_and_the_client_waits_for_it() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        key = cancels.register(Session(backend))
        serving = asyncio.ensure_future(cancels.serve(request_of(key), HERE))
        async with asyncio.timeout(10):
            await server.arrived.wait()
        assert not serving.done()
        assert (len(cancels), cancels.received, cancels.outcomes.total()) == (1, 1, 0)
        server.may_close.set()
        async with asyncio.timeout(10):
            await serving
        assert backend.cancels == 0
    assert counted(cancels, carried=1)
    assert (cancels.sent, len(cancels)) == (1, 0)


async def test_what_waits_is_refused_and_what_is_idle_is_left_alone() -> None:
    cancels = dispatcher()
    waiting, idle = Session(None, waits=True), Session(None)
    for session in (waiting, idle, waiting):
        await cancels.serve(request_of(cancels.register(session)), HERE)
    assert waiting.cancelled == 2
    assert counted(cancels, refused=1, idle=2)
    async with cancel_server() as server:
        quiet = running_backend(server.port)
        quiet.replies.queue.clear()
        await cancels.serve(request_of(cancels.register(Session(quiet))), HERE)
        assert server.requests == []
    assert quiet.cancels == 0
    assert counted(cancels, refused=1, idle=3)


async def test_a_client_that_does_not_wait_is_counted_too() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        key = cancels.register(Session(backend))
        serving = [asyncio.ensure_future(cancels.serve(request_of(key), HERE)) for _ in range(5)]
        async with asyncio.timeout(10):
            await server.arrived.wait()
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        server.may_close.set()
        await until(lambda: not len(cancels))
    assert counted(cancels, carried=5)
    assert cancels.sent == 1


@pytest.mark.parametrize("outcome", ["overtaken", "failed", "unconfirmed"])
async def test_what_cannot_be_done(outcome: str) -> None:
    cancels = dispatcher(timeout=0.05 if outcome == "unconfirmed" else 10.0)
    async with cancel_server() as server:
        port = server.port
        if outcome != "failed":
            backend = running_backend(port)
            serving = asyncio.ensure_future(cancels.serve(request_of(cancels.register(Session(backend))), HERE))
            await asyncio.sleep(0)
            if outcome == "overtaken":
                backend.replies.queue.clear()
            await serving
    if outcome == "failed":
        await cancels.serve(request_of(cancels.register(Session(running_backend(port)))), HERE)
    assert counted(cancels, **{outcome: 1})


# -- the gateway's own -------------------------------------------------------------------------------------------------


async def test_what_a_client_has_left_is_asked_to_end_until_it_does() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        server.may_close.set()
        backend = running_backend(server.port)
        cancels.cancel(backend)
        await until(lambda: len(server.requests) >= 3)
        backend.replies.queue.clear()
        await until(lambda: not cancels._chaser.tasks and not len(cancels))
        await until(lambda: len([request for request in server.requests if request]) == cancels.sent)
    assert counted(cancels)


async def test_closing_ends_what_is_under_way() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        key = cancels.register(Session(backend))
        cancels.cancel(backend)
        async with asyncio.timeout(10):
            await server.arrived.wait()
        serving = asyncio.ensure_future(cancels.serve(request_of(key), HERE))
        await asyncio.sleep(0)
        await cancels.close()
        await serving
        await until(lambda: not backend.cancels)
        assert len(cancels) == 0
    assert counted(cancels, failed=1)


# -- wrong keys --------------------------------------------------------------------------------------------------------


async def test_a_wrong_key_does_nothing_and_too_many_are_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pgtrunk_gateway")
    cancels = dispatcher(limit=3)
    waiting = Session(None, waits=True)
    key = cancels.register(waiting)
    for number in range(1000):
        await cancels.serve(wrong(number), HERE)
    assert counted(cancels, unknown=3, limited=997)
    # Nor is a right one, or the limit would be none.
    await cancels.serve(request_of(key), HERE)
    assert waiting.cancelled == 0
    # Nobody else is concerned, and who comes by the unix socket never is.
    await cancels.serve(request_of(key), ELSEWHERE)
    assert waiting.cancelled == 1
    for _ in range(20):
        await cancels.serve(wrong(), None)
    assert counted(cancels, unknown=23, limited=998, refused=1)
    assert len(cancels.limiter) == 1
    assert caplog.text.count(f"{HERE}: cancel request with an unknown key") == 3
    assert caplog.text.count(f"{HERE}: too many of them") == 1


async def test_many_addresses_cost_no_memory_without_end() -> None:
    cancels = dispatcher(limit=1)
    cancels.limiter.capacity = 100
    for number in range(1000):
        await cancels.serve(wrong(), f"10.0.{number // 250}.{number % 250}")
    assert counted(cancels, unknown=1000)
    assert len(cancels.limiter) == 100


async def test_right_keys_give_no_failure_back() -> None:
    """Who has a session of his own would buy guesses with its cancels, which cost nothing."""
    cancels = dispatcher(limit=3)
    key = cancels.register(Session(None))
    for number in range(3):
        await cancels.serve(wrong(number), HERE)
        await cancels.serve(request_of(key), HERE)
    assert counted(cancels, unknown=3, idle=2, limited=1)


async def test_a_key_that_has_been_right_is_no_guess() -> None:
    cancels = dispatcher(limit=3)
    key = cancels.register(Session(None))
    cancels.forget(key)
    for _ in range(100):
        await cancels.serve(request_of(key), HERE)
    assert counted(cancels, ended=100)
    assert len(cancels.limiter) == 0


async def test_nor_is_one_of_a_peer() -> None:
    """Where several share a port, most cancels come to the wrong one. That of nobody who is known counts."""
    async with cancel_server() as server:
        server.may_close.set()
        cancels = dispatcher(limit=3, peers={2: peer(2, server.port)}, peer_id=1)
        for _ in range(100):
            await cancels.serve(request_of(mint(2, os.urandom(8))), HERE)
    assert counted(cancels, forwarded=100)
    for _ in range(100):
        await cancels.serve(request_of(mint(1, os.urandom(8))), HERE)
        await cancels.serve(request_of(mint(3, os.urandom(8))), ELSEWHERE)
    assert counted(cancels, forwarded=100, unknown=6, limited=194)


async def test_no_limit() -> None:
    cancels = dispatcher(limit=0)
    for number in range(100):
        await cancels.serve(wrong(number), HERE)
    assert counted(cancels, unknown=100)
    assert len(cancels.limiter) == 0


async def test_a_reload() -> None:
    cancels = dispatcher(limit=0)
    cancels.configure(peer_id=5, timeout=0.05, failures=2, window=3600.0)
    for _ in range(5):
        await cancels.serve(wrong(), None)
        await cancels.serve(wrong(), HERE)
    assert counted(cancels, unknown=7, limited=3)
    async with cancel_server() as server:
        backend = running_backend(server.port)
        await cancels.serve(request_of(cancels.register(Session(backend))), ELSEWHERE)
    assert cancels.outcomes[Outcome.UNCONFIRMED] == 1
