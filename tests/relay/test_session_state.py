"""What becomes of sessions that keep their backend, by their ends, by reloads, and by session_state."""

from __future__ import annotations

import pytest

from helpers.conversations import SYNC, run
from helpers.lasting import KINDS, NOTIFICATION, NOTIFIED, PINS, pinned, shown, switch
from helpers.session_pair import SessionPair
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, parse, query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.sql.traces import Pin
from pgtrunk_gateway.session.state import State

TRANSACTION, SESSION = Terms(), Terms(pool_mode="session", reset_query="DISCARD ALL", tracked=False)


# -- the end -----------------------------------------------------------------------------------------------------------

EVERYTHING = b"; ".join(pins for pins, _ in PINS.values()) + b"; set lock_timeout = '5s'; set timezone = 'Asia/Tokyo'"


@pytest.mark.parametrize("left", [None, b"begin", b"begin; select 1/0", b"select pg_sleep(60)"])
@pytest.mark.parametrize("politely", [True, False])
async def test_what_a_session_leaves_is_undone(left: bytes | None, politely: bool) -> None:
    pair = SessionPair(backends=1)
    client, other = pinned(pair, EVERYTHING), pair.connect()
    assert client.session.pins.words == ", ".join(PINS)
    if left:
        client.send(query(left))
    if politely:
        client.send(TERMINATE_MESSAGE)
    else:
        client.vanish()
    pair.pump()
    pair.finish_cancels()
    pair.wake()
    pair.check_idle()
    assert (shown(other), shown(other, "timezone")) == ("0", "UTC")
    assert client.session.pins == Pin.NONE


@pytest.mark.parametrize("text", [text for text, _ in PINS.values()])
@pytest.mark.parametrize("answered", [True, False])
async def test_a_client_that_leaves_before_it_is_known(text: bytes, answered: bool) -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    client.feed(query(text))
    if answered:
        pair.carry(pair.links[0])
        assert client.session.state is State.HOLDING
    client.vanish()
    pair.pump()
    pair.finish_cancels()
    pair.check_idle()
    other.send(query(b"begin"))
    pair.answer(pair.links[0], NOTIFICATION)
    pair.pump()
    assert NOTIFIED not in other.read()


async def test_a_backend_that_is_lost_ends_a_pinned_session_as_any() -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair)
    pair.links[0].backend.connection_lost(ConnectionResetError())
    assert client.read()[-1].startswith("ErrorResponse FATAL 08006")
    assert client.session.state is State.CLOSED


async def test_a_retired_backend_stays_with_a_pinned_session() -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair)
    pair.links[0].backend.retire("database configuration changed")
    assert client.send(query(b"select 1"))[1] == "DataRow 1"
    client.send(query(b"unlisten *"))
    assert pair.pool.gone == ["database configuration changed"]
    assert client.session.state is State.IDLE


async def test_a_stopping_gateway_waits_for_pinned_sessions() -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair)
    pair.context.closing_idle = True
    client.session.end_if_idle()
    assert client.send(query(b"select 1"))[1] == "DataRow 1"
    assert client.send(query(b"unlisten *"))[-1].startswith("ErrorResponse FATAL 57P01")
    pair.check_idle()


# -- what the configuration says ---------------------------------------------------------------------------------------


async def test_a_reload_does_not_take_the_backend_of_a_pinned_session() -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair)
    for terms in (Terms(client_idle_timeout=60), TRANSACTION, Terms(session_state="error"), TRANSACTION):
        switch(client, terms)
        assert client.session.state is State.LEASED
        assert client.send(query(b"select 1"))[1] == "DataRow 1"
    client.send(query(b"unlisten *"))
    pair.check_idle()


@pytest.mark.parametrize("state", ["error", "ignore"])
async def test_who_is_pinned_is_freed_under_another_session_state_too(state: str) -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair)
    switch(client, Terms(session_state=state))  # type: ignore[arg-type]
    client.send(query(b"unlisten *"))
    assert client.session.state is State.IDLE
    pair.check_idle()


