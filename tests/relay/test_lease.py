"""What a session does with the backend that it holds: its settings, its statements, when it gives it back."""

from __future__ import annotations

import pytest

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.postgres_sql import Prepared
from helpers.session_pair import Link, PairedClient, SessionPair
from pgtrunk.wire.frontend import bind, copy_data, describe_statement, execute, parse, query
from pgtrunk_gateway.session.state import State

ONE = b"select $1::int"
SHOW = query(b"show timezone")
PREPARE = parse(b"s", ONE) + describe_statement(b"s") + FLUSH
PREPARED = ["ParseComplete", "ParameterDescription [23]", "RowDescription int4:23"]


def shown(client: PairedClient) -> str:
    return client.send(SHOW)[1]


def kinds(link: Link) -> str:
    received, link.model.received[:] = "".join(link.model.received), []
    return received


# -- how long it is held ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "held"),
    [
        (query(b"select 1"), False),
        (query(b"begin"), True),
        (query(b"begin; commit"), False),
        (query(b"begin; select 1/0"), True),
        (once(b"select 1") + SYNC, False),
        (once(b"select 1") + FLUSH, True),
        (once(b"select 1/0") + FLUSH, True),
        (once(b"begin") + SYNC, True),
        (parse(b"", ONE), True),
        (query(b"copy t from stdin"), True),
        (once(b"copy t from stdin") + SYNC, True),
        (once(b"copy t from stdin") + SYNC + copy_data(b"x\n"), True),
        (query(b"copy t from stdin") + copy_data(b"x\n"), False),
        (PREPARE, False),
        (parse(b"s", b"selec") + describe_statement(b"s") + FLUSH, False),
        (query(b"begin") + PREPARE, True),
        (query(b"insert into t values (1)") + query(b"select pg_sleep(1)"), True),
    ],
)
async def test_when_a_backend_is_given_back(sent: bytes, held: bool) -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(sent)
    assert (client.session.backend is not None) is held
    assert (not pair.pool.free) is held
    if not held:
        pair.check_idle()


async def test_how_asyncpg_prepares_keeps_no_backend() -> None:
    """Parse, Describe and Flush: without a Sync the backend would wait for the client's next step."""
    pair = SessionPair(backends=1)
    first, second = pair.connect(), pair.connect()
    assert first.send(PREPARE) == PREPARED
    assert second.send(PREPARE) == PREPARED
    assert kinds(pair.links[0]) == "PDS" + "DS"
    assert first.send(run(b"s", b"5") + SYNC) == second.send(run(b"s", b"5") + SYNC)
    pair.check_idle()


async def test_it_keeps_none_either_where_its_settings_have_to_be_made_first() -> None:
    pair = SessionPair(backends=1)
    first, second = pair.connect(application_name="first"), pair.connect(application_name="second")
    for client in (first, second):
        assert client.send(PREPARE) == PREPARED
        assert client.session.state is State.IDLE
    assert kinds(pair.links[0]) == "QPDS" + "QDS"


async def test_after_an_error_of_that_kind_all_is_skipped_up_to_the_clients_sync() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(parse(b"s", b"selec") + describe_statement(b"s") + FLUSH)
    assert client.session.state is State.SKIPPING
    assert client.send(once(b"insert into t values (1)") + query(b"insert into t values (1)")) == []
    assert client.send(SYNC) == ["ReadyForQuery I"]
    assert pair.store.tables == {}


async def test_what_is_pipelined_behind_it_finds_it_settled_or_failed() -> None:
    for text, found in ((ONE, "BindComplete"), (b"selec", "ReadyForQuery I")):
        pair = SessionPair(backends=1)
        client = pair.connect()
        client.write(parse(b"s", text) + describe_statement(b"s") + FLUSH)
        client.write(run(b"s", b"5") + SYNC)
        pair.pump()
        received = client.read()
        assert received[3 if text == ONE else 1] == found
        pair.check_idle()


@pytest.mark.parametrize(
    "mixed",
    [
        parse(b"s", ONE) + bind(b"", b"s", [b"1"]) + FLUSH,
        parse(b"s", ONE) + execute() + FLUSH,
        parse(b"s", ONE) + FLUSH + parse(b"r", ONE),
    ],
)
async def test_other_batches_with_flush_are_the_clients_own(mixed: bytes) -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(mixed)
    assert client.session.backend is not None
    assert "S" not in kinds(pair.links[0])


# -- settings --------------------------------------------------------------------------------------------------------


