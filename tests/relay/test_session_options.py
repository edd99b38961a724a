"""Settings that Postgres does not report: each session has those that it asked for, and no other has them."""

from __future__ import annotations

import pytest

from helpers.conversations import SYNC, once
from helpers.session_pair import PairedClient, SessionPair
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, parse, query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

SESSION = Terms(pool_mode="session", reset_query="DISCARD ALL", tracked=False)


def shown(client: PairedClient, name: str = "lock_timeout") -> str:
    return client.send(query(b"show " + name.encode()))[1].removeprefix("DataRow ")


def flights(pair: SessionPair) -> str:
    received = pair.links[0].model.received
    kinds = "".join(received)
    received.clear()
    return kinds


async def test_each_session_has_its_own_and_the_others_have_none() -> None:
    pair = SessionPair(backends=2)
    five, six, none = pair.connect(lock_timeout="5s"), pair.connect(lock_timeout="6s", role="r"), pair.connect()
    for _ in range(3):
        assert shown(five) == "5s"
        assert shown(none) == "0"
        assert shown(six) == "6s"
        assert shown(none, "role") == "none"
        assert shown(six, "role") == "r"


async def test_they_travel_with_the_query_and_only_where_they_differ() -> None:
    pair = SessionPair(backends=1)
    client, same, none = pair.connect(lock_timeout="5s"), pair.connect(lock_timeout="5s"), pair.connect()
    client.feed(query(b"select 1"))
    pair.pump()
    assert flights(pair) == "QQ"
    assert client.read()[-1] == "ReadyForQuery I"
    for each in (client, same, client):
        shown(each)
    assert flights(pair) == "QQQ"
    shown(none)
    shown(none)
    assert flights(pair) == "QQQ"


async def test_the_first_time_they_go_ahead_alone() -> None:
    """Nothing may run before Postgres has taken them."""
    pair = SessionPair(backends=2, certain=False)
    client = pair.connect(lock_timeout="5s")
    client.feed(query(b"show lock_timeout"))
    assert client.session.state is State.HOLDING
    pair.pump()
    assert client.read()[1] == "DataRow 5s"
    assert shown(client) == "5s"
    other = pair.connect(lock_timeout="5s")
    other.feed(query(b"select 1"))
    assert other.session.state is State.LEASED


@pytest.mark.parametrize("request_", [query(b"insert into t values (1)"), once(b"insert into t values (1)") + SYNC])
async def test_what_postgres_refuses_ends_the_session_with_its_words_and_runs_nothing(request_: bytes) -> None:
    pair = SessionPair(backends=1, certain=False)
    client, none = pair.connect(lock_timeout="soon", statement_timeout="5s"), pair.connect()
    assert client.send(request_) == ['ErrorResponse FATAL 22023 invalid value for parameter "lock_timeout": "soon"']
    assert client.session.state is State.CLOSED
    assert pair.store.tables == {}
    pair.pump()
    pair.check_idle()
    assert shown(none, "statement_timeout") == "0"


async def test_a_role_is_never_taken_for_granted() -> None:
    """It may be revoked: then nothing may run as somebody else."""
    pair = SessionPair(backends=1, certain=False)
    client, none = pair.connect(role="r"), pair.connect()
    for _ in range(3):
        client.feed(query(b"show role"))
        assert client.session.state.name == "HOLDING"
        pair.pump()
        assert client.read()[1] == "DataRow r"
        assert shown(none, "role") == "none"
    # But it need not be set again where it is set.
    shown(client, "role")
    client.feed(query(b"show role"))
    assert client.session.state.name == "LEASED"


async def test_who_needs_settings_first_does_not_lose_its_turn() -> None:
    """It has waited for the backend, and gets no other while they are made."""
    pair = SessionPair(backends=1, certain=False)
    client, none = pair.connect(role="r"), pair.connect()
    client.feed(query(b"show role"))
    none.feed(query(b"show role"))
    assert none.session.state is State.WAITING
    pair.pump()
    assert (client.read()[1], none.read()[1]) == ("DataRow r", "DataRow none")


