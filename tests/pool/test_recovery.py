"""What becomes of a backend whose session vanished: as good as new, or closed."""

from __future__ import annotations

import pytest

from helpers.pools import NoteTaker, Server
from helpers.waiting import until
from pgtrunk.wire import backend as b
from pgtrunk.wire import frontend as f
from pgtrunk.wire.framing import encode, messages
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.pool.backend import Backend, BackendState
from pgtrunk_gateway.session import owed

SELECTED = b.command_complete("SELECT 1") + b.ready()


async def leased(monkeypatch: pytest.MonkeyPatch) -> tuple[Server, Backend]:
    server = Server(monkeypatch, size=1)
    await server.open()
    taker = NoteTaker(server.pool)
    assert taker.take()
    backend = taker.backend
    assert backend is not None
    return server, backend


def kinds(data: bytes) -> str:
    return "".join(chr(kind) for kind, _, _ in messages(data))


async def test_idle_in_a_transaction_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server, backend = await leased(monkeypatch)
    backend.replies.push(owed.QUERY)
    backend.data_received(b.command_complete("BEGIN") + b.ready(b"T"))
    assert backend.recover(open_batch=False, timeout=5) is False
    assert server.transports[0].take() == f.query(b"ROLLBACK")
    assert not server.pool.idle
    backend.data_received(b.command_complete("ROLLBACK") + b.ready())
    assert server.pool.idle == [backend]
    assert backend.state is BackendState.OPEN
    await server.pool.close(ShuttingDown())


async def test_a_running_query_is_drained_and_copy_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    server, backend = await leased(monkeypatch)
    backend.replies.push(owed.QUERY)
    assert backend.recover(open_batch=False, timeout=5) is True
    assert kinds(server.transports[0].take()) == "fS"
    backend.data_received(b.error("57014", "canceling statement due to user request") + b.ready())
    assert not server.pool.idle
    backend.data_received(b.ready())
    assert server.pool.idle == [backend]
    await server.pool.close(ShuttingDown())


async def test_an_open_batch_is_made_to_fail_before_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync alone would commit what the client did not."""
    server, backend = await leased(monkeypatch)
    for entry in (owed.PARSE, owed.BIND, owed.EXECUTE):
        backend.replies.push(entry)
    backend.data_received(encode(b"1") + encode(b"2") + b.command_complete("INSERT 0 1"))
    backend.recover(open_batch=True, timeout=5)
    sent = server.transports[0].take()
    assert kinds(sent) == "fPS"
    assert b"the client is gone" in sent
    backend.data_received(b.error("42601", "syntax error") + b.ready())
    assert server.pool.idle == [backend]
    await server.pool.close(ShuttingDown())


async def test_a_failed_transaction_after_a_drained_query_is_rolled_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    server, backend = await leased(monkeypatch)
    backend.replies.push(owed.QUERY)
    backend.recover(open_batch=False, timeout=5)
    server.transports[0].take()
    backend.data_received(b.error("57014", "canceled") + b.ready(b"E") + b.ready(b"E"))
    assert server.transports[0].take() == f.query(b"ROLLBACK")
    backend.data_received(b.command_complete("ROLLBACK") + b.ready())
    assert server.pool.idle == [backend]
    await server.pool.close(ShuttingDown())


async def test_one_that_does_not_recover_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server, backend = await leased(monkeypatch)
    backend.replies.push(owed.QUERY)
    backend.recover(open_batch=False, timeout=0.01)
    await until(lambda: backend.state is BackendState.CLOSED)
    assert server.transports[0].aborted
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_one_whose_rollback_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server, backend = await leased(monkeypatch)
    backend.replies.push(owed.QUERY)
    backend.data_received(b.command_complete("BEGIN") + b.ready(b"T"))
    backend.recover(open_batch=False, timeout=5)
    backend.data_received(b.error("XX000", "no") + b.ready(b"E"))
    assert not server.pool.backends
    assert server.transports[0].aborted
    await server.pool.close(ShuttingDown())


async def test_nobody_gets_it_while_a_cancel_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    server, backend = await leased(monkeypatch)
    waiter = NoteTaker(server.pool)
    waiter.wait()
    backend.replies.push(owed.QUERY)
    backend.cancels = 1
    backend.recover(open_batch=False, timeout=5)
    backend.data_received(SELECTED + b.ready())
    assert waiter.backend is None
    backend.cancel_ended()
    assert waiter.backend is backend
    await server.pool.close(ShuttingDown())


async def test_what_is_left_of_the_last_session_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    server, backend = await leased(monkeypatch)
    waiter = NoteTaker(server.pool)
    waiter.wait()
    backend.replies.push(owed.QUERY)
    backend.recover(open_batch=False, timeout=5)
    backend.data_received(b.data_row([b"secret"]) + SELECTED)
    backend.data_received(b.ready())
    assert waiter.backend is backend
    assert waiter.received == []
    await server.pool.close(ShuttingDown())
