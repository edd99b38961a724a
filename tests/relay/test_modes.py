"""When a backend is given back, by pool_mode: and what is done to it before anybody else gets it."""

from __future__ import annotations

import pytest

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.session_pair import PairedClient, SessionPair
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, bind, describe_statement, execute, parse, query
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

SESSION = Terms(pool_mode="session", reset_query="DISCARD ALL", tracked=False)
STATEMENT = Terms(pool_mode="statement")
TRANSACTION = Terms()
PREPARE = parse(b"s", b"select $1::int") + describe_statement(b"s") + FLUSH
NOTIFICATION = encode(b"A", b"\0\0\0\1news\0hello\0")


def session_pair(backends: int = 1) -> SessionPair:
    return SessionPair(backends=backends, terms=SESSION)


def switch(client: PairedClient, terms: Terms) -> None:
    assert client.session.admission is not None
    client.session.admission.terms = terms
    client.session.reconfigure()


def asked(pair: SessionPair) -> str:
    received = pair.links[0].model.received
    kinds = "".join(received)
    received.clear()
    return kinds


# -- session ---------------------------------------------------------------------------------------------------------


async def test_a_session_keeps_its_backend_from_its_first_query_to_its_end() -> None:
    pair = session_pair()
    client, other = pair.connect(), pair.connect()
    assert client.session.backend is None
    assert client.send(query(b"select 1"))[1] == "DataRow 1"
    backend = client.session.backend
    assert backend is not None
    for request in (query(b"begin"), query(b"commit"), once(b"select 2") + SYNC):
        assert client.send(request)[-1].startswith("ReadyForQuery")
        assert client.session.backend is backend
        assert client.session.state is State.LEASED
    other.send(query(b"select 3"))
    assert other.session.state is State.WAITING
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    assert other.read()[1] == "DataRow 3"


@pytest.mark.parametrize("left", ["", "begin", "failed", "batch", "runs"])
@pytest.mark.parametrize("politely", [True, False])
async def test_what_a_session_leaves_is_undone(left: str, politely: bool) -> None:
    pair = session_pair()
    client = pair.connect()
    client.send(query(b"set timezone = 'Asia/Tokyo'"))
    client.send(parse(b"mine", b"select 1") + SYNC)
    steps = {
        "begin": query(b"begin"),
        "failed": query(b"begin; select 1/0"),
        "batch": once(b"insert into t values (1)"),
        "runs": query(b"select pg_sleep(60)"),
    }
    if left:
        client.send(steps[left])
    if politely:
        client.send(TERMINATE_MESSAGE)
    else:
        client.vanish()
    pair.pump()
    pair.finish_cancels()
    pair.wake()
    pair.check_idle()
    model = pair.links[0].model
    assert model.session.settings["TimeZone"] == "UTC"
    assert not model.statements
    assert pair.links[0].backend.profile != client.session.profile
    assert pair.store.tables == {}


async def test_nothing_is_reset_where_there_is_no_reset_query() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", tracked=False))
    client = pair.connect()
    client.send(parse(b"mine", b"select 1") + SYNC)
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    pair.check_idle()
    assert list(pair.links[0].model.statements) == ["mine"]


async def test_a_backend_that_cannot_be_reset_is_closed() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", reset_query="selec", tracked=False))
    client = pair.connect()
    client.send(query(b"select 1"))
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    (reason,) = pair.pool.gone
    assert reason.startswith("server_reset_query failed: ")


async def test_a_backend_that_is_retired_is_not_reset_first() -> None:
    pair = session_pair()
    client = pair.connect()
    client.send(query(b"select 1"))
    pair.links[0].backend.retire("database configuration changed")
    assert client.send(query(b"select 2"))[1] == "DataRow 2"
    asked(pair)
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    assert pair.pool.gone == ["database configuration changed"]
    assert "Q" not in asked(pair)


async def test_names_of_statements_reach_postgres_as_they_are() -> None:
    pair = session_pair()
    client = pair.connect()
    assert client.send(PREPARE) == ["ParseComplete", "ParameterDescription [23]", "RowDescription int4:23"]
    assert list(pair.links[0].model.statements) == ["s"]
    # The client's own Flush: the Sync is its own, too.
    assert asked(pair) == "PDH"
    for _ in range(2):
        assert client.send(run(b"s", b"5") + SYNC)[1] == "DataRow 5"
    assert client.send(query(b"deallocate s")) == ["CommandComplete DEALLOCATE", "ReadyForQuery I"]
    assert client.send(run(b"s", b"5") + SYNC)[0].startswith("ErrorResponse ERROR 26000")


