"""Sessions that wait for a backend: they get one in their turn, or are refused, and go on."""

from __future__ import annotations

import pytest

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.session_pair import PairedClient, SessionPair, pieces
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import COPY_DONE_MESSAGE, TERMINATE_MESSAGE, bind, copy_data, parse, query
from pgtrunk_gateway.errors import QueryWaitTimeout, ShuttingDown
from pgtrunk_gateway.session.state import State

ONE = ["RowDescription ?column?:23", "DataRow 1", "CommandComplete SELECT 1", "ReadyForQuery I"]
TIMEOUT = "ErrorResponse ERROR 53300 no backend became free in time"
CANCELED = "ErrorResponse ERROR 57014 canceling statement due to user request"


def too_long() -> QueryWaitTimeout:
    return QueryWaitTimeout("no backend became free in time", severity="ERROR")


@pytest.fixture
async def pair() -> SessionPair:
    """Without a backend."""
    return SessionPair(backends=0)


def waiting(pair: SessionPair, data: bytes) -> PairedClient:
    client = pair.connect()
    assert client.send(data) == []
    assert client.session.state is State.WAITING
    assert client.session in pair.pool.waiting
    return client


async def test_a_query_waits_and_is_answered(pair: SessionPair) -> None:
    client = waiting(pair, query(b"select 1"))
    pair.open_backend()
    pair.pump()
    assert client.read() == ONE
    pair.check_idle()


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_what_comes_while_it_waits_is_answered_after_it(pair: SessionPair, size: int) -> None:
    pair.split = pieces(size)
    client = waiting(pair, query(b"select 1") + once(b"select 1") + SYNC + query(b"select 1"))
    client.send(query(b"select 1"))
    pair.open_backend()
    pair.pump()
    assert client.read() == [*ONE, "ParseComplete", "BindComplete", *ONE, *ONE, *ONE]
    pair.check_idle()


async def test_one_backend_serves_all_in_their_order(pair: SessionPair) -> None:
    clients = [waiting(pair, query(b"insert into t values (%d)" % number)) for number in range(5)]
    pair.open_backend()
    pair.pump()
    assert [client.read()[0] for client in clients] == ["CommandComplete INSERT 0 1"] * 5
    assert pair.store.tables["t"] == [0, 1, 2, 3, 4]


# -- refused ---------------------------------------------------------------------------------------------------------


async def test_a_query_that_waited_too_long_fails_and_the_next_is_served(pair: SessionPair) -> None:
    client = waiting(pair, query(b"select 1"))
    client.session.refuse(too_long())
    assert client.read() == [TIMEOUT, "ReadyForQuery I"]
    assert client.session.state is State.IDLE
    assert client.session not in pair.pool.waiting
    pair.open_backend()
    assert client.send(query(b"select 1")) == ONE


async def test_a_batch_that_waited_too_long_is_skipped_to_its_sync(pair: SessionPair) -> None:
    client = waiting(pair, once(b"insert into t values (1)"))
    client.session.refuse(too_long())
    assert client.read() == [TIMEOUT]
    pair.open_backend()
    assert client.send(once(b"insert into t values (2)") + query(b"insert into t values (3)")) == []
    assert client.send(SYNC + query(b"select 1")) == ["ReadyForQuery I", *ONE]
    assert pair.store.tables == {}


async def test_a_whole_batch_that_waited_too_long_ends_at_once(pair: SessionPair) -> None:
    client = waiting(pair, parse(b"s", b"select 1") + run(b"s") + SYNC)
    client.session.refuse(too_long())
    assert client.read() == [TIMEOUT, "ReadyForQuery I"]
    # What was refused has not been parsed either.
    pair.open_backend()
    assert client.send(run(b"s") + SYNC)[0] == 'ErrorResponse ERROR 26000 prepared statement "s" does not exist'


