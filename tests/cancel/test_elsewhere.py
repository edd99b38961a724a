"""Cancel requests that are for somebody else: which way they go, what is counted, and what no guesser gains by it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from helpers.cancel_server import cancel_server, running_backend
from helpers.waiting import until
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.auth import LoginLimiter
from pgtrunk_gateway.cancel.dispatch import Dispatcher
from pgtrunk_gateway.cancel.keys import CancelKey, forwarded, mint
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.cancel.peer import Peer
from pgtrunk_gateway.errors import WorkerLost
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend

HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"
OCTETS = pytest.mark.parametrize("octets", [8, 36], ids=["3.0", "3.2"])


class Session:
    def __init__(self, backend: Backend | None = None, *, waits: bool = False) -> None:
        self.backend = backend
        self.waits = waits
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def _ignore(*_: Any) -> None: ...


def dispatcher(peer_id: int = 0, peers: Mapping[int, Peer] | None = None, *, limit: int = 3) -> Dispatcher:
    return Dispatcher(
        peer_id=peer_id,
        random=os.urandom,
        timeout=10.0,
        tune=_ignore,
        limiter=LoginLimiter(limit, 3600.0),
        peers=peers or {},
    )


def peer(number: int, port: int, *, host: str = "127.0.0.1", long_keys: bool = True) -> Peer:
    return Peer(number, Target(host=host, port=port, dbname="", user=""), 0, long_keys)


def counted(cancels: Dispatcher, **expected: int) -> bool:
    """Whether the outcomes are these and no others."""
    return {
        outcome.name.lower(): count for outcome, count in cancels.outcomes.items() if count
    } == expected and cancels.received == sum(expected.values())


def request_of(key: CancelKey, times: int = 0) -> CancelRequest:
    """As it comes from a client, or has been forwarded that many times."""
    secret = key.secret
    for _ in range(times):
        secret = forwarded(secret)
    return CancelRequest(key.pid, secret)


def wrong(peer_id: int = 0) -> CancelRequest:
    return request_of(mint(peer_id, os.urandom(8)))


# -- peers -------------------------------------------------------------------------------------------------------------


@OCTETS
async def test_a_peers_key_is_forwarded_until_it_has_no_hop_left(octets: int) -> None:
    key = mint(2, os.urandom(octets))
    async with cancel_server() as server:
        server.may_close.set()
        cancels = dispatcher(1, {2: peer(2, server.port)})
        for times in range(4):
            await cancels.serve(request_of(key, times), HERE)
    assert server.requests == [request_of(key, times).encode() for times in (1, 2, 3)]
    assert counted(cancels, forwarded=3, unknown=1)
    assert len(cancels.limiter) == 0


@OCTETS
async def test_one_that_comes_home_is_acted_on_whatever_its_hops(octets: int) -> None:
    cancels = dispatcher(1, {2: peer(2, 1)})
    session = Session(waits=True)
    key = cancels.register(session, long=octets == 36)
    assert len(key.secret) == octets - 4
    for times in range(4):
        await cancels.serve(request_of(key, times), HERE)
    assert session.cancelled == 4
    cancels.forget(key)
    for times in range(4):
        await cancels.serve(request_of(key, times), HERE)
    assert counted(cancels, refused=4, ended=4)
    assert len(cancels.limiter) == 0


async def test_a_key_with_our_own_number_never_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """Though the entry is there: PgBouncers may all have one and the same [peers]."""
    async with cancel_server() as server:
        cancels = dispatcher(1, {1: peer(1, server.port)})
        await cancels.serve(wrong(1), HERE)
        assert server.requests == []
    assert counted(cancels, unknown=1)


async def test_a_pgbouncer_is_not_sent_what_it_would_drop() -> None:
    async with cancel_server() as server:
        cancels = dispatcher(1, {2: peer(2, server.port, long_keys=False)})
        await cancels.serve(request_of(mint(2, os.urandom(36))), HERE)
        assert server.requests == []
    assert counted(cancels, unknown=1)
    assert len(cancels.limiter) == 1


async def test_keys_are_long_where_all_peers_take_them() -> None:
    ours, pgbouncer = peer(2, 1), peer(3, 1, long_keys=False)
    cancels = dispatcher(1)
    for peers, octets in (({}, 32), ({2: ours}, 32), ({2: ours, 3: pgbouncer}, 4), ({3: pgbouncer}, 4)):
        cancels.configure(peer_id=1, timeout=10.0, peers=peers)
        assert len(cancels.register(Session(), long=True).secret) == octets
        assert len(dispatcher(1, peers).register(Session(), long=True).secret) == octets


async def test_other_peers_after_a_reload() -> None:
    async with cancel_server() as server:
        server.may_close.set()
        cancels = dispatcher(1)
        await cancels.serve(wrong(2), HERE)
        cancels.configure(peer_id=1, timeout=10.0, failures=3, peers={2: peer(2, server.port)})
        await cancels.serve(wrong(2), HERE)
        assert set(cancels.lanes) == {2}
        cancels.configure(peer_id=1, timeout=10.0, failures=3)
        await cancels.serve(wrong(2), HERE)
    assert counted(cancels, forwarded=1, unknown=2)
    assert set(cancels.lanes) == set()


async def test_what_a_peer_passes_on_shuts_nobody_out() -> None:
    """A guesser there, whom that peer has to stop, would else have all cancels that come by it dropped."""
    cancels = dispatcher(1, {2: peer(2, 1, host=HERE)})
    session = Session(waits=True)
    key = cancels.register(session)
    for _ in range(10):
        await cancels.serve(wrong(1), HERE)
    await cancels.serve(request_of(key, 1), HERE)
    assert session.cancelled == 1
    for _ in range(10):
        await cancels.serve(wrong(1), ELSEWHERE)
    assert counted(cancels, unknown=13, refused=1, limited=7)


async def test_a_client_that_leaves_ends_no_forwarding_and_closing_does() -> None:
    async with cancel_server() as server:
        cancels = dispatcher(1, {2: peer(2, server.port)})
        serving = asyncio.ensure_future(cancels.serve(wrong(2), HERE))
        async with asyncio.timeout(10):
            await server.arrived.wait()
        serving.cancel()
        await asyncio.wait([serving])
        assert len(cancels) == 1
        await cancels.close()
        assert len(cancels) == 0
    assert counted(cancels, failed=1)


# -- siblings ----------------------------------------------------------------------------------------------------------


class FakeSiblings:
    """One other worker, number 1, with these keys. ``known`` and ``done``: when it answers."""

    def __init__(self, *keys: CancelKey) -> None:
        self.keys = keys
        self.asked: list[CancelRequest] = []
        self.acted: list[CancelRequest] = []
        self.known, self.done = asyncio.Event(), asyncio.Event()
        self.known.set()
        self.done.set()
        self.outcome = Outcome.CARRIED
        self.error: Exception | None = None

    async def owner(self, request: CancelRequest) -> int | None:
        self.asked.append(request)
        await self.known.wait()
        if self.error is not None:
            raise self.error
        return 1 if request in [request_of(key) for key in self.keys] else None

    async def cancel(self, worker: int, request: CancelRequest, *, timeout: float) -> Outcome:
        assert (worker, timeout) == (1, 10.0)
        self.acted.append(request)
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.outcome


KEY = mint(0, b"12345678")


async def test_a_siblings_key_is_acted_on_there_and_the_client_waits_for_it() -> None:
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings(KEY)
    siblings.done.clear()
    serving = asyncio.ensure_future(cancels.serve(request_of(KEY), HERE))
    await until(lambda: siblings.acted)
    assert not serving.done()
    assert (len(cancels), cancels.outcomes.total()) == (1, 0)
    siblings.done.set()
    await serving
    assert counted(cancels, carried=1)
    assert len(cancels) == 0
    for outcome in (Outcome.REFUSED, Outcome.ENDED, Outcome.IDLE):
        siblings.outcome = outcome
        await cancels.serve(request_of(KEY), HERE)
    assert counted(cancels, carried=1, refused=1, ended=1, idle=1)
    assert len(cancels.limiter) == 0


async def test_nobody_is_asked_about_what_is_known_here() -> None:
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings()
    key = cancels.register(Session())
    await cancels.serve(request_of(key), HERE)
    cancels.forget(key)
    await cancels.serve(request_of(key), HERE)
    assert siblings.asked == []
    assert counted(cancels, idle=1, ended=1)


async def test_what_nobody_knows_is_wrong_and_counted_once() -> None:
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings(KEY)
    for _ in range(10):
        await cancels.serve(wrong(), HERE)
    assert (len(siblings.asked), siblings.acted) == (3, [])
    assert counted(cancels, unknown=3, limited=7)
    await cancels.serve(request_of(KEY), HERE)
    await cancels.serve(request_of(KEY), ELSEWHERE)
    assert counted(cancels, unknown=3, limited=8, carried=1)


async def test_a_thousand_guesses_at_once_are_as_few_as_one_after_the_other() -> None:
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings()
    siblings.known.clear()
    serving = [asyncio.ensure_future(cancels.serve(wrong(), HERE)) for _ in range(1000)]
    await until(lambda: len(siblings.asked) == 3)
    siblings.known.set()
    await asyncio.gather(*serving)
    assert len(siblings.asked) == 3
    assert counted(cancels, unknown=3, limited=997)
    assert len(cancels) == 0


async def test_a_thousand_right_ones_at_once_are_all_acted_on() -> None:
    """Also while Postgres takes its time: only for whose they are, they wait for each other."""
    keys = [mint(0, os.urandom(8)) for _ in range(1000)]
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings(*keys)
    siblings.done.clear()
    serving = [asyncio.ensure_future(cancels.serve(request_of(key), HERE)) for key in keys]
    await until(lambda: len(siblings.acted) == 1000)
    siblings.done.set()
    await asyncio.gather(*serving)
    assert counted(cancels, carried=1000)
    assert (len(cancels), len(cancels.limiter)) == (0, 0)


@pytest.mark.parametrize("when", ["is asked", "acts"])
async def test_a_sibling_that_is_lost_makes_no_key_wrong(when: str, caplog: pytest.LogCaptureFixture) -> None:
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings(KEY)
    (siblings.known if when == "is asked" else siblings.done).clear()
    serving = [asyncio.ensure_future(cancels.serve(request_of(KEY), HERE)) for _ in range(3)]
    await until(lambda: len(siblings.asked) == 3)
    if when == "acts":
        await until(lambda: len(siblings.acted) == 3)
    siblings.error = WorkerLost("worker 1 has gone")
    siblings.known.set()
    siblings.done.set()
    await asyncio.gather(*serving)
    assert counted(cancels, failed=3)
    assert len(cancels.limiter) == 0
    assert caplog.text.count("cancel request failed: worker 1 has gone") == 3


async def test_a_client_that_leaves_ends_nothing() -> None:
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings(KEY)
    siblings.known.clear()
    serving = [asyncio.ensure_future(cancels.serve(request_of(KEY), HERE)) for _ in range(5)]
    await until(lambda: len(siblings.asked) == 3)
    for each in serving:
        each.cancel()
    await asyncio.wait(serving)
    siblings.known.set()
    await until(lambda: not len(cancels))
    assert len(siblings.acted) == 5
    assert counted(cancels, carried=5)


async def test_a_peers_key_goes_to_the_peer_and_a_forwarded_one_of_ours_to_the_sibling() -> None:
    key = mint(1, os.urandom(8))
    async with cancel_server() as server:
        server.may_close.set()
        cancels = dispatcher(1, {2: peer(2, server.port)})
        cancels.siblings = siblings = FakeSiblings()
        await cancels.serve(wrong(2), HERE)
        assert siblings.asked == []
        await cancels.serve(request_of(key, 1), HERE)
        assert siblings.asked == [request_of(key, 1)]
        assert len(server.requests) == 1
    assert counted(cancels, forwarded=1, unknown=1)


async def test_closing_ends_what_is_asked_and_what_waits() -> None:
    cancels = dispatcher()
    cancels.siblings = siblings = FakeSiblings(KEY)
    siblings.known.clear()
    serving = [asyncio.ensure_future(cancels.serve(request_of(KEY), HERE)) for _ in range(5)]
    await until(lambda: len(siblings.asked) == 3)
    await cancels.close()
    await asyncio.gather(*serving)
    assert counted(cancels, failed=5)
    assert len(cancels) == 0


# -- what a sibling asks -----------------------------------------------------------------------------------------------


async def test_what_it_answers_its_siblings_is_not_counted_here() -> None:
    cancels = dispatcher(1, {2: peer(2, 1)})
    cancels.siblings = siblings = FakeSiblings()
    waiting = Session(waits=True)
    key, gone = cancels.register(waiting), cancels.register(Session())
    cancels.forget(gone)
    assert [cancels.knows(request) for request in (request_of(key, 2), request_of(gone), wrong(1), wrong(2))] == [
        True,
        True,
        False,
        False,
    ]
    assert waiting.cancelled == 0
    assert await cancels.act(request_of(key, 2)) is Outcome.REFUSED
    assert await cancels.act(request_of(gone)) is Outcome.ENDED
    # It has ended since it was asked for: it asks nobody in its turn, and forwards nothing.
    for request in (wrong(1), wrong(2)):
        assert await cancels.act(request) is Outcome.ENDED
    assert waiting.cancelled == 1
    assert (cancels.received, cancels.outcomes.total(), siblings.asked, len(cancels)) == (0, 0, [], 0)


async def test_it_answers_when_postgres_has_hung_up() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        key = cancels.register(Session(running_backend(server.port)))
        acting = asyncio.ensure_future(cancels.act(request_of(key)))
        async with asyncio.timeout(10):
            await server.arrived.wait()
        assert not acting.done()
        server.may_close.set()
        assert await acting is Outcome.CARRIED
    assert cancels.outcomes.total() == 0
