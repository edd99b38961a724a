"""What goes to a backend for what a client asks, message by message."""

from __future__ import annotations

import pytest

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.exchange import Exchange
from helpers.postgres_model import PostgresModel
from pgtrunk.wire import backend as b
from pgtrunk.wire import frontend as f
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.requests import BrokenRequest
from pgtrunk_gateway.session.shapes import EXECUTION, QUERY
from pgtrunk_gateway.session.statements import Catalogue

ONE, TEXT = b"select $1::int", b"select $1::text"
READY = b.ready()


def prepared(*names: bytes, **options: object) -> Exchange:
    """An exchange whose client and backend have ``names``, each a statement of its own."""
    exchange = Exchange(**options)  # type: ignore[arg-type]
    for number, name in enumerate(names):
        exchange.send(f.parse(name, b"select %d" % number) + SYNC)
    return exchange


# -- shapes ----------------------------------------------------------------------------------------------------------


def test_a_query_goes_as_it_is() -> None:
    exchange = Exchange()
    data = f.query(b"select 1")
    assert exchange.plan(data, QUERY) is data
    assert exchange.owed() == ["query"]


def test_an_execution_is_renamed_and_nothing_else() -> None:
    exchange = prepared(b"name")
    for tail in (f.execute(limit=7), f.describe_portal(b"") + f.execute()):
        data = f.bind(b"", b"name", [b"x"]) + tail + SYNC
        assert exchange.plan(data, EXECUTION) == data.replace(b"name", b"~000")
    assert exchange.owed() == ["batch", "batch"]


@pytest.mark.parametrize("shape", [EXECUTION, 0])
def test_an_execution_of_what_the_backend_lacks_is_prepared_in_the_same_flight(shape: int) -> None:
    exchange = prepared(b"name")
    exchange.replies.prepared.clear()
    data = f.bind(b"", b"name") + f.execute() + SYNC
    assert exchange.plan(data, shape) == f.parse(b"~000", b"select 0") + data.replace(b"name", b"~000")
    assert exchange.owed() == ["parse", "bind", "execute", "sync"]


def test_a_shape_inside_an_open_batch_is_no_shape() -> None:
    exchange = prepared(b"name")
    exchange.plan(f.describe_statement(b"name"))
    exchange.plan(f.bind(b"", b"name") + f.execute() + SYNC, EXECUTION)
    assert exchange.owed() == ["describe", "bind", "execute", "sync"]
    exchange.plan(f.describe_statement(b"name"))
    exchange.plan(f.query(b"select 1"), QUERY)
    assert exchange.owed()[4:] == ["describe", "query"]


@pytest.mark.parametrize("data", [f.query(b"select 1"), f.bind(b"", b"name") + f.execute() + SYNC])
def test_the_short_ways_do_what_the_long_one_does(data: bytes) -> None:
    short, long = prepared(b"name"), prepared(b"name")
    shape = QUERY if data[:1] == b"Q" else EXECUTION
    assert short.plan(data, shape) == long.plan(data)
    assert short.owed() == long.owed()
    for exchange in (short, long):
        assert exchange.replies.asker is exchange.requests
    assert short.replies.batch == long.replies.batch
    assert short.replies.unnamed is long.replies.unnamed
    assert short.requests.unnamed is long.requests.unnamed


# -- named statements ------------------------------------------------------------------------------------------------


def test_parse_under_our_name() -> None:
    exchange = Exchange()
    assert exchange.plan(f.parse(b"stmt_1", ONE, [23]) + SYNC) == f.parse(b"~00000", ONE, [23]) + SYNC


def test_equal_statements_of_many_sessions_are_one() -> None:
    catalogue = Catalogue()
    first = Exchange(catalogue=catalogue)
    first.send(f.parse(b"a", ONE) + SYNC)
    second = Exchange(catalogue=catalogue)
    second.replies, second.postgres = first.replies, first.postgres
    assert second.kinds(f.parse(b"b", ONE) + f.describe_statement(b"b") + SYNC) == "DS"
    assert second.owed() == ["parsed", "describe", "sync"]


def test_what_is_unknown_goes_as_it_is() -> None:
    exchange = Exchange()
    data = run(b"no") + f.describe_statement(b"no") + f.close_statement(b"no") + f.close_portal(b"p") + SYNC
    assert exchange.plan(data) == data
    assert exchange.owed() == ["batch"]