@pytest.mark.parametrize("left", [query(b"begin"), query(b"select pg_sleep(60)"), b""])
async def test_what_a_vanished_session_had_is_known(left: bytes) -> None:
    pair = SessionPair(backends=1)
    client, none = pair.connect(lock_timeout="5s"), pair.connect()
    client.send(query(b"select 1"))
    client.feed(left)
    client.vanish()
    pair.pump()
    pair.finish_cancels()
    assert shown(none) == "0"


async def test_a_session_that_vanishes_while_they_are_made() -> None:
    for value in ("5s", "soon"):
        pair = SessionPair(backends=1)
        client, none = pair.connect(lock_timeout=value, TimeZone="Asia/Tokyo"), pair.connect()
        client.feed(query(b"select 1"))
        client.vanish()
        pair.pump()
        pair.finish_cancels()
        assert shown(none) == "0"
        assert shown(none, "timezone") == "UTC"


@pytest.mark.parametrize("request_", [query(b"insert into t values (1)"), once(b"insert into t values (1)") + SYNC])
async def test_a_request_never_runs_with_what_another_session_had(request_: bytes) -> None:
    """What was taken once can fail another time, with the request right behind it."""
    pair = SessionPair(backends=1)
    other, client = pair.connect(role="r"), pair.connect(lock_timeout="soon")
    assert shown(other, "role") == "r"
    answers = client.send(request_)
    assert answers[0].startswith("ErrorResponse ERROR 25P02")
    assert answers[-1] == 'ErrorResponse FATAL 22023 invalid value for parameter "lock_timeout": "soon"'
    assert pair.store.tables == {}
    pair.pump()
    # It may have been the role that could not be undone: nobody gets that backend any more.
    assert pair.pool.gone == ["settings cannot be changed any more"]


# -- what the client does itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (b"reset all", "5s"),
        (b"reset lock_timeout", "5s"),
        (b"set lock_timeout = '9s'", "9s"),
        (b"begin; set lock_timeout = '9s'; commit", "9s"),
    ],
)
async def test_after_set_and_reset_a_session_has_what_it_asked_for(command: bytes, expected: str) -> None:
    """RESET ALL is how asyncpg's pool gives a connection back: the next user of it asked for nothing else."""
    pair = SessionPair(backends=1)
    client, same, none = pair.connect(lock_timeout="5s"), pair.connect(lock_timeout="5s"), pair.connect()
    client.send(query(command))
    assert shown(client) == expected
    client.send(query(command))
    assert shown(same) == "5s"
    client.send(query(command))
    assert shown(none) == "0"


@pytest.mark.parametrize("command", [b"discard all", b"reset all"])
@pytest.mark.parametrize("extended", [True, False])
async def test_a_session_begins_anew_with_what_it_began_with(command: bytes, extended: bool) -> None:
    """As in Postgres, where a reset goes back to the startup packet's settings."""
    pair = SessionPair(backends=2)
    client = pair.connect(lock_timeout="5s", TimeZone="Asia/Tokyo")
    shown(client)
    client.send(query(b"set timezone = 'Europe/Berlin'; set datestyle = 'german'"))
    told = client.send(once(command) + SYNC if extended else query(command))
    assert told[-3:] == [
        "ParameterStatus TimeZone=UTC",
        "ReadyForQuery I",
        "ParameterStatus TimeZone=Asia/Tokyo",
    ]
    for _ in range(2):
        assert shown(client) == "5s"
        assert shown(client, "timezone") == "Asia/Tokyo"
        assert shown(client, "datestyle") == "ISO, MDY"