async def test_session_mode_and_back() -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair)
    switch(client, SESSION)
    assert client.send(query(b"select 1"))[1] == "DataRow 1"
    switch(client, TRANSACTION)
    assert client.session.state.name == "LEASED"
    client.send(query(b"unlisten *"))
    assert client.session.state is State.IDLE
    pair.check_idle()


@pytest.mark.parametrize("inside", [True, False])
async def test_a_reload_between_the_text_and_the_answer(inside: bool) -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    if inside:
        client.send(query(b"begin"))
        client.send(query(b"listen news"))
    else:
        client.feed(query(b"listen news"))
        pair.carry(pair.links[0])
    for terms in (Terms(client_idle_timeout=60), TRANSACTION):
        switch(client, terms)
    client.send(query(b"commit"))
    assert client.session.pins == Pin.LISTEN
    assert client.session.state is State.LEASED


async def test_pinned_in_statement_mode() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="statement"))
    client = pinned(pair)
    pair.answer(pair.links[0], NOTIFICATION)
    pair.pump()
    assert client.read() == [NOTIFIED]
    assert client.send(query(b"select 1"))[1] == "DataRow 1"
    client.send(query(b"unlisten *"))
    assert client.session.state is State.IDLE


async def test_pinned_where_backends_are_reset_after_each_transaction() -> None:
    pair = SessionPair(backends=1, terms=Terms(reset_query="DISCARD ALL"))
    client = pinned(pair)
    client.send(query(b"select 1"))
    assert client.session.pins == Pin.LISTEN
    client.send(query(b"unlisten *"))
    pair.pump()
    pair.check_idle()


# -- error -------------------------------------------------------------------------------------------------------------

REFUSED = "ErrorResponse ERROR 0A000 {}: this needs a server connection of the session's own"
ERROR = Terms(session_state="error")


@pytest.mark.parametrize("words", PINS)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_carried_is_refused(words: str, kind: str) -> None:
    pair = SessionPair(backends=1, terms=ERROR)
    client = pair.connect()
    assert client.send(KINDS[kind](PINS[words][0])) == [REFUSED.format(words), "ReadyForQuery I"]
    assert client.session.state is State.IDLE
    pair.check_idle()
    client.send(query(b"set lock_timeout = '5s'"))
    assert shown(client) == "5s"


async def test_load_and_unknown_settings_are_refused_too() -> None:
    pair = SessionPair(backends=1, terms=ERROR)
    client = pair.connect()
    assert client.send(query(b"load 'auto_explain'"))[0] == REFUSED.format("LOAD")
    assert client.send(query(b"set a.b.c = 1"))[0] == REFUSED.format("settings that cannot be told")
    pair.check_idle()


async def test_what_is_not_seen_in_time_ends_the_session() -> None:
    pair = SessionPair(backends=1, terms=ERROR)
    client, other = pair.connect(), pair.connect()
    long = query(b"select '" + b"x" * 100_000 + b"'; listen news")
    for at in range(0, len(long), 9000):
        client.feed(long[at : at + 9000])
    pair.pump()
    last = client.read()[-1]
    assert last == REFUSED.format("LISTEN").replace("ERROR", "FATAL")
    assert client.session.state is State.CLOSED
    pair.pump()
    pair.check_idle()
    assert shown(other) == "0"


async def test_a_statement_from_before_a_reload_ends_it_too() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(parse(b"l", b"select pg_advisory_lock(7)") + SYNC)
    switch(client, ERROR)
    assert client.send(run(b"l") + SYNC)[-1].startswith("ErrorResponse FATAL 0A000 advisory lock: ")
    pair.pump()
    pair.check_idle()


# -- ignore ------------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_carried_is_let_go() -> None:
    pair = SessionPair(backends=1, terms=Terms(session_state="ignore"))
    pair.pool.forgives = True
    client = pair.connect()
    for text, _ in PINS.values():
        assert not any(line.startswith("Notice") for line in client.send(query(text)))
        assert client.session.state is State.IDLE
    client.send(query(b"set lock_timeout = '5s'; load 'auto_explain'"))
    assert (shown(client), pair.pool.stats.pin_count) == ("5s", 0)
    pair.answer(pair.links[0], NOTIFICATION)
    pair.pump()
    assert client.read() == []
