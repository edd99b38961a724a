"""What the console does to a pool: PAUSE, RESUME, RECONNECT, KILL, and a reload."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from helpers.pools import PARAMETERS, NoteTaker, Server, answer, asked
from helpers.transports import FakeTransport
from helpers.waiting import until
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.pool.backend import BackendState

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.pool import Pool


async def lease(server: Server) -> tuple[NoteTaker, Backend]:
    """A session that holds a backend."""
    holder = NoteTaker(server.pool)
    if not holder.take():
        holder.wait()
        await server.answer()
    assert holder.backend is not None
    return holder, holder.backend


def reconfigure(pool: Pool, **limits: Any) -> None:
    pool.reconfigure(pool.target, replace(pool.limits, **limits), host=pool.host, kept=pool.kept)


# -- PAUSE, RESUME -----------------------------------------------------------------------------------------------------


async def test_pause_closes_what_is_idle_and_what_is_leased_at_the_end_of_its_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server(monkeypatch)
    await server.open(3)
    holder, leased = await lease(server)
    server.pool.pause()
    assert (list(server.pool.backends.values()), server.pool.paused) == ([leased], True)
    idle = asyncio.ensure_future(server.pool.wait_idle())
    await server.settle()
    assert not idle.done()
    holder.give_back()
    await server.settle()
    assert idle.done()
    assert not server.pool.backends
    assert caplog.text.count("closing because: pause mode") == 3
    await server.pool.close(ShuttingDown())


async def test_who_asks_a_paused_pool_waits_until_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    await server.open()
    server.pool.pause()
    taker = NoteTaker(server.pool)
    assert not taker.take()
    taker.wait(0.02)
    await asyncio.sleep(0.05)
    assert (server.logins, taker.refused, taker.backend) == ([], None, None)
    assert await server.pool.greet() == PARAMETERS
    server.pool.resume()
    await server.answer()
    assert taker.backend is not None
    await server.pool.close(ShuttingDown())


async def test_the_minimum_is_not_kept_while_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, minimum=2)
    server.pool.maintain()
    await server.answer()
    server.pool.pause()
    await server.settle()
    assert (server.pool.count, server.logins) == (0, [])
    server.pool.resume()
    await server.settle()
    assert len(server.logins) == 2
    await server.pool.close(ShuttingDown())


async def test_connections_under_way_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.settle()
    server.pool.pause()
    await server.pool.wait_idle()
    await server.settle()
    assert (server.logins, server.pool.connecting) == ([], 0)
    await server.pool.close(ShuttingDown())


async def test_a_backend_that_is_checked_when_the_pool_is_paused_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, check_query="select 1", check_delay=0)
    NoteTaker(server.pool).wait()
    await server.answer()
    server.pool.pause()
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_a_session_that_vanishes_does_not_hold_the_pause_up(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    _, backend = await lease(server)
    server.pool.pause()
    backend.replies.status = ord("T")
    backend.recover(open_batch=False, timeout=10)
    assert asked(backend) == "ROLLBACK"
    answer(backend)
    await server.pool.wait_idle()
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_resume_before_the_end_of_a_lease_keeps_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    holder, backend = await lease(server)
    server.pool.pause()
    server.pool.pause()
    server.pool.resume()
    server.pool.resume()
    holder.give_back()
    assert server.pool.idle == [backend]
    await server.pool.close(ShuttingDown())


async def test_a_pool_that_is_not_paused_can_be_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    holder, _ = await lease(server)
    idle = asyncio.ensure_future(server.pool.wait_idle())
    gave_up = asyncio.ensure_future(server.pool.wait_idle())
    await server.settle()
    gave_up.cancel()
    holder.give_back()
    await asyncio.wait_for(idle, 10)
    assert len(server.pool.idle) == 1
    await server.pool.close(ShuttingDown())


# -- RECONNECT ---------------------------------------------------------------------------------------------------------


async def test_reconnect_replaces_all_backends_the_leased_ones_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server(monkeypatch, size=3)
    await server.open(2)
    holder, leased = await lease(server)
    server.pool.reconnect()
    assert list(server.pool.backends.values()) == [leased]
    closed = asyncio.ensure_future(server.pool.wait_closed())
    _, fresh = await lease(server)
    assert fresh is not leased
    assert not closed.done()
    holder.give_back()
    await asyncio.wait_for(closed, 10)
    assert list(server.pool.backends.values()) == [fresh]
    assert caplog.text.count("closing because: database configuration changed") == 2
    await server.pool.close(ShuttingDown())


async def test_a_connection_under_way_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.settle()
    server.pool.reconnect()
    await server.settle()
    assert (len(server.logins), server.begun) == (1, 2)
    await server.answer()
    assert taker.backend is not None
    await server.pool.close(ShuttingDown())


async def test_a_backend_with_one_lease_to_live_is_replaced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, lifetime=0.0, minimum=1)
    server.pool.maintain()
    await server.answer()
    (first,) = server.pool.idle
    server.pool.reconnect()
    await server.answer()
    (second,) = server.pool.idle
    assert first is not second
    await server.pool.close(ShuttingDown())


@pytest.mark.parametrize("fast", [False, True])
async def test_fast_ends_what_a_session_holds_without_need(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    server = Server(monkeypatch)
    idler, _ = await lease(server)
    worker, working = await lease(server)
    working.replies.status = ord("T")
    server.pool.reconnect(fast=fast)
    assert worker.lost is None
    assert (idler.lost.message if idler.lost else None) == ("database configuration changed" if fast else None)
    await server.pool.close(ShuttingDown())


# -- KILL --------------------------------------------------------------------------------------------------------------


async def test_kill_closes_all_and_refuses_all_but_the_pool_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=2)
    await server.open()
    holder, leased = await lease(server)
    _, _ = await lease(server)
    waiter = NoteTaker(server.pool)
    waiter.wait()
    error = ShuttingDown("admin forced disconnect")
    server.pool.kill(error)
    assert (waiter.refused, server.pool.backends, leased.state) == (error, {}, BackendState.CLOSED)
    assert holder.lost is not None
    assert holder.lost.log == "admin forced disconnect"
    _, fresh = await lease(server)
    assert fresh.state is BackendState.OPEN
    await server.pool.close(ShuttingDown())


# -- a reload ----------------------------------------------------------------------------------------------------------


async def test_another_target_retires_the_backends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server(monkeypatch)
    await server.open(1)
    holder, old = await lease(server)
    pool = server.pool
    pool.reconfigure(replace(pool.target, dbname="elsewhere"), pool.limits, host=pool.host, kept=True)
    holder.give_back()
    assert old.state is BackendState.CLOSED
    assert "closing because: database configuration changed" in caplog.text
    await lease(server)
    assert server.targets[-1].dbname == "elsewhere"
    await pool.close(ShuttingDown())


async def test_the_same_target_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    backends = await server.open(2)
    reconfigure(server.pool, size=7)
    assert server.pool.idle == backends
    assert server.pool.limits.size == 7
    await server.pool.close(ShuttingDown())


async def test_a_larger_pool_serves_those_who_wait_already(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    await lease(server)
    waiter = NoteTaker(server.pool)
    waiter.wait()
    reconfigure(server.pool, size=2)
    await server.answer()
    assert waiter.backend is not None
    await server.pool.close(ShuttingDown())


async def test_a_smaller_pool_closes_what_is_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    backends = await server.open(3)
    reconfigure(server.pool, size=1)
    assert server.pool.idle == backends[2:]
    await server.pool.close(ShuttingDown())


async def test_another_number_of_statements_holds_for_backends_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    (backend,) = await server.open()
    reconfigure(server.pool, prepared=3)
    assert backend.replies.prepared.limit == 3
    await server.pool.close(ShuttingDown())


async def test_a_shorter_lifetime_holds_for_backends_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    await server.open()
    reconfigure(server.pool, lifetime=0.01)
    await until(lambda: not server.pool.backends)
    await server.pool.close(ShuttingDown())


async def test_round_robin_can_be_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, round_robin=True)
    backends = (await server.open(3))[::-1]
    seen = []
    for _ in range(6):
        holder, backend = await lease(server)
        seen.append(backend)
        holder.give_back()
    assert [seen.count(backend) for backend in backends] == [2, 2, 2]
    assert seen[:3] == backends
    reconfigure(server.pool, round_robin=False)
    seen = []
    for _ in range(3):
        holder, backend = await lease(server)
        seen.append(backend)
        holder.give_back()
    assert len(set(seen)) == 1
    await server.pool.close(ShuttingDown())


async def test_with_round_robin_the_longest_idle_is_still_the_first_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, round_robin=True, idle_timeout=100.0)
    backends = await server.open(3)
    backends[0].idle_since -= 100
    server.pool.maintain()
    assert set(server.pool.idle) == set(backends[1:])
    await server.pool.close(ShuttingDown())


async def test_without_checks_stale_backends_are_usable_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, check_query="select 1", check_delay=100)
    (backend,) = await server.open()
    backend.idle_since -= 100
    server.pool.maintain()
    assert server.pool.stale == [backend]
    reconfigure(server.pool, check_query=None)
    _, given = await lease(server)
    assert given is backend
    transport = backend.transport
    assert isinstance(transport, FakeTransport)
    assert transport.take() == b""
    await server.pool.close(ShuttingDown())
