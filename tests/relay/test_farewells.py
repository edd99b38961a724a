"""A backend whose last word is read together with the last answer: whose it is, depends on who keeps the backend."""

from __future__ import annotations

import pytest

from helpers.session_pair import SessionPair
from pgtrunk.wire import backend as server
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

FAREWELL = server.error("57P01", "terminating connection due to administrator command", severity="FATAL")
HEARD = "ErrorResponse FATAL 57P01 terminating connection due to administrator command"


def answered(pair: SessionPair, sql: bytes, behind: bytes) -> list[str]:
    """What the client gets of an answer, and of what the server says ``behind`` it, in one chunk."""
    client = pair.clients[0] if pair.clients else pair.connect()
    client.feed(query(sql))
    link = next(link for link in pair.links if link.backend.holder is client.session)
    link.backend.data_received(link.model.feed(link.transport.take()) + behind)
    return client.read()


async def test_who_has_his_answer_goes_on_with_another_backend() -> None:
    pair = SessionPair(backends=2)
    said = answered(pair, b"select 1", FAREWELL)
    assert said[-1] == "ReadyForQuery I"
    assert HEARD not in said
    (client,) = pair.clients
    assert (client.session.state, pair.pool.gone) == (State.IDLE, [HEARD.removeprefix("ErrorResponse FATAL 57P01 ")])
    assert client.send(query(b"select 1"))[-1] == "ReadyForQuery I"


async def test_inside_a_transaction_it_is_heard() -> None:
    pair = SessionPair(backends=2)
    assert answered(pair, b"begin; select 1", FAREWELL)[-1] == HEARD
    next(link for link in pair.links if link.backend.holder).backend.connection_lost(None)
    assert not pair.clients[0].read()
    assert pair.clients[0].session.state is State.CLOSED


async def test_who_keeps_the_backend_hears_it() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", reset_query="DISCARD ALL", tracked=False))
    assert answered(pair, b"select 1", FAREWELL)[-1] == HEARD
    pair.links[0].backend.connection_lost(None)
    assert pair.clients[0].session.state is State.CLOSED


async def test_who_has_asked_for_more_hears_it() -> None:
    """What was sent to the backend may have run, or not."""
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.feed(query(b"select 1"))
    client.feed(query(b"select 1"))
    (link,) = pair.links
    first = link.model.feed(link.transport.take())
    at = first.index(b"Z\0\0\0\5I") + 6
    link.backend.data_received(first[:at] + FAREWELL)
    link.backend.connection_lost(None)
    assert client.read()[-1] == HEARD
    assert client.session.state is State.CLOSED


@pytest.mark.parametrize("at", [1, 5, 40])
async def test_the_next_one_hears_it_where_it_comes_in_parts(at: int) -> None:
    """The beginning of it is behind the answer, and the session that has it holds the backend by then."""
    pair = SessionPair(backends=1)
    answered(pair, b"select 1", FAREWELL[:at])
    (link,) = pair.links
    link.backend.data_received(FAREWELL[at:])
    link.backend.connection_lost(None)
    assert pair.pool.gone == ["terminating connection due to administrator command"]