def test_close_is_answered_here_and_the_statement_stays() -> None:
    exchange = prepared(b"a")
    assert exchange.kinds(f.close_statement(b"a") + SYNC) == "S"
    assert exchange.requests.statements == {}
    assert len(exchange.replies.prepared) == 1


def test_the_least_recently_used_is_closed_to_make_room() -> None:
    exchange = prepared(b"aa", b"bb", prepared=2)
    exchange.send(run(b"aa") + SYNC)
    assert exchange.plan(f.parse(b"cc", TEXT) + SYNC) == f.close_statement(b"~1") + f.parse(b"~2", TEXT) + SYNC
    assert exchange.owed() == ["close", "parse", "sync"]


def test_names_of_other_lengths_where_short_ones_have_run_out() -> None:
    exchange = Exchange()
    assert exchange.send(f.parse(b"a", ONE) + f.parse(b"b", TEXT) + SYNC)[:2] == ["ParseComplete"] * 2
    sent = exchange.plan(run(b"b", b"x") + f.describe_statement(b"b") + SYNC)
    long = b"~000000000000000"
    assert sent == run(long, b"x") + f.describe_statement(long) + SYNC
    assert exchange.feed(exchange.postgres.feed(sent))[-1] == "ReadyForQuery I"


def test_without_tracking_names_go_as_they_are() -> None:
    exchange = Exchange(tracked=False)
    data = f.parse(b"a", ONE) + run(b"a", b"1") + f.close_statement(b"a") + SYNC
    assert exchange.plan(data) == data
    assert exchange.owed() == ["batch"]


def test_a_name_in_use_is_refused_by_postgres_and_the_error_names_it() -> None:
    exchange = prepared(b"a_rather_long_name")
    error, ready = exchange.send(f.parse(b"a_rather_long_name", TEXT) + SYNC)
    assert error == 'ErrorResponse ERROR 42P05 prepared statement "a_rather_long_name" already exists'
    assert ready == "ReadyForQuery I"
    assert exchange.send(run(b"a_rather_long_name") + SYNC)[1] == "DataRow 0"


# -- pipelines -------------------------------------------------------------------------------------------------------


def test_a_pipeline_relies_on_the_clients_own_parse_that_is_not_answered() -> None:
    """If it failed, so must what relies on it: as in Postgres."""
    exchange = Exchange()
    assert exchange.kinds(f.parse(b"a", ONE) + SYNC + run(b"a", b"1") + SYNC + run(b"a", b"2") + SYNC) == "PSBESBES"
    assert exchange.owed() == ["parse", "sync", "batch", "batch"]


def test_it_does_not_rely_on_an_injected_one() -> None:
    exchange = prepared(b"a")
    exchange.replies.prepared.clear()
    assert exchange.kinds(run(b"a") + SYNC + run(b"a") + SYNC) == "PBES" + "CPBES"
    assert exchange.owed() == ["parse", "bind", "execute", "sync", "hidden close", "parse", "bind", "execute", "sync"]


def test_a_parse_of_what_is_under_way_is_not_answered_here() -> None:
    exchange = Exchange()
    exchange.plan(f.parse(b"a", ONE) + SYNC)
    assert exchange.kinds(f.parse(b"b", ONE) + SYNC) == "CPS"


def test_a_thousand_queries_in_one_write() -> None:
    exchange = Exchange()
    received = exchange.send(once(b"select 1") + SYNC + (f.query(b"select 1") + once(b"select 2") + SYNC) * 500)
    assert received.count("ReadyForQuery I") == 1001
    assert exchange.replies.settled


# -- the unnamed statement -------------------------------------------------------------------------------------------


def test_it_goes_as_it_is_while_the_backend_has_it() -> None:
    exchange = Exchange()
    for data in (f.parse(b"", ONE) + SYNC, run(b"", b"1") + SYNC, f.describe_statement(b"") + SYNC):
        assert exchange.plan(data) == data
        exchange.feed(exchange.postgres.feed(data))


@pytest.mark.parametrize("other", [once(TEXT, b"x") + SYNC, f.query(b"select 1"), f.close_statement(b"") + SYNC])
def test_it_follows_its_session_where_others_were_in_between(other: bytes) -> None:
    exchange = Exchange()
    exchange.send(f.parse(b"", ONE) + SYNC)
    between = Exchange()
    between.replies, between.postgres = exchange.replies, exchange.postgres
    between.send(other)
    assert exchange.kinds(run(b"", b"1") + SYNC) == "PBES"


