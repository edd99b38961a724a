"""Cancel requests that came to the wrong worker: the bus between them, and what becomes of a worker that is lost."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from helpers.cancel_server import cancel_server, running_backend
from helpers.siblings import siblings
from helpers.waiting import until
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.auth import LoginLimiter
from pgtrunk_gateway.cancel.dispatch import Dispatcher
from pgtrunk_gateway.cancel.keys import CancelKey, mint
from pgtrunk_gateway.fleet import cancels as module

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend

HERE = "192.0.2.1"


class Session:
    def __init__(self, backend: Backend | None = None, *, waits: bool = False) -> None:
        self.backend = backend
        self.waits = waits
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def _ignore(*_: Any) -> None: ...


def workers(count: int = 3, timeout: float = 10.0) -> list[Dispatcher]:
    return [
        Dispatcher(
            peer_id=1, random=os.urandom, timeout=timeout, tune=_ignore, limiter=LoginLimiter(limit=3, window=3600.0)
        )
        for _ in range(count)
    ]


def outcomes(dispatcher: Dispatcher) -> dict[str, int]:
    return {outcome.name.lower(): count for outcome, count in dispatcher.outcomes.items() if count}


def request_of(key: CancelKey) -> CancelRequest:
    return CancelRequest(key.pid, key.secret)


@pytest.mark.parametrize("long", [False, True], ids=["3.0", "3.2"])
async def test_each_finds_the_sessions_of_all_others(long: bool) -> None:
    fleet = workers()
    async with siblings(*fleet):
        for at, owner in enumerate(fleet):
            session = Session(waits=True)
            key = owner.register(session, long=long)
            for dispatcher in fleet:
                await dispatcher.serve(request_of(key), HERE)
            assert session.cancelled == 3
            owner.forget(key)
            for dispatcher in fleet:
                await dispatcher.serve(request_of(key), HERE)
            assert [outcomes(dispatcher) for dispatcher in fleet] == [{"refused": at + 1, "ended": at + 1}] * 3


async def test_sessions_that_share_a_pid_are_told_apart_by_the_secret() -> None:
    """15 bits of a pid are random: two workers with thousands of sessions have the same ones."""
    fleet = workers(2)
    for dispatcher in fleet:
        dispatcher.registry._random = lambda octets: b"samepid!"[:4] + os.urandom(octets - 4)
    sessions = [Session(waits=True) for _ in range(4)]
    keys = [fleet[number % 2].register(session) for number, session in enumerate(sessions)]
    assert len({key.pid for key in keys}) == 1
    async with siblings(*fleet):
        for number, key in enumerate(keys):
            await fleet[0].serve(request_of(key), HERE)
            assert [session.cancelled for session in sessions] == [1] * (number + 1) + [0] * (3 - number)
        await fleet[0].serve(CancelRequest(keys[0].pid, b"nope"), HERE)
    assert outcomes(fleet[0]) == {"refused": 4, "unknown": 1}
    assert outcomes(fleet[1]) == {}


async def test_the_client_waits_until_postgres_has_hung_up() -> None:
    fleet = workers(2)
    async with siblings(*fleet), cancel_server() as server:
        key = fleet[1].register(Session(running_backend(server.port)))
        serving = asyncio.ensure_future(fleet[0].serve(request_of(key), HERE))
        async with asyncio.timeout(10):
            await server.arrived.wait()
        assert not serving.done()
        assert (len(fleet[0]), len(fleet[1])) == (1, 1)
        server.may_close.set()
        await serving
    assert (outcomes(fleet[0]), outcomes(fleet[1])) == ({"carried": 1}, {})
    assert (fleet[0].sent, fleet[1].sent) == (0, 1)


async def test_one_that_postgres_does_not_confirm() -> None:
    fleet = workers(2, timeout=0.1)
    async with siblings(*fleet), cancel_server() as server:
        key = fleet[1].register(Session(running_backend(server.port)))
        await fleet[0].serve(request_of(key), HERE)
    assert outcomes(fleet[0]) == {"unconfirmed": 1}


async def test_a_wrong_key_is_counted_where_it_came_and_nowhere_else() -> None:
    fleet = workers()
    async with siblings(*fleet):
        for _ in range(5):
            await fleet[0].serve(request_of(mint(1, os.urandom(8))), HERE)
    assert [outcomes(dispatcher) for dispatcher in fleet] == [{"unknown": 3, "limited": 2}, {}, {}]
    assert [len(dispatcher.limiter) for dispatcher in fleet] == [1, 0, 0]


async def test_a_request_is_one_question_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = workers(4)
    async with siblings(*fleet) as family:
        asked: list[tuple[int, str]] = []
        for index, bus in family.there.items():
            ask = bus.ask

            async def count(kind: str, body: Any, *, timeout: float, index: int = index, ask: Any = ask) -> Any:
                asked.append((index, body["kind"]))
                return await ask(kind, body, timeout=timeout)

            monkeypatch.setattr(bus, "ask", count)
        key = fleet[2].register(Session(waits=True))
        await fleet[0].serve(request_of(key), HERE)
        assert sorted(asked) == [(1, "cancel key"), (2, "cancel"), (2, "cancel key"), (3, "cancel key")]
        asked.clear()
        await fleet[0].serve(request_of(mint(1, os.urandom(8))), HERE)
        assert sorted(asked) == [(1, "cancel key"), (2, "cancel key"), (3, "cancel key")]


async def test_a_worker_that_is_gone_makes_no_key_wrong() -> None:
    fleet = workers()
    async with siblings(*fleet) as family:
        lost, there = fleet[1].register(Session(waits=True)), fleet[2].register(Session(waits=True))
        await family.kill(1)
        await until(lambda: 1 not in family.there)
        for _ in range(5):
            await fleet[0].serve(request_of(lost), HERE)
        await fleet[0].serve(request_of(there), HERE)
    assert outcomes(fleet[0]) == {"failed": 5, "refused": 1}
    assert len(fleet[0].limiter) == 0


async def test_a_worker_that_dies_while_it_acts() -> None:
    fleet = workers(2)
    async with siblings(*fleet) as family, cancel_server() as server:
        key = fleet[1].register(Session(running_backend(server.port)))
        serving = asyncio.ensure_future(fleet[0].serve(request_of(key), HERE))
        async with asyncio.timeout(10):
            await server.arrived.wait()
        await family.kill(1)
        async with asyncio.timeout(10):
            await serving
        server.may_close.set()
        await until(lambda: not len(fleet[1]))
    assert outcomes(fleet[0]) == {"failed": 1}


async def test_a_worker_that_hangs_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWS_WITHIN", 0.1)
    fleet = workers()
    stuck = asyncio.Event()
    async with siblings(*fleet) as family:

        async def hang(_: Any) -> None:
            await stuck.wait()

        family.members[1].on("cancel key", hang)
        key = fleet[2].register(Session(waits=True))
        await fleet[0].serve(request_of(key), HERE)
        for _ in range(5):
            await fleet[0].serve(request_of(mint(1, os.urandom(8))), HERE)
        stuck.set()
    assert outcomes(fleet[0]) == {"refused": 1, "failed": 5}
    assert len(fleet[0].limiter) == 0


async def test_the_supervisor_is_gone() -> None:
    fleet = workers(2)
    async with siblings(*fleet) as family:
        key, own = fleet[1].register(Session(waits=True)), fleet[0].register(Session(waits=True))
        family.there[0].close()
        await family.there[0].wait_closed()
        await fleet[0].serve(request_of(key), HERE)
        await fleet[0].serve(request_of(own), HERE)
    assert outcomes(fleet[0]) == {"failed": 1, "refused": 1}


async def test_a_thousand_at_once_over_four_workers() -> None:
    fleet = workers(4)
    sessions = [Session(waits=True) for _ in range(1000)]
    keys = [fleet[number % 4].register(session, long=number % 8 > 3) for number, session in enumerate(sessions)]
    async with siblings(*fleet):
        serving = [fleet[number % 3].serve(request_of(key), HERE) for number, key in enumerate(keys)]
        async with asyncio.timeout(30):
            await asyncio.gather(*serving)
    assert {session.cancelled for session in sessions} == {1}
    assert sum((dispatcher.outcomes for dispatcher in fleet[1:]), fleet[0].outcomes).total() == 1000
    assert [len(dispatcher) for dispatcher in fleet] == [0] * 4
