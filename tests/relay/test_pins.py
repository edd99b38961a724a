"""Sessions that keep their backend for what only it has: from when, until when, and what becomes of it at the end."""

from __future__ import annotations

import pytest

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.lasting import KEEPS, KINDS, NOTIFICATION, NOTIFIED, PINS, pinned, shown
from helpers.session_pair import SessionPair
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, bind, describe_statement, execute, parse, query
from pgtrunk_gateway.session.sql.traces import Pin
from pgtrunk_gateway.session.state import State

# -- from when, until when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", PINS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_keeps_its_backend_until_nothing_is_left(words: str, kind: str) -> None:
    pins, frees = PINS[words]
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    assert client.send(KINDS[kind](pins))[-1] == KEEPS + words
    assert client.session.state.name == "LEASED"
    assert client.session.pins.words == words
    backend = client.session.backend
    other.feed(query(b"select 2"))
    for request in (query(b"select 1"), query(b"begin"), query(b"rollback"), once(b"select 1") + SYNC):
        told = client.send(request)
        assert told[-1].startswith("ReadyForQuery") and not any(line.startswith("Notice") for line in told)
        assert client.session.backend is backend
    assert other.session.state is State.WAITING
    client.send(KINDS[kind](frees))
    assert client.session.state is State.IDLE
    assert not client.session.pins
    assert other.read()[1] == "DataRow 2"
    pair.check_idle()
    assert pair.pool.stats.pin_count == 1


@pytest.mark.parametrize("words", PINS)
async def test_discard_all_frees_all_of_it(words: str) -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair, PINS[words][0])
    client.send(query(b"discard all"))
    assert client.session.state is State.IDLE
    pair.check_idle()


@pytest.mark.parametrize(
    "requests",
    [
        [b"begin", b"listen news", b"rollback"],
        [b"begin; listen news; rollback"],
        [b"listen news; select 1/0"],
        [b"begin", b"create temp table mine (a int) on commit drop", b"commit"],
        [b"create temp table mine (a int); drop table mine"],
        [b"begin", b"declare c cursor with hold for select 1", b"close c", b"commit"],
        [b"select pg_advisory_lock(7); select pg_advisory_unlock(7)"],
        [b"listen"],
    ],
)
async def test_what_is_not_there_any_more_pins_nobody(requests: list[bytes]) -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    for request in requests:
        assert not any(line.startswith("Notice") for line in client.send(query(request)))
    assert client.session.state is State.IDLE
    assert pair.pool.stats.pin_count == 0
    pair.check_idle()


async def test_a_lock_that_somebody_else_has_pins_nobody() -> None:
    pair = SessionPair(backends=2)
    first, second = pinned(pair, b"select pg_try_advisory_lock(7)"), pair.connect()
    assert second.send(query(b"select pg_try_advisory_lock(7)"))[1] == "DataRow f"
    assert second.session.state is State.IDLE
    first.send(query(b"select pg_advisory_unlock(7)"))
    assert second.send(query(b"select pg_try_advisory_lock(7)"))[1] == "DataRow t"
    assert second.session.pins == Pin.LOCK


async def test_one_thing_after_another() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    notices = 0
    for request, pins in (
        (b"listen news", Pin.LISTEN),
        (b"create temp table mine (a int)", Pin.LISTEN | Pin.TEMPORARY),
        (b"unlisten *", Pin.TEMPORARY),
        (b"begin; drop table mine; rollback", Pin.TEMPORARY),
        (b"declare c cursor with hold for select 1; drop table mine", Pin.CURSOR),
        (b"close c", Pin.NONE),
        (b"listen news", Pin.LISTEN),
        (b"unlisten *", Pin.NONE),
    ):
        notices += sum(line.startswith("Notice") for line in client.send(query(request)))
        assert client.session.pins == pins, request
    # When it begins, and no more.
    assert notices == pair.pool.stats.pin_count == 2
    pair.check_idle()


async def test_what_a_statement_does_that_was_prepared_before() -> None:
    pair = SessionPair(backends=2)
    client = pair.connect()
    client.send(parse(b"l", b"select pg_advisory_lock(7)") + SYNC)
    assert client.session.state is State.IDLE
    assert client.send(run(b"l") + SYNC)[-1] == KEEPS + "advisory lock"
    # Its names mean what they meant.
    client.send(parse(b"t", b"select 6") + SYNC)
    assert client.send(run(b"t") + SYNC)[1] == "DataRow 6"
    client.send(query(b"select pg_advisory_unlock(7)"))
    for _ in range(2):
        assert client.send(run(b"t") + SYNC)[1] == "DataRow 6"
    assert client.session.state is State.IDLE


async def test_settings_that_cannot_be_told() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    assert client.send(query(b"set a.b.c = '1'"))[-1] == KEEPS + "settings that cannot be told"
    other.feed(query(b"select 2"))
    # Whatever is reset by its name is not known, either.
    client.send(query(b"reset a.b.c"))
    assert client.session.pins == Pin.SETTINGS
    client.send(query(b"discard all"))
    assert client.session.state is State.IDLE
    assert other.read()[1] == "DataRow 2"
    client.send(query(b"set a.b.c = '1'") + query(b"discard all") + query(b"set a.b.c = '2'"))
    assert client.session.pins == Pin.SETTINGS