async def test_only_the_first_of_several_is_refused(pair: SessionPair) -> None:
    client = waiting(pair, query(b"select 1") + query(b"select 1") + once(b"select 1") + SYNC)
    client.session.refuse(too_long())
    assert client.read() == [TIMEOUT, "ReadyForQuery I"]
    assert client.session.state is State.WAITING
    client.session.refuse(too_long())
    assert client.read() == [TIMEOUT, "ReadyForQuery I"]
    pair.open_backend()
    pair.pump()
    assert client.read() == ["ParseComplete", "BindComplete", *ONE]


async def test_what_came_later_waits_anew_after_a_refusal(pair: SessionPair) -> None:
    client = waiting(pair, query(b"select 1"))
    client.send(query(b"select 1") + TERMINATE_MESSAGE)
    client.session.refuse(too_long())
    assert client.read() == [TIMEOUT, "ReadyForQuery I"]
    assert client.session.state is State.WAITING
    pair.open_backend()
    pair.pump()
    assert client.session.state.name == "CLOSED"
    pair.check_idle()


@pytest.mark.parametrize("whole", [query(b"select '" + bytes(100_000) + b"'"), bind(b"", b"", [bytes(100_000)]) + SYNC])
async def test_the_rest_of_a_large_message_that_was_refused_goes_nowhere(pair: SessionPair, whole: bytes) -> None:
    client = waiting(pair, whole[:20_000])
    client.session.refuse(too_long())
    client.feed(whole[20_000:70_000])
    link = pair.open_backend()
    client.feed(whole[70_000:])
    assert client.send(query(b"select 1")) == [TIMEOUT, "ReadyForQuery I", *ONE]
    assert link.model.received == ["Q"]


async def test_a_cancel_ends_the_waiting(pair: SessionPair) -> None:
    client = waiting(pair, query(b"select 1"))
    client.session.cancel()
    assert client.read() == [CANCELED, "ReadyForQuery I"]
    client.session.cancel()
    assert client.read() == []
    assert client.session.state is State.IDLE


async def test_a_refusal_that_is_fatal_ends_the_session(pair: SessionPair) -> None:
    client = waiting(pair, query(b"select 1"))
    client.session.refuse(ShuttingDown())
    assert client.read() == ["ErrorResponse FATAL 57P01 pooler is shutting down"]
    assert client.session.state is State.CLOSED
    assert not pair.pool.waiting
    assert pair.context.admitted == 0


async def test_a_refusal_that_comes_too_late_changes_nothing(pair: SessionPair) -> None:
    client = waiting(pair, query(b"select 1"))
    pair.open_backend()
    client.session.refuse(too_long())
    pair.pump()
    assert client.read() == ONE


# -- gone ------------------------------------------------------------------------------------------------------------


async def test_who_leaves_the_queue_is_offered_nothing(pair: SessionPair) -> None:
    gone, next_one = waiting(pair, query(b"insert into t values (1)")), waiting(pair, query(b"select 1"))
    gone.vanish()
    assert list(pair.pool.waiting) == [next_one.session]
    link = pair.open_backend()
    assert not gone.session.offer(link.backend)
    pair.pump()
    assert next_one.read() == ONE
    assert pair.store.tables == {}
    assert pair.context.admitted == 1


# -- what needs no backend -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "late",
    [copy_data(b"1\n") + COPY_DONE_MESSAGE, FLUSH, copy_data(bytes(100_000)), encode(b"f", b"no\0")],
    ids=["copy data", "flush", "much copy data", "copy fail"],
)
async def test_what_means_nothing_outside_a_batch_waits_for_nobody(pair: SessionPair, late: bytes) -> None:
    client = pair.connect()
    for size in (1000, 7, len(late)):
        pair.split = pieces(size)
        assert client.send(late) == []
        assert client.session.state is State.IDLE
    client.send(late + query(b"select 1"))
    assert client.session.state is State.WAITING
    link = pair.open_backend()
    pair.pump()
    assert client.read() == ONE
    assert link.model.received == ["Q"]


async def test_who_leaves_waits_for_nobody(pair: SessionPair) -> None:
    client = pair.connect()
    client.send(FLUSH + TERMINATE_MESSAGE + query(b"select 1"))
    assert client.session.state is State.CLOSED
    assert client.transport.closing
