"""Carrying cancels to a server: what is sent, when, how many at a time, and until when the backend is held for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.cancel_server import cancel_server, running_backend
from helpers.waiting import until
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.carrier import UNCONFIRMED, Carrier
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.session import owed

REQUEST = CancelRequest(4711, b"\1\2\3\4").encode()


def _ignore(*_: Any) -> None: ...


def carrier(timeout: float = 10.0) -> Carrier:
    return Carrier(timeout=timeout, tune=_ignore)


async def outcome(task: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(20):
        return await task


async def test_the_servers_own_key_is_sent_and_the_backend_held_until_it_hangs_up() -> None:
    cancels = carrier()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        task = cancels.start(backend)
        assert backend.cancels == 1
        async with asyncio.timeout(10):
            await server.arrived.wait()
        assert server.requests == [REQUEST]
        assert (backend.cancels, len(cancels)) == (1, 1)
        assert not task.done()
        server.may_close.set()
        assert await outcome(task) is Outcome.CARRIED
    assert (backend.cancels, backend.retired) == (0, "")
    assert (cancels.sent, len(cancels), cancels._lanes) == (1, 0, {})


@pytest.mark.parametrize("overtaken", ["by its answer", "by the end of the lease"])
async def test_a_cancel_that_the_end_of_its_query_overtakes_is_not_sent(overtaken: str) -> None:
    cancels = carrier()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        task = cancels.start(backend)
        if overtaken == "by its answer":
            backend.replies.queue.clear()
        else:
            backend.lease += 1
        assert await outcome(task) is Outcome.OVERTAKEN
        server.may_close.set()
    assert b"".join(server.requests) == b""
    assert (backend.cancels, cancels.sent) == (0, 0)


async def test_a_server_that_never_hangs_up_does_not_hold_a_backend_for_ever() -> None:
    """But nobody else gets it: the signal may still come."""
    cancels = carrier(timeout=0.05)
    async with cancel_server() as server:
        backend = running_backend(server.port)
        assert await outcome(cancels.start(backend)) is Outcome.UNCONFIRMED
    assert (backend.cancels, backend.retired, backend.expires) == (0, UNCONFIRMED, 0.0)


async def test_a_server_that_is_gone_and_one_that_gave_no_key() -> None:
    cancels = carrier()
    async with cancel_server() as server:
        port = server.port
    gone, keyless = running_backend(port), running_backend(port, key=None)
    for backend in (gone, keyless):
        assert await outcome(cancels.start(backend)) is Outcome.FAILED
        assert (backend.cancels, backend.retired) == (0, "")
    assert (cancels.sent, cancels._lanes) == (0, {})


async def test_a_server_that_is_not_reached_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, so the backend is as good as before."""

    async def dial(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("pgtrunk_gateway.cancel.carrier.dial_like", dial)
    cancels = carrier(timeout=0.05)
    backend = running_backend(1)
    assert await outcome(cancels.start(backend)) is Outcome.FAILED
    assert (backend.cancels, backend.retired, cancels.sent) == (0, "", 0)


async def test_a_cancel_waits_while_settings_are_made() -> None:
    """What is cancelled is the request behind them: without them it would run under others."""
    cancels = carrier()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        backend.replies.queue.appendleft(owed.Applying(""))
        task = cancels.start(backend)
        await asyncio.sleep(0.05)
        assert cancels.sent == 0
        backend.replies.queue.popleft()
        async with asyncio.timeout(10):
            await server.arrived.wait()
        backend.replies.queue.clear()
        server.may_close.set()
        assert await outcome(task) is Outcome.CARRIED


async def test_a_thousand_at_once_are_one() -> None:
    cancels = carrier()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        tasks = {cancels.start(backend) for _ in range(1000)}
        assert (len(tasks), backend.cancels) == (1, 1)
        server.may_close.set()
        assert [await outcome(task) for task in tasks] == [Outcome.CARRIED]
    assert server.requests == [REQUEST]
    assert backend.cancels == 0


async def test_who_asks_again_is_heard_again_but_the_connections_are_few() -> None:
    """What has been sent was for what ran then. A server that does not hang up is told twice, and no more."""
    cancels = carrier()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        tasks: set[asyncio.Task[Outcome]] = set()
        for number in (1, 2, 2, 2):
            tasks |= {cancels.start(backend) for _ in range(100)}
            await until(lambda number=number: len(server.requests) == number)  # type: ignore[misc]
        assert len(tasks) == 3
        assert (server.open, server.most, backend.cancels) == (2, 2, 3)
        # The third is sent once one of these has ended.
        server.may_close.set()
        assert [await outcome(task) for task in tasks] == [Outcome.CARRIED] * 3
    assert (cancels.sent, backend.cancels, cancels._lanes) == (3, 0, {})


async def test_who_asked_for_one_that_was_overtaken_does_not_speak_for_the_next_query() -> None:
    cancels = carrier()
    async with cancel_server() as server:
        server.may_close.set()
        backend = running_backend(server.port)
        queue = backend.replies.queue
        query = queue.popleft()
        first = cancels.start(backend)
        seconds: list[asyncio.Task[Outcome]] = []

        def next_query(_: object) -> None:
            queue.append(query)
            seconds.append(cancels.start(backend))

        first.add_done_callback(next_query)
        assert await outcome(first) is Outcome.OVERTAKEN
        await until(lambda: seconds)
        assert await outcome(seconds[0]) is Outcome.CARRIED


async def test_each_backend_has_its_own() -> None:
    cancels = carrier()
    async with cancel_server() as server:
        server.may_close.set()
        backends = [running_backend(server.port) for _ in range(10)]
        tasks = [cancels.start(backend) for backend in backends]
        assert [await outcome(task) for task in tasks] == [Outcome.CARRIED] * 10
    assert {backend.cancels for backend in backends} == {0}


@pytest.mark.parametrize("steps", range(6))
async def test_one_that_is_given_up_at_any_moment_is_counted_off(steps: int) -> None:
    cancels = carrier()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        task = cancels.start(backend)
        for _ in range(steps):
            await asyncio.sleep(0)
        if steps == 5:
            await until(lambda: cancels.sent)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not backend.cancels)
        assert (len(cancels), cancels._lanes) == (0, {})
        server.may_close.set()


async def test_a_fault_is_logged_and_holds_no_backend(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def dial(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("pgtrunk_gateway.cancel.carrier.dial_like", dial)
    cancels = carrier()
    backend = running_backend(1)
    task = cancels.start(backend)
    await asyncio.wait([task])
    await until(lambda: not backend.cancels)
    assert "ZeroDivisionError" in caplog.text
    assert cancels._lanes == {}