async def test_each_session_has_its_settings_on_every_backend() -> None:
    pair = SessionPair(backends=2)
    tokyo, berlin, default = pair.connect(TimeZone="Asia/Tokyo"), pair.connect(TimeZone="Europe/Berlin"), pair.connect()
    for _ in range(4):
        assert shown(tokyo) == "DataRow Asia/Tokyo"
        assert shown(berlin) == "DataRow Europe/Berlin"
        assert shown(default) == "DataRow UTC"


async def test_they_travel_with_the_query_and_only_where_they_differ() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(TimeZone="Asia/Tokyo", application_name="it's \\ here"), pair.connect()
    client.feed(SHOW)
    assert kinds(pair.links[0]) == ""
    pair.pump()
    assert client.read()[1] == "DataRow Asia/Tokyo"
    assert kinds(pair.links[0]) == "QQ"
    client.send(SHOW)
    assert kinds(pair.links[0]) == "Q"
    assert client.send(query(b"show application_name"))[1] == "DataRow it's \\ here"
    other.send(SHOW)
    client.send(SHOW)
    assert kinds(pair.links[0]) == "QQQ" + "QQ"


async def test_what_a_session_sets_is_told_once_and_follows_it() -> None:
    pair = SessionPair(backends=2)
    client, other = pair.connect(), pair.connect()
    set_it = query(b"set timezone = 'Asia/Tokyo'")
    assert client.send(set_it) == ["CommandComplete SET", "ParameterStatus TimeZone=Asia/Tokyo", "ReadyForQuery I"]
    for _ in range(3):
        assert client.send(SHOW) == [
            "RowDescription TimeZone:25",
            "DataRow Asia/Tokyo",
            "CommandComplete SHOW",
            "ReadyForQuery I",
        ]
        assert shown(other) == "DataRow UTC"


async def test_what_was_rolled_back_does_not_follow_it() -> None:
    pair = SessionPair(backends=2)
    client = pair.connect()
    for step in (b"begin", b"set timezone = 'Asia/Tokyo'", b"rollback"):
        client.send(query(step))
    for _ in range(2):
        assert shown(client) == "DataRow UTC"


async def test_a_setting_that_the_server_spells_otherwise_is_told() -> None:
    pair = SessionPair(backends=2)
    client = pair.connect(DateStyle="german")
    assert client.send(query(b"show datestyle"))[1:] == [
        "DataRow German, DMY",
        "CommandComplete SHOW",
        "ReadyForQuery I",
        "ParameterStatus DateStyle=German, DMY",
    ]
    for _ in range(3):
        assert client.send(query(b"show datestyle"))[-1] == "ReadyForQuery I"


async def test_a_setting_that_cannot_be_made_ends_the_session_and_leaves_the_backend_clean() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect(DateStyle="foo")
    assert client.send(query(b"begin"))[-1] == (
        'ErrorResponse FATAL 22023 invalid value for parameter "DateStyle": "foo"'
    )
    assert client.session.state is State.CLOSED
    pair.pump()
    pair.check_idle()


@pytest.mark.parametrize("sent", [query(b"show timezone"), query(b"select '" + b"x" * 100_000 + b"'")])
async def test_settings_that_the_server_may_not_take_go_ahead_alone_once(sent: bytes) -> None:
    pair = SessionPair(backends=2, certain=False)
    client = pair.connect(TimeZone="Asia/Tokyo")
    client.feed(sent[:20_000])
    assert client.session.state is State.HOLDING
    assert client.send(sent[20_000:])[-1] == "ReadyForQuery I"
    assert shown(client) == "DataRow Asia/Tokyo"
    # Another of the same settings need not ask.
    other = pair.connect(TimeZone="Asia/Tokyo")
    other.feed(SHOW)
    assert other.session.state is State.LEASED


async def test_nothing_runs_under_other_settings_than_the_clients() -> None:
    pair = SessionPair(backends=1, certain=False)
    client = pair.connect(DateStyle="foo")
    client.send(query(b"insert into t values (1)"))
    assert client.session.state is State.CLOSED
    assert pair.store.tables == {}
    pair.check_idle()


async def test_a_client_that_vanishes_before_its_large_request_was_sent_costs_no_backend() -> None:
    pair = SessionPair(backends=1, certain=False)
    client = pair.connect(TimeZone="Asia/Tokyo")
    client.feed(query(b"select '" + b"x" * 100_000 + b"'")[:20_000])
    client.vanish()
    pair.pump()
    pair.finish_cancels()
    assert not pair.pool.gone
    pair.check_idle()