def test_one_that_nobody_parsed_is_not_another_sessions() -> None:
    first, second = Exchange(), Exchange()
    second.replies, second.postgres = first.replies, first.postgres
    first.send(f.parse(b"", ONE) + SYNC)
    for data in (run(b"", b"1") + SYNC, f.describe_statement(b"") + SYNC):
        assert second.send(data)[0] == "ErrorResponse ERROR 26000 unnamed prepared statement does not exist"


def test_a_later_batch_of_a_pipeline_does_not_rely_on_it() -> None:
    exchange = Exchange()
    assert exchange.kinds(f.parse(b"", ONE) + SYNC + run(b"", b"1") + SYNC) == "PSBES"
    assert exchange.kinds(run(b"", b"1") + SYNC) == "PBES"


def test_after_an_error_it_is_parsed_again() -> None:
    exchange = Exchange()
    exchange.send(f.parse(b"", ONE) + SYNC)
    exchange.send(run(b"no") + SYNC)
    assert exchange.kinds(run(b"", b"1") + SYNC) == "PBES"


# -- what is not sent ------------------------------------------------------------------------------------------------


def test_flush_of_a_batch_that_only_prepares_becomes_a_sync() -> None:
    exchange = Exchange()
    assert exchange.kinds(f.parse(b"a", ONE) + f.describe_statement(b"a") + FLUSH) == "PDS"
    assert exchange.requests.unpinned
    assert exchange.owed() == ["parse", "describe", "hidden sync"]
    assert not exchange.requests.open


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        (f.query(b"begin"), f.parse(b"a", ONE) + FLUSH),
        (b"", f.parse(b"a", ONE) + run(b"a", b"1") + FLUSH),
        (b"", f.parse(b"a", ONE) + f.describe_portal(b"") + FLUSH),
        (b"", f.parse(b"a", ONE) + f.close_portal(b"") + FLUSH),
        (b"", f.query(b"select 1") + f.parse(b"a", ONE) + FLUSH),
        (b"", f.parse(b"a", ONE) + FLUSH + f.parse(b"b", ONE)),
        (b"", f.parse(b"a", ONE) + SYNC + f.parse(b"b", ONE) + FLUSH),
        (f.parse(b"b", TEXT), f.parse(b"a", ONE) + FLUSH),
    ],
)
def test_other_flushes_go_as_they_are(before: bytes, sent: bytes) -> None:
    exchange = Exchange()
    if before:
        exchange.send(before)
    assert "H" in exchange.kinds(sent)
    assert not exchange.requests.unpinned


def test_behind_something_that_is_not_answered_a_flush_is_a_flush() -> None:
    """It might begin a transaction; but our own setting of parameters does not."""
    exchange = Exchange()
    exchange.plan(f.query(b"begin"))
    assert exchange.kinds(f.parse(b"a", ONE) + FLUSH) == "PH"
    exchange = Exchange()
    exchange.replies.push(owed.Applying(""))
    assert exchange.kinds(f.parse(b"a", ONE) + FLUSH) == "PS"


def test_flush_with_nothing_to_flush() -> None:
    exchange = Exchange()
    assert exchange.plan(FLUSH) == b""
    assert exchange.plan(f.query(b"select 1") + FLUSH) == f.query(b"select 1")


def test_terminate_goes_nowhere_nor_does_what_follows_it() -> None:
    exchange = Exchange()
    assert exchange.kinds(f.query(b"select 1") + f.TERMINATE_MESSAGE + f.query(b"select 2")) == "Q"
    assert exchange.requests.terminated
    assert exchange.owed() == ["query"]


def test_a_sync_in_the_middle_of_a_copy_goes_nowhere() -> None:
    exchange = Exchange()
    exchange.send(f.query(b"copy t from stdin"))
    assert exchange.kinds(SYNC + f.copy_data(b"1\n") + SYNC) == "d"
    assert exchange.kinds(f.COPY_DONE_MESSAGE + SYNC) == "cS"
    assert exchange.owed() == ["query", "sync"]


# -- large messages --------------------------------------------------------------------------------------------------