async def test_what_is_set_after_a_reset_stays() -> None:
    pair = SessionPair(backends=2)
    client = pair.connect(TimeZone="Asia/Tokyo")
    client.send(query(b"set datestyle = 'german'"))
    client.send(query(b"reset all; set timezone = 'UTC'"))
    for _ in range(2):
        assert shown(client, "timezone") == "UTC"
        assert shown(client, "datestyle") == "ISO, MDY"


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (b"reset timezone; select 1", "Asia/Tokyo"),
        (b"set timezone = 'Europe/Berlin'; reset lock_timeout", "Europe/Berlin"),
        (b"set timezone = 'UTC'; reset lock_timeout", "UTC"),
        (b"set timezone = 'UTC'; reset timezone", "Asia/Tokyo"),
        (b"reset timezone; set timezone = 'UTC'", "UTC"),
        (b"begin; reset all; rollback", "Asia/Tokyo"),
        (b"begin; set timezone = 'UTC'; rollback; reset all", "Asia/Tokyo"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
async def test_what_was_reset_and_what_was_set_is_told_apart(commands: bytes, expected: str, zone: str) -> None:
    """Both are reported alike, or not at all where nothing changes."""
    pair = SessionPair(backends=2)
    client, other = pair.connect(TimeZone="Asia/Tokyo"), pair.connect()
    client.send(query(b"set timezone = '%s'" % zone.encode()))
    client.send(query(b"reset timezone"))
    client.send(query(commands))
    for _ in range(2):
        assert shown(client, "timezone") == expected
        assert shown(other, "timezone") == "UTC"


# -- other modes -----------------------------------------------------------------------------------------------------


async def test_in_session_mode_they_are_made_once_and_a_reset_undoes_them() -> None:
    pair = SessionPair(backends=1, terms=SESSION)
    client = pair.connect(lock_timeout="5s")
    for _ in range(3):
        assert shown(client) == "5s"
    assert flights(pair) == "QQQQ"
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    none = pair.connect()
    assert shown(none) == "0"
    # DISCARD ALL, and the query: nothing had to be reset any more.
    assert flights(pair) == "QQ"


@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("command", [b"discard all", b"reset all"])
async def test_in_session_mode_too_a_session_begins_anew_with_what_it_began_with(command: bytes, certain: bool) -> None:
    pair = SessionPair(backends=1, terms=SESSION, certain=certain)
    client = pair.connect(lock_timeout="5s", TimeZone="Asia/Tokyo")
    shown(client)
    for _ in range(2):
        client.send(query(b"set lock_timeout = '9s'; set datestyle = 'german'"))
        assert shown(client) == "9s"
        assert client.send(query(command))[-1] == "ParameterStatus TimeZone=Asia/Tokyo"
        flights(pair)
        assert shown(client) == "5s"
        assert shown(client, "timezone") == "Asia/Tokyo"
        assert shown(client, "datestyle") == "ISO, MDY"
        assert flights(pair) == "QQQQ"


async def test_a_reset_in_a_transaction_is_made_up_for_when_it_is_over() -> None:
    pair = SessionPair(backends=1, terms=SESSION)
    client = pair.connect(lock_timeout="5s", TimeZone="Asia/Tokyo")
    for command in (b"begin", b"reset all", b"insert into t values (1)", b"rollback"):
        client.send(query(command))
    assert shown(client) == "5s"
    assert pair.store.tables == {}


async def test_where_there_is_no_reset_the_next_session_undoes_them() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", tracked=False))
    client, none = pair.connect(lock_timeout="5s"), pair.connect()
    shown(client)
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    assert shown(none) == "0"


async def test_statements_do_not_care() -> None:
    """They mean the same to sessions whose unreported settings differ."""
    pair = SessionPair(backends=1)
    for client in (pair.connect(lock_timeout="5s"), pair.connect()):
        client.send(parse(b"s", b"select 1") + SYNC)
    assert flights(pair).count("P") == 1


async def test_a_cancel_that_comes_while_settings_are_made_finds_the_request() -> None:
    """The request is not kept back until the cancel is over, which waits for it."""
    pair = SessionPair(backends=1, certain=False)
    client = pair.connect(lock_timeout="5s")
    client.feed(query(b"select pg_sleep(60)"))
    pair.cancels.cancel(pair.links[0].backend)
    pair.pump()
    assert client.session.state is State.LEASED
    pair.finish_cancels()
    assert client.read()[-2].startswith("ErrorResponse ERROR 57014")
    pair.check_idle()
