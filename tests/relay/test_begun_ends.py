"""How a transaction that has begun without a backend ends with its session, what is seen of it, and a reload."""

from __future__ import annotations

import asyncio

import pytest

from helpers.begun import BEGIN, BEGUN, COMMIT, INSERT, SELECT, begun, tags
from helpers.conversations import SYNC, once
from helpers.session_pair import PairedClient, SessionPair
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, bind, query
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

LARGE = query(b"select '" + b"x" * 100_000 + b"'")


@pytest.fixture
async def pair() -> SessionPair:
    return SessionPair(backends=1, lazy_begin=True)


# -- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [query(INSERT), once(INSERT) + SYNC, once(INSERT), query(b"copy t from stdin")])
@pytest.mark.parametrize("leaves", [True, False])
async def test_who_goes_with_the_first_request_under_way_leaves_nothing(
    pair: SessionPair, request_: bytes, leaves: bool
) -> None:
    client = begun(pair)
    client.feed(request_)
    if leaves:
        client.feed(TERMINATE_MESSAGE)
    else:
        client.vanish()
    pair.pump()
    pair.finish_cancels()
    assert pair.store.tables == {}
    pair.check_idle()
    assert not pair.pool.gone


async def test_who_says_all_at_once(pair: SessionPair) -> None:
    client = begun(pair)
    client.send(query(INSERT) + TERMINATE_MESSAGE + COMMIT)
    assert client.session.state is State.CLOSED
    assert pair.store.tables == {}
    pair.check_idle()
    other = begun(pair)
    assert other.send(COMMIT + TERMINATE_MESSAGE + BEGIN) == tags("COMMIT I")
    assert other.session.state.name == "CLOSED"


async def test_who_goes_in_the_middle_of_a_first_request(pair: SessionPair) -> None:
    client = begun(pair)
    client.feed(LARGE[:50_000])
    client.vanish()
    assert pair.pool.gone == ["client left in the middle of a message"]
    assert pair.links[0].backend.state is BackendState.CLOSED


async def test_half_a_message_takes_no_backend(pair: SessionPair) -> None:
    client = begun(pair)
    client.feed(SELECT[:7])
    assert client.session.backend is None
    client.vanish()
    pair.check_idle()


async def test_a_stopping_gateway_ends_it(pair: SessionPair) -> None:
    client = begun(pair)
    pair.context.closing_idle = True
    client.session.end_if_idle()
    assert client.read() == ["ErrorResponse FATAL 57P01 server shutting down"]
    late = pair.connect()
    assert late.send(BEGIN) == [*BEGUN, "ErrorResponse FATAL 57P01 server shutting down"]


async def test_nonsense(pair: SessionPair) -> None:
    for nonsense in (encode(b"y"), encode(b"p", b"x\0")):
        client = begun(pair)
        assert client.send(nonsense)[-1].startswith("ErrorResponse FATAL 08P01 ")
        pair.finish_cancels()
        pair.check_idle()


# -- what it is told, and what is seen of it -------------------------------------------------------------------------


async def test_who_does_not_read_is_not_read(pair: SessionPair) -> None:
    """No backend is there that could be stopped in its place."""
    client = pair.connect()
    client.session.pause_writing()
    client.feed(BEGIN)
    assert client.transport.paused
    client.session.resume_writing()
    assert not client.transport.paused
    client.session.pause_writing()
    client.feed(COMMIT)
    assert client.transport.paused
    client.session.resume_writing()
    assert client.read() == tags("BEGIN T", "COMMIT I")
    assert client.send(SELECT)[-1] == "ReadyForQuery I"
    pair.check_idle()


async def test_octets_are_counted(pair: SessionPair) -> None:
    client = pair.connect()
    received = sum(map(len, (BEGIN, SELECT, COMMIT)))
    client.outbox += [BEGIN, SELECT, COMMIT]
    pair.pump()
    assert (pair.pool.stats.received, pair.pool.stats.sent) == (received, len(client.transport.take()))


async def test_it_is_seen_as_idle(pair: SessionPair) -> None:
    client = pair.connect()
    await asyncio.sleep(0.02)
    assert client.send(BEGIN) == BEGUN
    assert (client.session.word, client.session.waits, client.session.wait) == ("idle", False, 0.0)
    assert client.session.request_time > client.session.connect_time + 0.01


# -- a reload -------------------------------------------------------------------------------------------


def agree(client: PairedClient, terms: Terms) -> None:
    assert client.session.admission is not None
    client.session.admission.terms = terms
    client.session.reconfigure()


async def test_it_is_switched_off_in_the_middle(pair: SessionPair) -> None:
    client, other = begun(pair), begun(pair)
    for each in (client, other):
        agree(each, Terms())
    assert other.send(COMMIT) == tags("COMMIT I")
    assert client.send(query(INSERT)) == tags("INSERT 0 1 T")
    assert client.send(COMMIT) == tags("COMMIT I")
    assert client.send(BEGIN) == BEGUN
    assert client.session.state is State.LEASED
    assert pair.store.tables == {"t": [1]}


async def test_it_is_switched_on_in_the_middle() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(BEGIN)
    agree(client, Terms(lazy_begin=True))
    assert client.send(SELECT)[-1] == "ReadyForQuery T"
    assert client.send(BEGIN)[0].startswith("NoticeResponse WARNING 25001")
    assert client.send(COMMIT) == tags("COMMIT I")
    assert client.send(BEGIN) == BEGUN
    assert client.session.state is State.BEGUN


async def test_another_mode_in_the_middle(pair: SessionPair) -> None:
    client = begun(pair)
    agree(client, Terms(pool_mode="session", tracked=False))
    assert client.send(query(INSERT)) == tags("INSERT 0 1 T")
    assert client.send(COMMIT) == tags("COMMIT I")
    assert client.session.state is State.LEASED
    client.send(TERMINATE_MESSAGE)
    other = begun(pair)
    agree(other, Terms(pool_mode="statement"))
    (told,) = other.send(query(INSERT))
    assert told.startswith("ErrorResponse FATAL 0A000 transaction blocks not allowed")
    pair.pump()
    pair.finish_cancels()
    assert pair.store.tables == {"t": [1]}
    pair.check_idle()


async def test_bind_of_a_statement_that_nobody_has(pair: SessionPair) -> None:
    client = begun(pair)
    assert client.send(bind(b"", b"no") + SYNC)[0] == 'ErrorResponse ERROR 26000 prepared statement "no" does not exist'
    assert client.send(COMMIT) == tags("ROLLBACK I")
    pair.check_idle()
