"""While a backend is asked what a session has left: what is held, who leaves, what is cancelled, what fails."""

from __future__ import annotations

import pytest

from helpers.conversations import SYNC
from helpers.lasting import flights, shown, step, switch
from helpers.session_pair import SessionPair
from helpers.waiting import until
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, parse, query
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

SET = query(b"set lock_timeout = '5s'")
SHOW = query(b"show lock_timeout")


# -- while it is asked -------------------------------------------------------------------------------------------------


async def test_what_comes_meanwhile_is_held_and_runs_under_the_sessions_settings() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect(lock_timeout="5s")
    client.send(query(b"set lock_timeout = '9s'"))
    step(pair, client, query(b"reset all"))
    assert client.session.state is State.HOLDING
    client.feed(SHOW)
    client.feed(SHOW)
    assert pair.links[0].model.session.settings["lock_timeout"] == "0"
    pair.pump()
    assert [line for line in client.read() if line.startswith("DataRow")] == ["DataRow 5s"] * 2
    pair.check_idle()


async def test_who_waits_for_the_backend_gets_it_before_what_comes_meanwhile() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    step(pair, client, SET)
    other.feed(SHOW)
    client.feed(SHOW)
    assert other.session.state is State.WAITING
    pair.carry(pair.links[0])
    assert client.session.state.name == "WAITING"
    pair.pump()
    assert (other.read()[1], client.read()[-3]) == ("DataRow 0", "DataRow 5s")


@pytest.mark.parametrize("politely", [True, False])
async def test_a_client_that_leaves_meanwhile_leaves_nothing(politely: bool) -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    client.send(parse(b"mine", b"select 1") + SYNC)
    step(pair, client, SET)
    if politely:
        client.feed(TERMINATE_MESSAGE)
        client.session.eof_received()
        assert client.session._reason == "client close request"
    else:
        client.vanish()
    assert not pair.cancels.under_way
    pair.pump()
    pair.check_idle()
    # The answer came all the same: nothing had to be discarded.
    assert pair.links[0].model.statements
    assert shown(other) == "0"


async def test_a_client_that_leaves_meanwhile_and_no_answer_comes() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    pair.links[0].model.session.deaf = 1
    step(pair, client, SET)
    client.vanish()
    pair.pump()
    assert pair.pool.gone == ["it cannot be told what its last session has left"]


@pytest.mark.parametrize("left", [[query(b"begin"), SET], [query(b"begin"), SET, query(b"select pg_sleep(60)")]])
async def test_a_client_that_leaves_before_it_is_asked(left: list[bytes]) -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    for request in left:
        client.send(request)
    client.vanish()
    pair.pump()
    pair.finish_cancels()
    pair.check_idle()
    assert shown(other) == "0"


async def test_a_client_that_leaves_right_behind_what_it_has_set() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    client.feed(SET)
    client.feed(TERMINATE_MESSAGE)
    pair.pump()
    pair.check_idle()
    assert shown(other) == "0"


async def test_a_reload_meanwhile_and_in_the_transaction() -> None:
    for before in ([SET], [query(b"begin"), SET]):
        pair = SessionPair(backends=1)
        client, other = pair.connect(), pair.connect()
        for request in before:
            step(pair, client, request)
        switch(client, Terms(client_idle_timeout=60))
        switch(client, Terms())
        client.send(query(b"commit"))
        assert (shown(other), shown(client)) == ("0", "5s")
        pair.check_idle()


async def test_a_stopping_gateway_waits_for_the_answer() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    step(pair, client, SET)
    pair.context.closing_idle = True
    client.session.end_if_idle()
    assert client.session.state is State.HOLDING
    pair.pump()
    assert client.read()[-1].startswith("ErrorResponse FATAL 57P01")
    pair.check_idle()


async def test_a_client_that_does_not_read_keeps_no_backend() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    client.feed(SET)
    client.session.pause_writing()
    # What it does not read yet comes no further than the gateway.
    pair.links[0].backend.resume_reading()
    pair.pump()
    assert client.session.state is State.IDLE
    assert shown(other) == "0"
    client.session.resume_writing()
    client.read()
    assert shown(client) == "5s"


