"""Queries of the gateway's own: connect_query, server_check_query and server_reset_query."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from helpers.pools import PARAMETERS, NoteTaker, Server, answer, asked
from helpers.transports import FakeTransport
from helpers.waiting import until
from pgtrunk.wire import backend as server_messages
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.pool.backend import Backend, BackendState

ALWAYS = {"check_query": "select 1", "check_delay": 0.0}


def newest(server: Server) -> Backend:
    return list(server.pool.backends.values())[-1]


async def make_stale(server: Server, count: int = 1) -> list[Backend]:
    backends = await server.open(count)
    for backend in backends:
        backend.idle_since -= server.pool.limits.check_delay
    server.pool.maintain()
    assert (server.pool.idle, server.pool.stale) == ([], backends)
    return backends


# -- connect_query -----------------------------------------------------------------------------------------------------


async def test_a_new_backend_runs_connect_query_before_anybody_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, connect_query="set x to 'é'", size=1)
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    backend = newest(server)
    assert (asked(backend), taker.backend, backend.state) == ("set x to 'é'", None, BackendState.STARTING)
    assert (server.pool.counts().login, server.pool.counts().idle) == (1, 0)
    answer(backend)
    assert taker.backend is backend
    assert backend.state is BackendState.OPEN
    await server.pool.close(ShuttingDown())


async def test_what_connect_query_sets_is_what_clients_are_welcomed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, connect_query="set datestyle to german")
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    assert server.pool.welcome is None
    newest(server).data_received(server_messages.parameter_status("DateStyle", "German, DMY"))
    answer(newest(server))
    assert server.pool.welcome == {**PARAMETERS, "DateStyle": "German, DMY"}
    assert "German, DMY" in newest(server).profile
    await server.pool.close(ShuttingDown())


async def test_an_error_in_connect_query_is_logged_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(monkeypatch, connect_query="selec 1")
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    answer(newest(server), error="syntax error")
    assert taker.backend is newest(server)
    assert "connect_query failed: syntax error" in caplog.text
    await server.pool.close(ShuttingDown())


async def test_a_transaction_that_connect_query_opens_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, connect_query="begin")
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    backend = newest(server)
    assert asked(backend) == "begin"
    answer(backend, status=b"T")
    assert (asked(backend), taker.backend) == ("ROLLBACK", None)
    answer(backend)
    assert taker.backend is backend
    await server.pool.close(ShuttingDown())


async def test_a_connect_query_without_end_closes_the_backend(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server(monkeypatch, connect_query="select pg_sleep(1e9)", connect_timeout=0.02, size=1)
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    await until(lambda: server.logins)
    assert "closing because: connect_query: no answer within 0.02 s" in caplog.text
    assert server.transports[0].aborted
    await server.pool.close(ShuttingDown())


# -- server_check_query ------------------------------------------------------------------------------------------------


async def test_a_stale_backend_is_checked_and_then_given(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, check_query="select 1", check_delay=100.0)
    (backend,) = await make_stale(server)
    assert (server.pool.counts().used, server.pool.counts().idle) == (1, 0)
    taker = NoteTaker(server.pool)
    assert not taker.take()
    taker.wait()
    assert (asked(backend), taker.backend) == ("select 1", None)
    assert (server.pool.counts().tested, server.pool.counts().used) == (1, 0)
    answer(backend)
    assert taker.backend is backend
    assert server.begun == 1
    taker.give_back()
    assert server.pool.idle == [backend]
    await server.pool.close(ShuttingDown())


async def test_the_timer_makes_it_stale_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, check_query="", check_delay=0.02)
    (backend,) = await server.open()
    await until(lambda: server.pool.stale == [backend])
    NoteTaker(server.pool).wait()
    transport = backend.transport
    assert isinstance(transport, FakeTransport)
    assert transport.take() == b"Q\0\0\0\5\0"
    backend.data_received(b"I\0\0\0\4" + server_messages.ready())
    assert backend.holder is not None
    await server.pool.close(ShuttingDown())


@pytest.mark.parametrize("end", ["error", "fatal", "lost"])
async def test_one_that_fails_its_check_is_closed_and_another_is_opened(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    server = Server(monkeypatch, check_query="select 1", check_delay=100.0)
    (backend,) = await make_stale(server)
    taker = NoteTaker(server.pool)
    taker.wait()
    if end == "error":
        answer(backend, error="read-only")
    elif end == "fatal":
        backend.data_received(server_messages.error("57P01", "terminating", severity="FATAL"))
    else:
        backend.connection_lost(None)
    assert backend.state is BackendState.CLOSED
    await server.answer()
    assert taker.backend is newest(server)
    assert taker.backend is not backend
    await server.pool.close(ShuttingDown())


async def test_one_that_does_not_answer_its_check_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server(monkeypatch, check_query="select 1", check_delay=100.0)
    await make_stale(server)
    server.pool.limits = type(server.pool.limits)(check_query="select 1", check_delay=100.0, connect_timeout=0.01)
    taker = NoteTaker(server.pool)
    taker.wait()
    await until(lambda: server.logins)
    assert "closing because: server_check_query: no answer within 0.01 s" in caplog.text
    await server.answer()
    assert taker.backend is not None
    await server.pool.close(ShuttingDown())


async def test_without_a_delay_each_lease_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1, **ALWAYS)
    first, second, third = NoteTaker(server.pool), NoteTaker(server.pool), NoteTaker(server.pool)
    for taker in (first, second):
        taker.wait()
    await server.answer()
    backend = newest(server)
    assert asked(backend) == "select 1"
    answer(backend)
    assert first.backend is backend
    first.give_back()
    assert (asked(backend), second.backend) == ("select 1", None)
    answer(backend)
    assert second.backend is backend
    second.give_back()
    assert (server.pool.idle, server.pool.stale, asked(backend)) == ([], [backend], "")
    assert not third.take()
    third.wait()
    assert asked(backend) == "select 1"
    await server.pool.close(ShuttingDown())


async def test_who_leaves_during_the_check_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1, **ALWAYS)
    (taker,) = [NoteTaker(server.pool)]
    taker.wait()
    await server.answer()
    server.pool.leave(taker)
    answer(newest(server))
    assert taker.offers == 0
    assert server.pool.stale == [newest(server)]
    await server.pool.close(ShuttingDown())


# -- server_reset_query ------------------------------------------------------------------------------------------------


async def leased(server: Server) -> tuple[NoteTaker, Backend]:
    await server.open()
    holder = NoteTaker(server.pool)
    assert holder.take()
    backend, holder.backend = holder.backend, None
    assert backend is not None
    return holder, backend


async def test_a_backend_is_reset_before_others_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    _, backend = await leased(server)
    taker = NoteTaker(server.pool)
    taker.wait()
    backend.reset("DISCARD ALL", 10)
    assert (asked(backend), taker.backend, backend.state) == ("DISCARD ALL", None, BackendState.RESETTING)
    assert server.pool.counts().tested == 1
    backend.data_received(server_messages.parameter_status("client_encoding", "LATIN1"))
    answer(backend)
    assert taker.backend is backend
    assert "LATIN1" in backend.profile
    assert not taker.received
    await server.pool.close(ShuttingDown())


@pytest.mark.parametrize(("timeout", "error"), [(0.01, ""), (10, "out of memory")])
async def test_one_that_cannot_be_reset_is_closed(monkeypatch: pytest.MonkeyPatch, timeout: float, error: str) -> None:
    server = Server(monkeypatch, size=1)
    _, backend = await leased(server)
    backend.reset("DISCARD ALL", timeout)
    if error:
        answer(backend, error=error)
    await until(lambda: backend.state is BackendState.CLOSED)
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_a_pool_that_is_closed_ends_errands(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1, connect_query="select 1", connect_timeout=0.02)
    NoteTaker(server.pool).wait()
    await server.answer()
    await server.pool.close(ShuttingDown())
    assert server.transports[0].aborted
    newest_ids: list[Any] = list(server.pool.backends)
    assert newest_ids == []