async def test_a_setting_that_a_parameter_names_is_told() -> None:
    pair = SessionPair(backends=2)
    client = pair.connect()
    client.send(parse(b"s", b"select set_config($1, $2, false)") + SYNC)
    client.send(bind(b"", b"s", [b"lock_timeout", b"5s"]) + execute() + SYNC)
    assert client.session.state is State.IDLE
    for _ in range(2):
        assert shown(client) == "5s"


# -- LOAD --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_library_that_is_loaded_stays_with_its_session_to_the_end(kind: str) -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    assert client.send(KINDS[kind](b"load 'auto_explain'"))[-1] == KEEPS + "LOAD"
    for request in (b"discard all", b"begin; rollback", b"listen news", b"unlisten *"):
        client.send(query(request))
        assert client.session.pins & Pin.LIBRARY
    assert client.session.pins.words == "LOAD"
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    assert pair.pool.gone == ["LOAD"]


async def test_a_library_that_is_loaded_in_a_transaction_that_is_rolled_back_stays_too() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(query(b"begin; load 'auto_explain'; rollback"))
    assert client.session.pins == Pin.LIBRARY


async def test_a_library_that_is_not_loaded_pins_nobody() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(query(b"begin"))
    client.send(query(b"select 1/0"))
    client.send(query(b"load 'auto_explain'"))
    client.send(query(b"rollback"))
    assert client.session.state is State.IDLE
    pair.check_idle()


async def test_a_client_that_leaves_while_it_loads_a_library() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.feed(query(b"load 'auto_explain'"))
    client.vanish()
    pair.pump()
    pair.finish_cancels()
    assert pair.pool.gone == ["LOAD"]


# -- notifications -----------------------------------------------------------------------------------------------------


async def test_notifications_reach_who_listens_and_nobody_else() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    (link,) = pair.links
    client.feed(query(b"listen news"))
    pair.carry(link)
    client.read()
    # Even before it is known for certain.
    assert client.session.state is State.HOLDING
    link.backend.data_received(NOTIFICATION)
    assert client.read() == [NOTIFIED]
    pair.pump()
    client.read()
    for before in (query(b"select 1"), query(b"begin"), query(b"commit")):
        client.send(before)
        pair.answer(link, NOTIFICATION)
        pair.pump()
        assert client.read() == [NOTIFIED]
    client.send(query(b"unlisten *"))
    for one in (other, client):
        one.send(query(b"begin"))
        pair.answer(link, NOTIFICATION)
        pair.pump()
        assert one.read() == []
        one.send(query(b"rollback"))


async def test_who_is_pinned_for_something_else_hears_nothing() -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair, b"select pg_advisory_lock(7)")
    pair.answer(pair.links[0], NOTIFICATION)
    pair.pump()
    assert client.read() == []


# -- settings of a pinned session --------------------------------------------------------------------------------------


async def test_a_pinned_session_has_its_settings_and_takes_them_along() -> None:
    pair = SessionPair(backends=2)
    client = pair.connect(lock_timeout="5s", TimeZone="Asia/Tokyo")
    client.send(query(b"listen news"))
    assert client.session.pins
    assert (shown(client), shown(client, "timezone")) == ("5s", "Asia/Tokyo")
    client.send(query(b"set statement_timeout = '7s'; set lock_timeout = '9s'"))
    client.send(query(b"begin; set lock_timeout = '1s'; rollback"))
    assert (shown(client), shown(client, "statement_timeout")) == ("9s", "7s")
    client.send(query(b"reset all"))
    # As in Postgres, what the startup packet asked for.
    values = [shown(client, name) for name in ("lock_timeout", "statement_timeout", "timezone")]
    assert values == ["5s", "0", "Asia/Tokyo"]
    client.send(query(b"set statement_timeout = '7s'"))
    client.send(query(b"unlisten *"))
    assert not client.session.pins
    for _ in range(2):
        values = [shown(client, name) for name in ("lock_timeout", "statement_timeout", "timezone")]
        assert values == ["5s", "7s", "Asia/Tokyo"]
    pair.check_idle()


async def test_how_asyncpg_prepares_in_a_pinned_session() -> None:
    pair = SessionPair(backends=1)
    client = pinned(pair)
    told = client.send(parse(b"s", b"select $1::int") + describe_statement(b"s") + FLUSH)
    assert told == ["ParseComplete", "ParameterDescription [23]", "RowDescription int4:23"]
    assert client.session.state.name == "LEASED"
    assert client.send(run(b"s", b"5") + SYNC)[1] == "DataRow 5"
    client.send(parse(b"l", b"unlisten *") + describe_statement(b"l") + FLUSH)
    client.send(run(b"l") + SYNC)
    assert client.session.state is State.IDLE
    pair.check_idle()


async def test_what_comes_while_a_session_is_freed_is_held() -> None:
    pair = SessionPair(backends=2)
    client = pinned(pair)
    client.feed(query(b"unlisten *"))
    pair.carry(pair.links[0])
    client.feed(query(b"select 1"))
    assert client.session.state is State.HOLDING
    pair.pump()
    assert "DataRow 1" in client.read()
    pair.check_idle()