async def test_notifications_reach_the_session_that_keeps_the_backend() -> None:
    pair = session_pair()
    client = pair.connect()
    client.send(query(b"select 1"))
    (link,) = pair.links
    for _ in range(2):
        pair.answer(link, NOTIFICATION)
        pair.pump()
        assert len(client.read()) == 1
    assert client.session.state is State.LEASED
    assert pair.pool.stats.xact_count == 1
    client.send(query(b"begin"))
    pair.answer(link, NOTIFICATION)
    pair.pump()
    assert len(client.read()) == 1
    # But not whoever gets it next.
    client.vanish()
    pair.pump()
    pair.finish_cancels()
    pair.terms = TRANSACTION
    other = pair.connect()
    other.send(query(b"begin"))
    pair.answer(link, NOTIFICATION)
    pair.pump()
    assert other.read() == []


async def test_without_a_reset_query_notifications_end_with_session_mode() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", tracked=False))
    client = pair.connect()
    client.send(query(b"select 1"))
    switch(client, TRANSACTION)
    pair.terms = TRANSACTION
    other = pair.connect()
    other.send(query(b"begin"))
    pair.answer(pair.links[0], NOTIFICATION)
    pair.pump()
    assert (client.read(), other.read()) == ([], [])


async def test_settings_are_made_once() -> None:
    pair = session_pair()
    client = pair.connect(TimeZone="Asia/Tokyo")
    for _ in range(3):
        assert client.send(query(b"show timezone"))[1] == "DataRow Asia/Tokyo"
    assert asked(pair) == "QQQQ"


async def test_settings_that_the_server_may_not_take_go_ahead_in_session_mode_too() -> None:
    pair = SessionPair(backends=1, terms=SESSION, certain=False)
    client = pair.connect(TimeZone="Asia/Tokyo")
    client.feed(query(b"show timezone"))
    assert client.session.state is State.HOLDING
    pair.pump()
    assert client.read()[1] == "DataRow Asia/Tokyo"
    assert client.session.state.name == "LEASED"
    assert pair.pool.stats.query_count == 1
    bad = pair.connect(DateStyle="foo")
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    assert bad.send(query(b"select 1"))[-1].startswith("ErrorResponse FATAL 22023")
    pair.pump()
    pair.check_idle()


async def test_a_stopping_gateway_waits_for_sessions_that_keep_a_backend() -> None:
    pair = session_pair(2)
    new, idle, busy = pair.connect(), pair.connect(), pair.connect()
    idle.send(query(b"select 1"))
    busy.send(query(b"begin"))
    pair.context.closing_idle = True
    for client in (new, idle, busy):
        client.session.end_if_idle()
    assert new.read()[-1].startswith("ErrorResponse FATAL 57P01")
    assert busy.send(query(b"commit"))[-1] == "ReadyForQuery I"
    for client in (idle, busy):
        assert client.send(query(b"select 1"))[-1] == "ReadyForQuery I"
        client.send(TERMINATE_MESSAGE)
    pair.pump()
    pair.check_idle()


async def test_a_slow_client_in_session_mode() -> None:
    pair = session_pair()
    client = pair.connect()
    client.send(query(b"select 1"))
    client.session.pause_writing()
    client.write(query(b"select 2"))
    pair.pump()
    assert client.read() == []
    client.session.resume_writing()
    pair.pump()
    assert client.read()[1] == "DataRow 2"
    assert client.session.state is State.LEASED


# -- a mode that changes ---------------------------------------------------------------------------------------------


async def test_a_session_that_is_in_transaction_mode_from_now_on_gives_its_backend_back() -> None:
    pair = session_pair()
    client = pair.connect()
    client.send(parse(b"mine", b"select 1") + SYNC)
    switch(client, TRANSACTION)
    assert client.session.state is State.IDLE
    pair.pump()
    pair.check_idle()
    # It was reset, since anything may have been left there.
    assert not pair.links[0].model.statements
    assert client.send(PREPARE)[0] == "ParseComplete"
    assert list(pair.links[0].model.statements) == ["~"]
    assert client.send(run(b"s", b"5") + SYNC)[1] == "DataRow 5"
    pair.check_idle()


