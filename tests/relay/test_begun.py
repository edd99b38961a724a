"""Transactions that have begun without a backend (lazy_begin): what is answered at once, and what is sent when."""

from __future__ import annotations

import pytest

from helpers.begun import AHEAD, BEGIN, BEGUN, COMMIT, INSERT, ONE, ROLLBACK, SELECT, begun, sent, tags
from helpers.conversations import FLUSH, SYNC, once, run
from helpers.session_pair import SessionPair, pieces
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    close_statement,
    copy_data,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

LARGE = query(b"select '" + b"x" * 100_000 + b"'")


@pytest.fixture
async def pair() -> SessionPair:
    return SessionPair(backends=1, lazy_begin=True)


# -- at once ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b"begin", b"BEGIN;", b"begin isolation level repeatable read, read only", b"begin work"]
)
@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_begin_takes_no_backend(pair: SessionPair, text: bytes, size: int) -> None:
    pair.split = pieces(size)
    client = pair.connect()
    assert client.send(query(text)) == BEGUN
    assert client.session.state is State.BEGUN
    assert client.session.backend is None
    assert sent(pair) == ""
    pair.check_idle()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([b"begin", b"commit"], ["BEGIN T", "COMMIT I"]),
        ([b"begin", b"end"], ["BEGIN T", "COMMIT I"]),
        ([b"begin", b"rollback"], ["BEGIN T", "ROLLBACK I"]),
        ([b"begin", b"abort work;"], ["BEGIN T", "ROLLBACK I"]),
        ([b"start transaction", b"commit"], ["START TRANSACTION T", "COMMIT I"]),
        ([b"begin", b"commit", b"begin", b"rollback"], ["BEGIN T", "COMMIT I", "BEGIN T", "ROLLBACK I"]),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("backends", [0, 1])
async def test_one_that_ends_as_it_began_has_been_nowhere(
    steps: list[bytes], expected: list[str], size: int, backends: int
) -> None:
    pair = SessionPair(backends=backends, lazy_begin=True, split=pieces(size))
    client = pair.connect()
    assert [line for step in steps for line in client.send(query(step))] == tags(*expected)
    assert client.session.state is State.IDLE
    assert not backends or sent(pair) == ""


@pytest.mark.parametrize(
    "first",
    [
        SELECT,
        query(b""),
        query(b"begin; select 1"),
        query(b"select 1; begin"),
        query(b" begin"),
        query(b"commit"),
        encode(b"Q", b"begin"),
        encode(b"Q", b"s"),
        encode(b"Q", b"begin\0\0"),
        encode(b"Q"),
        once(b"begin") + SYNC,
        BEGIN + SELECT,
        BEGIN + SYNC,
        BEGIN + COMMIT,
    ],
    ids=repr,
)
async def test_everything_else_goes_to_a_backend_as_ever(pair: SessionPair, first: bytes) -> None:
    eager = SessionPair(backends=1)
    assert pair.connect().send(first) == eager.connect().send(first)
    assert sent(pair) == sent(eager) != ""


async def test_only_a_server_that_does_not_recover_takes_these_modes_for_certain() -> None:
    for welcome, lazily in (({"in_hot_standby": "off"}, True), ({"in_hot_standby": "on"}, False), ({}, False)):
        pair = SessionPair(backends=1, lazy_begin=True)
        pair.pool.welcome = welcome
        for text in (b"begin read write", b"begin isolation level serializable", b"start transaction read write"):
            client = pair.connect()
            client.send(query(text))
            assert (client.session.state is State.BEGUN) is lazily
            assert (sent(pair) == "") is lazily
        begun(pair).vanish()
        client = pair.connect()
        assert client.send(query(b"begin read only")) == BEGUN
        assert sent(pair) == ""
    pair.pool.welcome = None
    client = pair.connect()
    client.send(query(b"begin read write"))
    assert sent(pair) == "Q"


async def test_not_where_it_is_switched_off_or_the_backend_is_kept() -> None:
    for terms in (Terms(), Terms(pool_mode="session", tracked=False)):
        pair = SessionPair(backends=1, terms=terms)
        client = pair.connect()
        assert client.send(BEGIN) == BEGUN
        assert client.session.state is State.LEASED
        assert sent(pair) == "Q"


# -- with the first request ------------------------------------------------------------------------------------------


