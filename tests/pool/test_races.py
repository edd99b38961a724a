"""What can happen to a pool in the middle of something else."""

from __future__ import annotations

import pytest

from helpers.pools import NoteTaker, Server
from helpers.waiting import until
from pgtrunk.wire import backend as server_messages
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.errors import BackendUnavailable, ShuttingDown
from pgtrunk_gateway.pool.backend import Backend, BackendState
from pgtrunk_gateway.session import owed


class Quitter(NoteTaker):
    """Takes a backend only to find that it has nothing to do with it."""

    def offer(self, backend: Backend) -> bool:
        super().offer(backend)
        self.give_back()
        return True


class Joiner(NoteTaker):
    """Has another session ask for a backend while it gets one itself."""

    def offer(self, backend: Backend) -> bool:
        self.other = NoteTaker(self.pool)
        assert not self.other.take()
        self.other.wait()
        return super().offer(backend)


async def test_a_thousand_who_need_nothing_after_all_do_not_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    (backend,) = await server.open()
    holder, last = NoteTaker(server.pool), NoteTaker(server.pool)
    assert holder.take()
    quitters = [Quitter(server.pool) for _ in range(1000)]
    for waiter in (*quitters, last):
        waiter.wait()
    holder.give_back()
    await until(lambda: last.backend is not None)
    assert [quitter.offers for quitter in quitters] == [1] * 1000
    last.give_back()
    assert server.pool.idle == [backend]
    await server.pool.close(ShuttingDown())


async def test_who_joins_while_a_backend_is_handed_over_gets_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    await server.open()
    holder, joiner = NoteTaker(server.pool), Joiner(server.pool)
    assert holder.take()
    joiner.wait()
    holder.give_back()
    assert joiner.backend is not None
    assert joiner.other.backend is None
    joiner.give_back()
    assert joiner.other.backend is not None
    await server.pool.close(ShuttingDown())


@pytest.mark.parametrize("end", ["lost", "pool closed"])
async def test_a_backend_that_ends_between_two_sessions_goes_to_nobody(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    server = Server(monkeypatch, size=1)
    (backend,) = await server.open()
    holder, quitter, last = NoteTaker(server.pool), Quitter(server.pool), NoteTaker(server.pool)
    assert holder.take()
    quitter.wait()
    last.wait()
    holder.give_back()
    assert last.backend is None
    if end == "lost":
        backend.connection_lost(ConnectionResetError("gone"))
        await server.answer()
        assert last.backend is not None
        assert last.backend is not backend
    await server.pool.close(ShuttingDown())
    assert backend.state is BackendState.CLOSED
    assert not server.pool.idle


async def test_connections_that_fail_together_are_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=10, retry=1000)
    takers = [NoteTaker(server.pool) for _ in range(10)]
    for taker in takers:
        taker.wait()
    await server.answer(BackendUnavailable("connection refused"))
    assert server.pool.counters.failed == 10
    assert server.pool.host.backoff.failures == 1
    # One tries for all of them, and they follow when it has succeeded.
    await until(lambda: server.logins)
    assert len(server.logins) == 1
    await server.answer(BackendUnavailable("connection refused"))
    assert server.pool.host.backoff.failures == 2
    await until(lambda: server.logins)
    await server.answer()
    assert len(server.logins) == 9
    await server.answer()
    assert all(taker.backend is not None for taker in takers)
    await server.pool.close(ShuttingDown())


async def test_a_success_ends_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=2, retry=0.01)
    first, second = NoteTaker(server.pool), NoteTaker(server.pool)
    first.wait()
    await server.answer(BackendUnavailable("connection refused"))
    await until(lambda: server.logins)
    await server.answer()
    assert first.backend is not None
    second.wait()
    assert server.pool.connecting == 1
    await server.answer()
    assert second.backend is not None
    await server.pool.close(ShuttingDown())


async def test_what_comes_behind_a_login_is_read_before_anybody_gets_the_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(monkeypatch, size=1)
    server.rest = server_messages.parameter_status("client_encoding", "LATIN1")
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    assert taker.backend is not None
    assert taker.backend.profile[0] == "LATIN1"
    assert taker.received == []
    await server.pool.close(ShuttingDown())


async def test_a_server_that_says_goodbye_behind_its_login_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    server.rest = server_messages.error("57P01", "terminating connection", severity="FATAL")
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    assert taker.backend is None
    assert server.transports[0].closing
    server.rest = b""
    await server.answer()
    assert taker.backend is not None
    await server.pool.close(ShuttingDown())


# -- backends that nobody holds --------------------------------------------------------------------------------------


async def test_an_idle_backend_that_is_told_to_go_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between Postgres's last words and the end of the connection nobody shall get it."""
    server = Server(monkeypatch)
    (backend,) = await server.open()
    goodbye = server_messages.error("57P01", "terminating connection due to administrator command", severity="FATAL")
    backend.data_received(goodbye[:9])
    assert server.pool.idle == [backend]
    backend.data_received(goodbye[9:])
    assert server.pool.idle == []
    assert not NoteTaker(server.pool).take()
    backend.connection_lost(None)
    assert server.pool.counters.closed == 1
    await server.pool.close(ShuttingDown())


@pytest.mark.parametrize(
    "stray",
    [server_messages.ready(), server_messages.command_complete("SELECT 1"), encode(b"1"), encode(b"G", b"\0\0\0")],
)
async def test_an_idle_backend_that_answers_what_nobody_asked_is_closed(
    monkeypatch: pytest.MonkeyPatch, stray: bytes
) -> None:
    server = Server(monkeypatch)
    (backend,) = await server.open()
    backend.data_received(stray)
    assert backend.state is BackendState.CLOSED
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_notices_and_settings_may_come_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    (backend,) = await server.open()
    backend.data_received(server_messages.notice("00000", "hello") + encode(b"A", b"\0\0\0\1a\0b\0"))
    backend.data_received(server_messages.parameter_status("TimeZone", "Asia/Tokyo"))
    assert server.pool.idle == [backend]
    assert backend.profile[2] == "Asia/Tokyo"
    await server.pool.close(ShuttingDown())


async def test_a_backend_out_of_step_is_closed_when_its_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    (backend,) = await server.open()
    taker = NoteTaker(server.pool)
    assert taker.take()
    backend.retire("server answers cannot be told apart")
    assert not server.transports[0].closing
    taker.give_back()
    assert backend.state is BackendState.CLOSED
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_one_that_falls_out_of_step_while_it_recovers_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    (backend,) = await server.open()
    taker = NoteTaker(server.pool)
    assert taker.take()
    backend.replies.push(owed.QUERY)
    backend.recover(open_batch=False, timeout=5)
    backend.data_received(server_messages.ready() * 2 + server_messages.ready())
    assert backend.state is BackendState.CLOSED
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_a_backend_that_is_dropped_hears_no_terminate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its octets could complete the message that its session left half sent."""
    server = Server(monkeypatch)
    (backend,) = await server.open()
    taker = NoteTaker(server.pool)
    assert taker.take()
    backend.drop("client left in the middle of a message")
    assert server.transports[0].aborted
    assert server.transports[0].take() == b""
    assert taker.lost is None
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())