async def test_but_not_in_the_middle_of_a_transaction() -> None:
    pair = session_pair()
    client = pair.connect()
    client.send(query(b"begin"))
    switch(client, TRANSACTION)
    assert client.session.state is State.LEASED
    client.send(query(b"commit"))
    assert client.session.state.name == "IDLE"
    pair.pump()
    pair.check_idle()


@pytest.mark.parametrize("inside", [True, False])
async def test_a_session_that_is_in_session_mode_from_now_on_keeps_its_next_backend(inside: bool) -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(parse(b"s", b"select $1::int") + SYNC)
    if inside:
        client.send(query(b"begin"))
    switch(client, SESSION)
    client.send(query(b"commit" if inside else b"select 1"))
    assert client.session.state is State.LEASED
    # Names that have followed it go on doing so.
    assert client.send(run(b"s", b"5") + SYNC)[1] == "DataRow 5"
    client.send(parse(b"t", b"select 6") + SYNC)
    assert client.send(run(b"t") + SYNC)[1] == "DataRow 6"
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    pair.check_idle()
    assert not pair.links[0].model.statements


# -- statement -------------------------------------------------------------------------------------------------------

NO_BLOCKS = "ErrorResponse FATAL 0A000 transaction blocks not allowed in statement pooling mode"


@pytest.mark.parametrize("begin", [query(b"begin"), once(b"begin") + SYNC, query(b"begin; select 1/0")])
async def test_a_transaction_block_in_statement_mode_ends_the_session(begin: bytes) -> None:
    pair = SessionPair(backends=1, terms=STATEMENT)
    client = pair.connect()
    assert client.send(begin) == [NO_BLOCKS]
    assert client.session.state is State.CLOSED
    pair.pump()
    pair.finish_cancels()
    pair.check_idle()


async def test_statement_mode_is_like_transaction_mode_otherwise() -> None:
    pair = SessionPair(backends=2, terms=STATEMENT)
    client = pair.connect()
    client.send(parse(b"s", b"select $1::int") + SYNC)
    for request in (query(b"select 5"), run(b"s", b"5") + SYNC, query(b"begin; select 5; commit")):
        told = client.send(request)
        assert "DataRow 5" in told
        assert told[-1] == "ReadyForQuery I"
        assert client.session.state is State.IDLE
    # A batch may come in parts.
    client.send(parse(b"", b"select 5") + FLUSH)
    client.send(bind(b"", b"") + FLUSH)
    assert client.send(execute() + SYNC)[-1] == "ReadyForQuery I"
    pair.check_idle()


async def test_a_mode_that_forbids_blocks_from_now_on() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(query(b"begin"))
    switch(client, STATEMENT)
    assert client.send(query(b"select 1"))[-1] == NO_BLOCKS
    other = pair.connect()
    switch(other, STATEMENT)
    switch(other, TRANSACTION)
    assert other.send(query(b"begin"))[-1] == "ReadyForQuery T"


# -- a reset in every mode -------------------------------------------------------------------------------------------


async def test_server_reset_query_always() -> None:
    pair = SessionPair(backends=1, terms=Terms(reset_query="DISCARD ALL"))
    client = pair.connect(TimeZone="Asia/Tokyo")
    for _ in range(2):
        assert client.send(query(b"show timezone"))[1] == "DataRow Asia/Tokyo"
        pair.pump()
        pair.check_idle()
        assert pair.links[0].model.session.settings["TimeZone"] == "UTC"
    assert asked(pair) == "QQQ" * 2


@pytest.mark.parametrize(
    ("mode", "always", "query", "expected"),
    [
        ("session", False, "DISCARD ALL", "DISCARD ALL"),
        ("session", False, "", None),
        ("session", False, None, None),
        ("transaction", False, "DISCARD ALL", None),
        ("transaction", True, "DISCARD ALL", "DISCARD ALL"),
        ("statement", True, "", None),
    ],
)
def test_when_a_reset_is_due(mode: str, always: bool, query: str | None, expected: str | None) -> None:

    config = Config(pool_mode=mode, server_reset_query=query, server_reset_query_always=always)  # type: ignore[arg-type]
    assert Terms.of(config, DatabaseConfig(name="db"), "user").reset_query == expected