async def test_the_backend_is_anybodys_until_then(pair: SessionPair) -> None:
    client, other = begun(pair), pair.connect()
    assert other.send(SELECT)[-1] == "ReadyForQuery I"
    assert sent(pair) == "Q"
    assert client.send(query(INSERT)) == tags("INSERT 0 1 T")
    assert sent(pair) == AHEAD + "Q"
    other.feed(SELECT)
    assert other.session.state is State.WAITING
    assert client.send(ROLLBACK) == tags("ROLLBACK I")
    pair.pump()
    assert other.read()[-1] == "ReadyForQuery I"
    assert pair.store.tables == {}
    pair.check_idle()


@pytest.mark.parametrize("split", [1, 1000])
@pytest.mark.parametrize(
    ("request_", "kinds", "answer"),
    [
        (SELECT, "Q", [*ONE, "ReadyForQuery T"]),
        (once(b"select 1") + SYNC, "PBDES", ["ParseComplete", "BindComplete", *ONE, "ReadyForQuery T"]),
        (SYNC, "S", ["ReadyForQuery T"]),
        (FLUSH + SYNC, "S", ["ReadyForQuery T"]),
        (copy_data(b"1\n") + COPY_DONE_MESSAGE + SYNC, "S", ["ReadyForQuery T"]),
        (
            encode(b"F", bytes(10)),
            "F",
            ["ErrorResponse ERROR 42883 function with OID 0 does not exist", "ReadyForQuery E"],
        ),
        (query(b"copy t from stdin"), "Q", ["CopyInResponse"]),
        (LARGE, "Q", [*ONE[:0]]),
        (query(b"selec"), "Q", ['ErrorResponse ERROR 42601 syntax error at or near "selec"', "ReadyForQuery E"]),
        (SELECT + COMMIT, "QQ", [*ONE, "ReadyForQuery T", *tags("COMMIT I")]),
        (BEGIN, "Q", ["NoticeResponse WARNING 25001 there is already a transaction in progress", *BEGUN]),
    ],
    ids=["query", "batch", "sync", "flush", "late copy", "call", "copy", "large", "error", "pipeline", "begin"],
)
async def test_it_is_one_flight(pair: SessionPair, request_: bytes, kinds: str, answer: list[str], split: int) -> None:
    client = begun(pair)
    client.feed(request_)
    transport = pair.links[0].transport
    assert len(transport._written) == 1
    pair.split = pieces(split)
    pair.pump()
    assert sent(pair) == AHEAD + kinds
    assert client.read()[: len(answer)] == answer


async def test_how_asyncpg_prepares(pair: SessionPair) -> None:
    """The Flush is its own: in a transaction the backend is kept anyway."""
    client = begun(pair)
    assert client.send(parse(b"s", b"select $1::int") + describe_statement(b"s") + FLUSH) == [
        "ParseComplete",
        "ParameterDescription [23]",
        "RowDescription int4:23",
    ]
    assert client.session.state is State.LEASED
    assert sent(pair) == AHEAD + "PDH"
    assert client.send(run(b"s", b"5") + SYNC)[-1] == "ReadyForQuery T"
    assert client.send(COMMIT) == tags("COMMIT I")
    assert client.send(BEGIN) == BEGUN
    assert client.send(run(b"s", b"6") + SYNC)[1] == "DataRow 6"
    assert client.send(ROLLBACK) == tags("ROLLBACK I")
    pair.check_idle()


