"""Settings that a session makes while it runs: they follow it, nobody else has them, and what is undone is gone."""

from __future__ import annotations

import pytest

from helpers.conversations import SYNC, once, run
from helpers.lasting import flights, shown, step
from helpers.session_pair import PairedClient, SessionPair
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, bind, execute, parse, query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

SET = query(b"set lock_timeout = '5s'")
SHOW = query(b"show lock_timeout")


def custom(client: PairedClient, name: str = "app.x") -> str:
    return client.send(query(b"select current_setting('" + name.encode() + b"', true)"))[1].removeprefix("DataRow ")


# -- they follow -------------------------------------------------------------------------------------------------------

WAYS = {
    "SET": [SET],
    "SET, extended": [once(b"set lock_timeout = '5s'") + SYNC],
    "SET, prepared": [parse(b"s", b"set lock_timeout = '5s'") + SYNC, run(b"s") + SYNC],
    "SET in a transaction": [query(b"begin"), SET, query(b"select 1"), query(b"commit")],
    "SET among others": [query(b"select 1; set session lock_timeout to '5s'; select 2")],
    "SET in a pipeline": [query(b"select 1") + SET + query(b"select 2") + once(b"select 3") + SYNC],
    "SET before an error": [SET + query(b"select 1/0")],
    "set_config": [query(b"select set_config('lock_timeout', '5s', false)")],
    "set_config with parameters": [
        parse(b"", b"select set_config($1, $2, false)") + bind(b"", b"", [b"lock_timeout", b"5s"]) + execute() + SYNC
    ],
    "twice": [query(b"set lock_timeout = '9s'"), SET],
}


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_set_follows_the_session_and_nobody_else_has_it(way: str) -> None:
    pair = SessionPair(backends=2)
    client, other = pair.connect(), pair.connect()
    for request in WAYS[way]:
        client.send(request)
    for _ in range(3):
        assert shown(client) == "5s"
        assert shown(other) == "0"
    pair.check_idle()


@pytest.mark.parametrize(
    "requests",
    [
        [query(b"begin"), SET, query(b"rollback")],
        [query(b"begin; set lock_timeout = '5s'; rollback")],
        [query(b"begin"), SET, query(b"select 1/0"), query(b"commit")],
        [query(b"set lock_timeout = '5s'; select 1/0")],
        [query(b"set lock_timeout = 'soon'")],
        [once(b"set lock_timeout = '5s'") + once(b"select 1/0") + SYNC],
        [query(b"begin"), query(b"set local lock_timeout = '5s'"), query(b"commit")],
        [SET, query(b"reset lock_timeout")],
        [SET, query(b"set lock_timeout to default")],
        [SET, query(b"reset all")],
        [SET, query(b"discard all")],
    ],
)
async def test_what_is_undone_is_gone(requests: list[bytes]) -> None:
    pair = SessionPair(backends=2)
    client = pair.connect()
    for request in requests:
        client.send(request)
    for _ in range(3):
        assert shown(client) == "0"
    assert client.session.profile == client.session._initial
    pair.check_idle()


async def test_several_settings_of_several_sessions() -> None:
    pair = SessionPair(backends=3)
    clients = [pair.connect() for _ in range(4)]
    for number, client in enumerate(clients[1:], 1):
        client.send(query(b"set lock_timeout = '%ds'; set app.x = 'of %d'" % (number, number)))
        client.send(query(b"begin; set statement_timeout = '9s'; rollback"))
        client.send(query(b"set temp_tablespaces = 'a'"))
    for _ in range(4):
        for number, client in enumerate(clients):
            assert shown(client) == (f"{number}s" if number else "0")
            assert custom(client) in ([f"of {number}"] if number else ["", "NULL"])
            assert shown(client, "statement_timeout") == "0"
            assert shown(client, "temp_tablespaces") == ("a" if number else "")
    pair.check_idle()


async def test_what_it_began_with_can_be_changed_and_comes_back() -> None:
    pair = SessionPair(backends=2)
    client, other = pair.connect(lock_timeout="5s", TimeZone="Asia/Tokyo"), pair.connect()
    for change, expected in (
        (b"set lock_timeout = '9s'", "9s"),
        (b"reset lock_timeout", "5s"),
        (b"set lock_timeout = '9s'; set timezone = 'UTC'", "9s"),
        (b"reset all", "5s"),
        (b"begin; set lock_timeout = '9s'; rollback", "5s"),
        (b"set lock_timeout = '9s'", "9s"),
        (b"discard all", "5s"),
    ):
        client.send(query(change))
        for _ in range(2):
            assert shown(client) == expected
            assert shown(other) == "0"
    assert shown(client, "timezone") == "Asia/Tokyo"


async def test_a_reset_of_one_setting_leaves_the_others() -> None:
    pair = SessionPair(backends=2)
    client = pair.connect(lock_timeout="5s")
    client.send(query(b"set statement_timeout = '7s'; set app.x = '1'"))
    client.send(query(b"reset app.x"))
    assert (shown(client), shown(client, "statement_timeout"), custom(client)) == ("5s", "7s", "")


