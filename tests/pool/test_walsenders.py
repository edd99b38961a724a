"""Replication connections of a pool: each for one client, counted with all others, and never kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from helpers.pools import NoteTaker, Server
from helpers.waiting import until
from pgtrunk.wire.frontend import TERMINATE_MESSAGE
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, LoginRefused, ShuttingDown
from pgtrunk_gateway.pool.accounts import Account
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.pool.walsender import Replication, Walsender

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool

SETTINGS = {"replication": "database", "options": "-c work_mem=1MB"}
DOWN = BackendUnavailable("cannot connect")
REFUSED = BackendRefused("permission denied to start WAL sender", sqlstate="42501")


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch, size=2, retry=0.02)


def apply(pool: Pool, settings: dict[str, str] | None = None) -> asyncio.Task[Walsender]:
    return asyncio.create_task(pool.replicate(Replication.LOGICAL, SETTINGS if settings is None else settings))


async def opened(server: Server, pool: Pool | None = None) -> Walsender:
    task = apply(pool or server.pool)
    await server.answer()
    return await task


def is_clean(pool: Pool) -> bool:
    return pool.unused and not pool.busy and not any(account.count for account in pool.accounts)


async def test_it_begins_with_what_the_client_has_said(server: Server) -> None:
    walsender = await opened(server)
    (target,) = server.targets
    assert dict(target.settings) == SETTINGS
    assert walsender.target is target
    assert server.pool.target.settings == ()
    assert (walsender.kind, walsender.pid) == (Replication.LOGICAL, 101)
    assert server.pool.backends == {walsender.id: walsender}
    walsender.leave("done")
    assert is_clean(server.pool)
    assert server.transports[0].take() == TERMINATE_MESSAGE


async def test_the_pools_own_settings_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    object.__setattr__(server.pool.target, "settings", (("application_name", "pool"), ("timezone", "UTC")))
    task = apply(server.pool, {"replication": "true", "application_name": "client"})
    await server.answer()
    await task
    settings = server.targets[0].settings
    assert dict(settings) == {"application_name": "client", "timezone": "UTC", "replication": "true"}


async def test_it_is_never_lent_to_anybody(server: Server) -> None:
    walsender = await opened(server)
    taker = NoteTaker(server.pool)
    taker.wait()
    assert taker.backend is None
    await server.answer()
    backend = taker.backend
    assert backend is not None
    assert backend is not walsender
    walsender.leave("done")
    taker.give_back()
    assert server.pool.idle == [backend]


async def test_it_is_not_read_before_somebody_holds_it(server: Server) -> None:
    server.rest = b"early"
    walsender = await opened(server)
    transport = server.transports[0]
    transport.paused = True
    walsender.resume_reading()
    assert transport.paused
    taker = NoteTaker(server.pool)
    walsender.begin(taker)
    assert taker.received == [b"early"]
    assert not transport.paused


# -- places


async def test_who_finds_the_pool_full_waits_for_a_place(server: Server) -> None:
    first, second = [await opened(server) for _ in range(2)]
    waiting = apply(server.pool)
    await server.settle()
    assert not server.logins
    assert server.pool.walsenders.queued == 1
    assert server.pool.maxwait >= 0
    second.leave("done")
    await server.answer()
    third = await waiting
    assert set(server.pool.backends.values()) == {first, third}


async def test_an_idle_backend_makes_room(server: Server) -> None:
    old, new = await server.open(2)
    waiting = apply(server.pool)
    await server.settle()
    assert old.state is BackendState.CLOSED
    assert new.state is BackendState.OPEN
    await server.answer()
    assert len(server.pool.backends) == 2
    (await waiting).leave("done")


async def test_a_backend_in_use_makes_room_when_it_is_given_back(server: Server) -> None:
    takers = [NoteTaker(server.pool) for _ in range(2)]
    for taker in takers:
        taker.wait()
    await server.answer()
    waiting = apply(server.pool)
    await server.settle()
    late = NoteTaker(server.pool)
    late.wait()
    takers[0].give_back()
    assert late.backend is None, "it came later"
    await server.answer()
    walsender = await waiting
    takers[1].give_back()
    assert late.backend is not None
    walsender.leave("done")


async def test_a_session_that_came_first_is_served_first(server: Server) -> None:
    takers = [NoteTaker(server.pool) for _ in range(2)]
    for taker in takers:
        taker.wait()
    await server.answer()
    early = NoteTaker(server.pool)
    early.wait()
    await asyncio.sleep(0.001)
    waiting = apply(server.pool)
    await server.settle()
    takers[0].give_back()
    assert early.backend is not None
    await server.settle()
    assert not waiting.done()
    early.give_back()
    await server.answer()
    (await waiting).leave("done")


async def test_a_place_that_is_due_to_a_session(server: Server) -> None:
    """Two places, one of them free, and a session for which it is being filled: nothing is left."""
    walsender = await opened(server)
    early = NoteTaker(server.pool)
    early.wait()
    await asyncio.sleep(0.001)
    waiting = apply(server.pool)
    await server.settle()
    assert len(server.logins) == 1
    await server.answer()
    assert early.backend is not None
    walsender.leave("done")
    await server.answer()
    (await waiting).leave("done")


async def test_there_is_room_beside_a_session_that_is_being_served(server: Server) -> None:
    early = NoteTaker(server.pool)
    early.wait()
    waiting = apply(server.pool)
    await server.settle()
    assert len(server.logins) == 2
    await server.answer()
    assert early.backend is not None
    (await waiting).leave("done")


async def test_the_reserve_is_for_who_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1, reserve=1, reserve_timeout=0.02)
    first = await opened(server)
    waiting = apply(server.pool)
    await server.settle()
    assert not server.logins
    await until(lambda: server.logins)
    await server.answer()
    second = await waiting
    third = apply(server.pool)
    await asyncio.sleep(0.05)
    assert not server.logins
    for walsender in (first, second):
        walsender.leave("done")
    await server.answer()
    (await third).leave("done")


async def test_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=0)
    tasks = [apply(server.pool) for _ in range(30)]
    await server.answer()
    for task in tasks:
        (await task).leave("done")
    assert is_clean(server.pool)


async def test_limits_over_several_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    account = Account("max_db_connections", 2)
    one, other = [server.add("shop", user, accounts=(account,), kept=False, size=5) for user in ("one", "other")]
    (victim,) = await server.open(1, other)
    first = await opened(server, one)
    assert account.count == 2
    second = await opened(server, one)
    assert victim.state is BackendState.CLOSED
    waiting = apply(other)
    await server.settle()
    assert not server.logins
    assert other.full
    first.leave("done")
    await server.answer()
    third = await waiting
    assert account.count == 2
    second.leave("done")
    third.leave("done")
    assert account.count == 0


async def test_idle_backends_of_the_same_pool_under_such_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    account = Account("max_db_connections", 2)
    pool = server.add("shop", "one", accounts=(account,), kept=False, size=5)
    old, new = await server.open(2, pool)
    walsender = await opened(server, pool)
    assert old.state is BackendState.CLOSED
    assert new.state is BackendState.OPEN
    assert account.count == 2
    walsender.leave("done")


async def test_a_session_that_is_blocked_gets_the_place_of_a_walsender(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    account = Account("max_db_connections", 1)
    one, other = [server.add("shop", user, accounts=(account,), kept=False, size=5) for user in ("one", "other")]
    walsender = await opened(server, one)
    taker = NoteTaker(other)
    taker.wait()
    await server.settle()
    assert not server.logins
    walsender.leave("done")
    await server.answer()
    assert taker.backend is not None


# -- failures


async def test_a_refusal_is_the_clients_own(server: Server) -> None:
    task = apply(server.pool)
    await server.answer(REFUSED)
    with pytest.raises(BackendRefused) as caught:
        await task
    assert caught.value is REFUSED
    assert is_clean(server.pool)
    assert server.pool.counters.failed == 1
    # Others do not have to wait for it.
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    assert taker.backend is not None


async def test_a_server_that_is_full_says_so(server: Server) -> None:
    task = apply(server.pool)
    await server.answer(BackendRefused("all walsenders are in use", sqlstate="53300"))
    with pytest.raises(BackendRefused):
        await task


async def test_a_server_that_is_down_is_waited_for(server: Server) -> None:
    task = apply(server.pool)
    await server.answer(DOWN)
    assert not task.done()
    assert server.pool.walsenders.queued == 1
    assert server.pool.trouble
    for _ in range(3):
        await until(lambda: server.logins)
        await server.answer(DOWN)
    await until(lambda: server.logins)
    await server.answer()
    (await task).leave("done")
    assert not server.pool.trouble
    assert is_clean(server.pool)


async def test_one_connection_tries_for_all(server: Server) -> None:
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer(DOWN)
    task = apply(server.pool)
    await until(lambda: server.logins)
    await server.settle()
    assert len(server.logins) == 1
    await server.answer(count=1)
    await server.answer()
    assert taker.backend is not None
    (await task).leave("done")


async def test_settings_that_postgres_would_hang_up_on(server: Server) -> None:
    with pytest.raises(LoginRefused, match="too long"):
        await apply(server.pool, {"options": "x" * 9_600})
    assert not server.begun
    assert is_clean(server.pool)


# -- who does not wait any more


@pytest.mark.parametrize("stage", ["waiting", "opening", "just opened", "just refused", "opened while it is cancelled"])
async def test_who_leaves_leaves_nothing(server: Server, stage: str) -> None:
    others = [await opened(server) for _ in range(2 if stage == "waiting" else 0)]
    task = apply(server.pool)
    await server.settle()
    match stage:
        case "just opened":
            server.logins[0].set_result(None)
            while not server.pool.backends:  # noqa: ASYNC110 - between two steps of the loop
                await asyncio.sleep(0)
        case "just refused":
            server.logins[0].set_result(REFUSED)
            while not server.pool.counters.failed:  # noqa: ASYNC110 - between two steps of the loop
                await asyncio.sleep(0)
        case "opened while it is cancelled":
            server.logins[0].set_result(None)
    task.cancel()
    with pytest.raises((asyncio.CancelledError, BackendRefused)):
        await task
    for other in others:
        other.leave("done")
    await server.settle()
    assert is_clean(server.pool)
    assert not server.logins
    assert all(transport.closing for transport in server.transports)


async def test_a_place_that_nobody_wants_any_more_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    first, second = apply(server.pool), apply(server.pool)
    await server.settle()
    assert len(server.logins) == 1
    first.cancel()
    await server.settle()
    assert len(server.logins) == 1
    await server.answer()
    (await second).leave("done")


# -- the verbs


async def test_pause_waits_for_those_that_are_there(server: Server) -> None:
    walsender, opening = await opened(server), apply(server.pool)
    await server.settle()
    server.pool.pause()
    idle = asyncio.create_task(server.pool.wait_idle())
    await server.settle()
    assert not server.logins
    assert not idle.done()
    walsender.leave("done")
    await idle
    assert not opening.done()
    server.pool.resume()
    await server.answer()
    (await opening).leave("done")


async def test_reconnect_closes_them_at_once(server: Server) -> None:
    walsender, opening = await opened(server), apply(server.pool)
    taker = NoteTaker(server.pool)
    walsender.begin(taker)
    await server.settle()
    server.pool.reconnect()
    assert walsender.state is BackendState.CLOSED
    assert taker.lost is not None
    assert (taker.lost.sqlstate, taker.lost.message, taker.told) == ("57P01", "database configuration changed", False)
    await server.answer()
    (await opening).leave("done")


@pytest.mark.parametrize("verb", ["kill", "shut"])
async def test_the_end_of_the_pool(server: Server, verb: str) -> None:
    there, opening = await opened(server), apply(server.pool)
    await server.settle()
    waiting = apply(server.pool)
    await server.settle()
    getattr(server.pool, verb)(ShuttingDown())
    for task in (opening, waiting):
        with pytest.raises(ShuttingDown):
            await task
    assert there.state is BackendState.CLOSED
    await server.pool.close(ShuttingDown())
    assert is_clean(server.pool)
    assert not server.logins


async def test_a_smaller_pool_keeps_them(server: Server) -> None:
    walsenders = [await opened(server) for _ in range(2)]
    pool, limits = server.pool, server.pool.limits
    pool.reconfigure(pool.target, type(limits)(size=1), host=pool.host, kept=True)
    assert [walsender.state for walsender in walsenders] == [BackendState.OPEN] * 2
    await asyncio.wait_for(pool.wait_closed(), 1)
    waiting = apply(pool)
    for walsender in walsenders:
        await server.settle()
        assert not server.logins
        walsender.leave("done")
    await server.answer()
    (await waiting).leave("done")


async def test_another_server(server: Server) -> None:
    walsender, pool = await opened(server), server.pool
    elsewhere = type(pool.target)(host="127.0.0.2", port=5432, dbname="shop", user="app")
    pool.reconfigure(elsewhere, pool.limits, host=pool.host, kept=True)
    assert walsender.state is BackendState.CLOSED


async def test_lifetimes_do_not_end_them(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=2, lifetime=0.01, idle_timeout=0.01)
    walsender = await opened(server)
    await asyncio.sleep(0.03)
    server.pool.maintain()
    assert walsender.state is BackendState.OPEN
    walsender.leave("done")


# -- the end of one


@pytest.mark.parametrize(
    ("said", "farewell"),
    [
        (b"", TERMINATE_MESSAGE),
        (b"d\0\0\0\5x", TERMINATE_MESSAGE),
        (b"d\0\0\0\5", b""),
        (b"d\0", b""),
        (TERMINATE_MESSAGE, b""),
    ],
)
async def test_terminate_goes_between_messages_only(server: Server, said: bytes, farewell: bytes) -> None:
    walsender = await opened(server)
    walsender.begin(NoteTaker(server.pool))
    if said:
        walsender.send(said)
    server.transports[0].take()
    walsender.leave("done")
    assert server.transports[0].take() == farewell
    assert server.transports[0].closing


@pytest.mark.parametrize(
    ("heard", "told"),
    [(b"", False), (b"d\0\0\0\5x", False), (b"d\0\0\0\5", True), (b"d", True), (b"E\0\0\0\5\0", True)],
)
async def test_a_loss_is_told_between_messages_only(server: Server, heard: bytes, told: bool) -> None:
    walsender, taker = await opened(server), NoteTaker(server.pool)
    walsender.begin(taker)
    if heard:
        walsender.data_received(heard)
    walsender.connection_lost(None)
    assert taker.lost is not None
    assert (taker.lost.sqlstate, taker.told) == ("08006", told)
    assert is_clean(server.pool)


async def test_a_postgres_that_does_not_take_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk_gateway.pool.walsender._LINGER", 0.01)
    walsender = await opened(server)
    walsender.leave("done")
    (transport,) = server.transports
    assert not transport.aborted
    await until(lambda: transport.aborted)