async def test_a_statement_is_not_shared_with_sessions_to_whom_its_text_means_something_else() -> None:
    """'2020-01-01'::timestamptz becomes a value when it is parsed, by the time zone of whoever has it parsed."""
    pair = SessionPair(backends=1)
    one, same, other = pair.connect(), pair.connect(application_name="x"), pair.connect(TimeZone="Asia/Tokyo")
    text = parse(b"s", b"select 1") + SYNC
    for client in (one, same, other):
        client.send(text)
    assert kinds(pair.links[0]).count("P") == 2
    # It follows a session that changes its settings, as another one.
    one.send(query(b"set timezone = 'Asia/Tokyo'"))
    kinds(pair.links[0])
    assert one.send(run(b"s") + SYNC)[1] == "DataRow 1"
    assert "P" not in kinds(pair.links[0])
    one.send(query(b"set timezone = 'Europe/Berlin'"))
    assert one.send(run(b"s") + SYNC)[1] == "DataRow 1"
    assert "P" in kinds(pair.links[0])


async def test_notices_to_a_setting_are_not_the_clients() -> None:
    """Only the server's answers to what the client asked, whatever else was said in the same flight."""
    pair = SessionPair(backends=1)
    client = pair.connect(TimeZone="Asia/Tokyo", application_name="x")
    assert client.send(query(b"select 1")) == [
        "RowDescription ?column?:23",
        "DataRow 1",
        "CommandComplete SELECT 1",
        "ReadyForQuery I",
    ]


async def test_settings_of_a_session_that_waited() -> None:
    pair = SessionPair(backends=0)
    client = pair.connect(TimeZone="Asia/Tokyo")
    client.write(SHOW)
    pair.pump()
    pair.open_backend()
    pair.pump()
    assert client.read()[1] == "DataRow Asia/Tokyo"


# -- cancels ---------------------------------------------------------------------------------------------------------


async def test_a_backend_with_a_cancel_on_its_way_stays_with_its_session() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    client.send(query(b"select pg_sleep(60)"))
    (link,) = pair.links
    pair.cancels.cancel(link.backend)
    pair.wake()
    assert client.read()[-1] == "ReadyForQuery I"
    assert client.session.state is State.LEASED
    other.send(query(b"select 2"))
    assert other.session.state is State.WAITING
    # The same session may go on: in Postgres too, a late cancel would hit its next query.
    assert client.send(query(b"select 1"))[1] == "DataRow 1"
    pair.finish_cancels()
    assert client.session.state.name == "IDLE"
    assert other.read()[1] == "DataRow 2"


async def test_a_cancel_hits_what_runs() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(once(b"select pg_sleep(60)") + SYNC)
    pair.cancels.cancel(pair.links[0].backend)
    pair.finish_cancels()
    assert client.read()[-2:] == [
        "ErrorResponse ERROR 57014 canceling statement due to user request",
        "ReadyForQuery I",
    ]
    pair.check_idle()


async def test_a_batch_with_the_gateways_sync_that_fails_while_a_cancel_is_on_its_way() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.feed(parse(b"s", b"selec") + describe_statement(b"s") + FLUSH)
    pair.cancels.cancel(pair.links[0].backend)
    pair.pump()
    assert client.session.state is State.HOLDING
    pair.finish_cancels()
    assert client.session.state.name == "SKIPPING"
    assert len(client.send(SYNC)) == 2
    pair.check_idle()


async def test_a_statement_that_is_pipelined_behind_a_setting_is_not_taken_for_another() -> None:
    """It is parsed under settings that are not those under which its text was filed."""
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    text = parse(b"s", b"select 1")
    client.send(query(b"set timezone = 'Asia/Tokyo'") + text + SYNC)
    kinds(pair.links[0])
    # Nobody else gets that one; whoever asks for the text gets it parsed anew.
    assert other.send(text + run(b"s") + SYNC)[0] == "ParseComplete"
    assert kinds(pair.links[0]).count("P") == 1
    assert client.send(run(b"s") + SYNC)[1] == "DataRow 1"


async def test_nor_is_one_in_the_same_batch() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    client.send(once(b"set timezone = 'Asia/Tokyo'") + parse(b"s", b"select 1") + SYNC)
    kinds(pair.links[0])
    other.send(parse(b"s", b"select 1") + run(b"s") + SYNC)
    assert kinds(pair.links[0]).count("P") == 1


async def test_a_name_of_ours_that_a_client_has_taken_by_sql_is_taken_back() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    (link,) = pair.links
    link.model.statements["~"] = link.model.statements.get("~") or Prepared(None, (), b"")
    first = client.send(parse(b"s", b"select 1") + SYNC)
    assert first[0].startswith("ErrorResponse ERROR 42P05")
    for _ in range(2):
        assert client.send(parse(b"s", b"select 1") + run(b"s") + SYNC)[2] == "DataRow 1"
        client.send(query(b"deallocate all"))