async def test_a_role_is_carried_and_never_taken_for_granted() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    client.send(query(b"set role r"))
    for _ in range(2):
        assert shown(other, "role") == "none"
        client.feed(query(b"show role"))
        assert client.session.state.name == "HOLDING"
        pair.pump()
        assert client.read()[1] == "DataRow r"
    client.send(query(b"set role none"))
    assert shown(other, "role") == "none"
    client.feed(query(b"show role"))
    assert client.session.state is State.LEASED
    pair.pump()
    assert client.read()[1] == "DataRow none"
    client.send(query(b"set session authorization s"))
    assert shown(other, "session_authorization") == "user"
    assert shown(client, "session_authorization") == "s"
    client.send(query(b"set role r"))
    client.send(query(b"reset session authorization"))
    assert (shown(client, "session_authorization"), shown(client, "role")) == ("user", "none")


@pytest.mark.parametrize(
    ("requests", "role", "user"),
    [
        ([b"set role none"], "none", "user"),
        ([b"set role none", b"reset all"], "none", "user"),
        ([b"set role none", b"reset role"], "r", "user"),
        ([b"set role q", b"reset role"], "r", "user"),
        ([b"set role q", b"discard all"], "r", "user"),
        ([b"set session authorization s"], "none", "s"),
        ([b"set session authorization s", b"reset session authorization"], "r", "user"),
        ([b"set session authorization s", b"set session authorization default"], "r", "user"),
    ],
)
async def test_who_began_as_somebody_is_that_again_after_a_reset(requests: list[bytes], role: str, user: str) -> None:
    """As in Postgres, where RESET ALL is none of these."""
    pair = SessionPair(backends=2)
    client, other = pair.connect(role="r"), pair.connect()
    for request in requests:
        client.send(query(request))
    for _ in range(2):
        assert (shown(client, "role"), shown(client, "session_authorization")) == (role, user)
        assert (shown(other, "role"), shown(other, "session_authorization")) == ("none", "user")


# -- what it costs -----------------------------------------------------------------------------------------------------


async def test_ordinary_requests_and_reported_settings_are_not_asked_after() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    for request, sent in (
        (query(b"select 1"), "Q"),
        (query(b"begin; insert into t values (1); commit"), "Q"),
        (once(b"select 1") + SYNC, "PBDES"),
        (query(b"set timezone = 'Asia/Tokyo'"), "Q"),
        (query(b"set local lock_timeout = '5s'"), "Q"),
        (query(b"discard all"), "Q"),
        (query(b"unlisten *"), "Q"),
        (query(b"reset all"), "Q"),
        (SET, "QQ"),
        (query(b"set timezone = 'UTC'"), "Q"),
        (query(b"select 1"), "Q"),
    ):
        client.send(request)
        assert flights(pair) == sent, request
    assert shown(client) == "5s"


async def test_several_requests_in_a_row_are_asked_after_once() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(SET + query(b"select 1") + query(b"set app.x = '1'") + SET)
    assert flights(pair) == "QQQQ" + "Q"


async def test_a_transaction_is_counted_once_and_ends_when_the_client_has_its_answer() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    step(pair, client, SET)
    assert pair.pool.stats.xact_count == 1
    assert client.read() == ["CommandComplete SET", "ReadyForQuery I"]
    pair.pump()
    assert pair.pool.stats.xact_count == 1
    client.send(query(b"select 1"))
    assert (pair.pool.stats.xact_count, pair.pool.stats.query_count) == (2, 2)


# -- other modes -------------------------------------------------------------------------------------------------------


async def test_in_session_mode_nothing_is_asked() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", reset_query="DISCARD ALL", tracked=False))
    client = pair.connect()
    client.send(query(b"set lock_timeout = '5s'; listen news"))
    assert flights(pair) == "Q"
    assert client.session.pins == 0
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    pair.check_idle()


async def test_in_statement_mode_settings_follow_too() -> None:
    pair = SessionPair(backends=2, terms=Terms(pool_mode="statement"))
    client, other = pair.connect(), pair.connect()
    client.send(SET)
    for _ in range(2):
        assert (shown(client), shown(other)) == ("5s", "0")


async def test_with_a_reset_after_each_transaction() -> None:
    pair = SessionPair(backends=1, terms=Terms(reset_query="DISCARD ALL"))
    client, other = pair.connect(), pair.connect()
    client.send(SET)
    for _ in range(2):
        assert (shown(client), shown(other)) == ("5s", "0")
        pair.pump()
    assert not client.session.pins


async def test_without_statements_that_follow() -> None:
    pair = SessionPair(backends=2, prepared=0)
    client, other = pair.connect(), pair.connect()
    client.send(parse(b"s", b"set lock_timeout = '5s'") + run(b"s") + SYNC)
    for _ in range(2):
        assert (shown(client), shown(other)) == ("5s", "0")


# -- long texts --------------------------------------------------------------------------------------------------------


async def test_a_text_that_comes_in_parts() -> None:
    pair = SessionPair(backends=2)
    client, other = pair.connect(), pair.connect()
    long = query(b"select '" + b"x" * 100_000 + b"'; set lock_timeout = '5s'")
    for at in range(0, len(long), 9000):
        client.feed(long[at : at + 9000])
    pair.pump()
    assert client.read()[-1] == "ReadyForQuery I"
    for _ in range(2):
        assert (shown(client), shown(other)) == ("5s", "0")
    pair.check_idle()