async def test_a_large_request_in_parts(pair: SessionPair) -> None:
    client = begun(pair)
    for at in range(0, len(LARGE), 30_000):
        client.feed(LARGE[at : at + 30_000])
    assert client.session.state is State.LEASED
    pair.pump()
    assert client.read()[-1] == "ReadyForQuery T"
    assert sent(pair) == AHEAD + "Q"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (COMMIT + BEGIN, ["COMMIT I", "BEGIN T"]),
        (COMMIT + BEGIN + ROLLBACK, ["COMMIT I", "BEGIN T", "ROLLBACK I"]),
        (ROLLBACK + query(INSERT), ["ROLLBACK I", "INSERT 0 1 I"]),
        (COMMIT + BEGIN + query(INSERT), ["COMMIT I", "BEGIN T", "INSERT 0 1 T"]),
        (COMMIT + BEGIN + query(INSERT) + COMMIT, ["COMMIT I", "BEGIN T", "INSERT 0 1 T", "COMMIT I"]),
        (query(INSERT) + COMMIT + BEGIN, ["INSERT 0 1 T", "COMMIT I", "BEGIN T"]),
        (FLUSH + COMMIT + FLUSH + BEGIN + FLUSH, ["COMMIT I", "BEGIN T"]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_pipelines(pair: SessionPair, said: bytes, expected: list[str], size: int) -> None:
    pair.split = pieces(size)
    client = begun(pair)
    assert client.send(said) == tags(*expected)
    client.send(ROLLBACK)
    pair.check_idle()


async def test_what_a_simple_query_drops_is_dropped(pair: SessionPair) -> None:
    client = pair.connect()
    client.send(parse(b"", b"select 1") + SYNC)
    client.send(BEGIN)
    missing = "ErrorResponse ERROR 26000 unnamed prepared statement does not exist"
    assert client.send(run() + SYNC) == [missing, "ReadyForQuery E"]
    client.send(ROLLBACK)
    client.send(parse(b"", b"select 1") + SYNC)
    client.send(BEGIN)
    client.send(COMMIT)
    assert client.send(run() + SYNC) == [missing, "ReadyForQuery I"]


@pytest.mark.parametrize("request_", [execute() + SYNC, describe_portal(b"") + SYNC])
async def test_begin_itself_leaves_no_portal(pair: SessionPair, request_: bytes) -> None:
    client = begun(pair)
    assert client.send(request_) == ['ErrorResponse ERROR 34000 portal "" does not exist', "ReadyForQuery E"]


async def test_statements_that_the_backend_has(pair: SessionPair) -> None:
    client = pair.connect()
    client.send(parse(b"s", b"select 1") + SYNC)
    sent(pair)
    client.send(BEGIN)
    assert client.send(run(b"s") + SYNC) == ["BindComplete", *ONE[1:], "ReadyForQuery T"]
    assert sent(pair) == AHEAD + "BES"
    client.send(COMMIT)
    client.send(BEGIN)
    assert client.send(close_statement(b"s") + SYNC) == ["CloseComplete", "ReadyForQuery T"]
    assert client.send(run(b"s") + SYNC)[0] == 'ErrorResponse ERROR 26000 prepared statement "s" does not exist'


# -- settings --------------------------------------------------------------------------------------------------------


async def test_settings_go_ahead_of_it(pair: SessionPair) -> None:
    client, other = pair.connect(TimeZone="Asia/Tokyo"), pair.connect()
    client.send(BEGIN)
    client.feed(query(b"show timezone"))
    assert len(pair.links[0].transport._written) == 1
    pair.pump()
    assert client.read()[1] == "DataRow Asia/Tokyo"
    assert sent(pair) == "Q" + AHEAD + "Q"
    client.send(query(b"set timezone = 'Europe/Berlin'"))
    client.send(ROLLBACK)
    assert other.send(query(b"show timezone"))[1] == "DataRow UTC"
    client.send(BEGIN)
    assert client.send(query(b"show timezone"))[1] == "DataRow Asia/Tokyo"


@pytest.mark.parametrize("request_", [query(b"show lock_timeout"), once(b"show lock_timeout") + SYNC])
async def test_settings_that_are_not_certain_go_ahead_alone(request_: bytes) -> None:
    pair = SessionPair(backends=1, lazy_begin=True, certain=False)
    client = begun(pair, lock_timeout="5s")
    client.feed(request_)
    assert client.session.state is State.HOLDING
    assert len(pair.links[0].transport._written) == 1
    pair.pump()
    assert "DataRow 5s" in (answer := client.read())
    assert answer[-1] == "ReadyForQuery T"
    assert sent(pair)[:6] == "Q" + AHEAD
    assert client.send(COMMIT) == tags("COMMIT I")
    pair.check_idle()


@pytest.mark.parametrize("request_", [query(INSERT), once(INSERT) + SYNC])
async def test_settings_that_are_refused(request_: bytes) -> None:
    pair = SessionPair(backends=1, lazy_begin=True, certain=False)
    client = begun(pair, lock_timeout="soon")
    assert client.send(request_) == ['ErrorResponse FATAL 22023 invalid value for parameter "lock_timeout": "soon"']
    assert sent(pair)[0] == "Q"
    assert pair.store.tables == {}
    pair.pump()
    pair.check_idle()