async def test_a_backend_that_does_not_tell_is_closed() -> None:
    pair = SessionPair(backends=1, cancel_wait_timeout=0.01)
    client = pair.connect()
    step(pair, client, SET)
    await until(lambda: client.session.state is State.CLOSED)
    assert pair.pool.gone == ["cancel_wait_timeout: it does not tell what its session has left"]
    assert client.read()[-1].startswith("ErrorResponse FATAL 08006")


async def test_one_that_is_not_read_is_not_closed_for_that() -> None:
    pair = SessionPair(backends=1, cancel_wait_timeout=0.01)
    client, second = pair.connect(), pair.connect()
    step(pair, client, SET)
    pair.context.suspended = True
    client.session.suspend()
    before = client.session._deadline
    await until(lambda: client.session._deadline is not before)
    assert client.session.state is State.HOLDING
    pair.context.suspended = False
    client.session.end_suspension()
    pair.pump()
    assert client.session._deadline is None
    assert shown(second) == "0"


# -- cancels -----------------------------------------------------------------------------------------------------------


async def test_a_cancel_meanwhile_finds_what_is_held() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(lock_timeout="5s"), pair.connect()
    step(pair, client, query(b"reset all"))
    client.feed(SHOW + query(b"select pg_sleep(60)"))
    (link,) = pair.links
    assert link.backend.is_setting and not link.backend.runs
    pair.cancels.cancel(link.backend)
    pair.pump()
    assert client.session.backend is link.backend
    assert link.backend.runs
    pair.finish_cancels()
    told = client.read()
    # Its settings too went ahead.
    assert "DataRow 5s" in told
    assert told[-2].startswith("ErrorResponse ERROR 57014")
    pair.check_idle()
    assert shown(other) == "0"


async def test_a_cancel_meanwhile_with_nothing_to_find() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    step(pair, client, SET)
    (link,) = pair.links
    pair.cancels.cancel(link.backend)
    pair.pump()
    # Nobody else gets it before the cancel is over.
    assert client.session.backend is link.backend
    client.feed(query(b"select 1"))
    pair.finish_cancels()
    assert client.read()[-4:-2] == ["RowDescription ?column?:23", "DataRow 1"]
    pair.check_idle()
    assert (shown(other), shown(client)) == ("0", "5s")


async def test_a_cancel_of_what_was_before_ends_first() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.feed(query(b"set lock_timeout = '5s'; select pg_sleep(60)"))
    pair.cancels.cancel(pair.links[0].backend)
    pair.pump()
    assert flights(pair) == "Q"
    pair.finish_cancels()
    assert client.read()[-2].startswith("ErrorResponse ERROR 57014")
    assert shown(client) == "0"


# -- an inquiry that fails ---------------------------------------------------------------------------------------------


async def test_an_inquiry_that_fails_is_made_again_without_the_sessions_timeout() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    (link,) = pair.links
    link.model.session.deaf = 2
    assert client.send(query(b"set statement_timeout = '1ms'")) == ["CommandComplete SET", "ReadyForQuery I"]
    assert flights(pair) == "Q" + "QQQ"
    assert shown(client, "statement_timeout") == "1ms"
    assert shown(other, "statement_timeout") == "0"
    pair.check_idle()


async def test_a_session_of_which_nothing_can_be_told_keeps_its_backend_until_it_can() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    (link,) = pair.links
    link.model.session.deaf = 3
    *_, notice = client.send(SET)
    assert notice.startswith("NoticeResponse NOTICE 00000 this session keeps its server connection")
    assert client.session.pins.words == "settings that cannot be told"
    assert client.session.backend is link.backend
    # It is not asked again for nothing.
    flights(pair)
    pair.pump()
    assert flights(pair) == ""
    other.feed(SHOW)
    assert client.send(query(b"select 1"))[1] == "DataRow 1"
    assert not client.session.pins
    pair.pump()
    assert other.read()[1] == "DataRow 0"
    assert shown(client) == "5s"
    pair.check_idle()


async def test_one_that_need_not_be_told_does_not() -> None:
    pair = SessionPair(backends=1, terms=Terms(session_state="ignore"))
    client, other = pair.connect(), pair.connect()
    pair.links[0].model.session.deaf = 3
    assert client.send(SET) == ["CommandComplete SET", "ReadyForQuery I"]
    pair.pump()
    assert pair.links[0].backend.state is BackendState.OPEN
    pair.check_idle()
    assert shown(other) == "0"