def test_of_a_large_bind_the_beginning_is_enough() -> None:
    exchange = prepared(b"name", b"longer_name")
    exchange.replies.prepared.clear()
    large = f.bind(b"portal", b"longer_name", [bytes(100_000)])
    sent = exchange.plan(large[:10_000])
    assert sent == f.parse(b"~0000000000", b"select 1") + large.replace(b"longer_name", b"~0000000000")[:10_000]
    assert exchange.owed() == ["parse", "bind"]
    assert exchange.requests.open


def test_a_large_bind_whose_new_name_has_another_length() -> None:
    exchange = prepared(b"a", b"b")
    large = f.bind(b"", b"b", [bytes(100_000)])
    assert exchange.plan(large[:9_000]) + large[9_000:] == f.bind(b"", b"~000000000000000", [bytes(100_000)])


def test_names_that_do_not_fit_into_the_beginning_are_refused() -> None:
    exchange = Exchange()
    with pytest.raises(BrokenRequest, match="names in a Bind message are too long"):
        exchange.plan(f.bind(b"portal", b"n" * 70_000)[:9_000])


# -- broken messages -------------------------------------------------------------------------------------------------


def test_what_no_client_may_send_in_a_session() -> None:
    exchange = Exchange()
    with pytest.raises(BrokenRequest, match="invalid message 'p'") as raised:
        exchange.plan(f.query(b"select 1") + f.password(b"x") + f.query(b"select 2"))
    assert raised.value.before == f.query(b"select 1")
    assert exchange.owed() == ["query"]


@pytest.mark.parametrize(
    "message",
    [
        encode(b"P"),
        encode(b"P", b"name"),
        encode(b"P", b"name\0"),
        encode(b"B"),
        encode(b"B", b"portal"),
        encode(b"B", b"portal\0a"),
        encode(b"D"),
        encode(b"D", b"S"),
        encode(b"D", b"Sa"),
        encode(b"D", b"Sa\0more"),
        encode(b"D", b"xa\0"),
        encode(b"C"),
        encode(b"C", b"Sa"),
        encode(b"C", b"xa\0"),
        encode(b"E"),
        encode(b"Q"),
        encode(b"Q", b"select 1"),
        encode(b"S", b"more"),
        encode(b"H", b"more"),
        encode(b"F"),
        encode(b"f"),
    ],
    ids=repr,
)
def test_malformed_messages_are_for_postgres_to_refuse(message: bytes) -> None:
    """They go on whole, and neither swallow nor become part of what follows."""
    exchange = prepared(b"a")
    following = f.describe_statement(b"a") + run(b"a") + SYNC
    sent = exchange.plan(message + following)
    end = following.replace(b"Sa\0", b"S~\0").replace(b"\0a\0", b"\0~\0")
    assert sent.endswith(end)
    if message[:1] not in b"P" and message[:1] != b"H":
        assert sent == message + end


# -- names in errors -------------------------------------------------------------------------------------------------


def test_errors_name_statements_as_the_client_does() -> None:
    exchange = prepared(b"first", b"second_one")
    asked = "ErrorResponse ERROR 08P01 bind message supplies 1 parameters, but prepared statement "
    for name in (b"first", b"second_one"):
        assert exchange.send(run(name, b"x") + SYNC)[0] == f'{asked}"{name.decode()}" requires 0'


def test_so_they_do_when_the_name_has_gone_in_the_meantime() -> None:
    exchange = prepared(b"first")
    answers = exchange.send(run(b"first", b"x") + f.close_statement(b"first") + SYNC)
    assert '"first" requires 0' in answers[0]
    # It was not closed after all.
    assert exchange.send(run(b"first") + SYNC)[1] == "DataRow 0"


def test_an_error_without_a_name_of_ours_is_passed_as_it_is() -> None:
    exchange = prepared(b"first")
    exchange.plan(f.query(b"x"))
    error = b.error("42601", 'syntax error at or near "~"')
    assert exchange.replies.feed(error) == error


def test_the_model_and_the_gateway_agree_on_what_a_backend_has() -> None:
    exchange = prepared(b"aa", b"bb", b"cc", prepared=2)
    assert {each.name.decode() for each in exchange.replies.prepared} == set(exchange.postgres.statements)
    exchange.send(f.query(b"deallocate all"))
    assert len(exchange.replies.prepared) == 0
    assert exchange.requests.statements == {}
    assert exchange.postgres.statements == PostgresModel().statements
