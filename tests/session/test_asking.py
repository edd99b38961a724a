"""Inquiries and refused texts among the answers of a server: what of them a client sees, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.exchange import Exchange
from helpers.transcript import transcript
from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import encode, messages
from pgtrunk.wire.frontend import bind, execute, parse, query
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.inquiry import Inquiry
from pgtrunk_gateway.session.owed import Asking, Owed
from pgtrunk_gateway.session.parameters import pack, unpack
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.sql.traces import Pin, Traces
from pgtrunk_gateway.session.statements import Prepared
from pgtrunk_gateway.session.tracing import FAILS

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import SessionState

INQUIRY = Inquiry(("app.x", "lock_timeout", "role"), Pin.LISTEN | Pin.LOCK, "app")
ROWS = b"".join(
    b.data_row(row)
    for row in (
        [b"app.x", b"1", b"t"],
        [b"lock_timeout", b"0", b"f"],
        [b"role", b"none", b"t"],
        [b"1", None, b"t"],
        [b"4", None, b"f"],
    )
)
HEAD, DONE, READY = b.row_description(["n", "current_setting", "coalesce"]), b.command_complete("SELECT 5"), b.ready()
ANSWER = HEAD + ROWS + DONE + READY
NOTIFICATION = encode(b"A", b"\0\0\0\1news\0hello\0")


def asking(*behind: Owed, inquiry: Inquiry = INQUIRY) -> Replies:
    replies = Replies(Prepared(10), {"TimeZone": "UTC"})
    replies.push(Asking(inquiry))
    replies.extend(list(behind))
    return replies


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


# -- inquiries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 30, 1000])
def test_nobody_sees_the_answer_and_it_is_read(size: int) -> None:
    replies = asking(owed.QUERY)
    behind = b.row_description(["a"]) + b.data_row([b"x"]) + b.command_complete("SELECT 1") + READY
    assert b"".join(replies.feed(piece) for piece in pieces(ANSWER + behind, size)) == behind
    assert replies.settled
    answer = replies.answer
    assert answer is not None
    assert answer.settings == {"app.x": "1"}
    assert answer.unset == {"lock_timeout", "role"}
    assert (answer.pins, answer.asked) == (Pin.LISTEN, Pin.LISTEN | Pin.LOCK)
    assert replies.others == pack({"app.x": "1"})
    assert replies.profile_changed and not replies.parameters_changed
    assert replies.noted and not replies.failed_inquiry


@given(st.integers(0, 300_000), st.lists(st.integers(1, 70_000), min_size=1, max_size=12))
def test_values_of_any_length_in_any_pieces(length: int, sizes: list[int]) -> None:
    value = b"v" * length
    data = HEAD + b.data_row([b"app.x", value, b"t"]) + b.data_row([b"1", None, b"t"]) + DONE + READY
    replies, at = asking(), 0
    while at < len(data):
        size = sizes[0]
        sizes = [*sizes[1:], size]
        assert replies.feed(data[at : at + size]) == b""
        at += size
    assert replies.settled and replies.in_step
    assert replies.answer is not None
    assert replies.answer.settings == {"app.x": value.decode()}
    assert replies.answer.pins == Pin.LISTEN


def test_values_are_octets() -> None:
    replies = asking()
    replies.feed(HEAD + b.data_row([b"app.x", b"gr\xf6\xdfe", b"t"]) + DONE + READY)
    assert unpack(replies.others)["app.x"] == b"gr\xf6\xdfe".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_failure_is_seen_by_nobody_and_noted(size: int) -> None:
    replies = asking(owed.QUERY)
    replies.others = pack({"app.x": "0"})
    failure = HEAD + b.data_row([b"app.x", b"1", b"t"]) + b.error("57014", "canceling statement")
    behind = b.command_complete("SELECT 1") + READY
    assert b"".join(replies.feed(piece) for piece in pieces(failure + READY + behind, size)) == behind
    assert replies.answer is None and replies.failed_inquiry
    # What it has is what it had: who cannot tell must not give it away.
    assert replies.others == pack({"app.x": "0"})
    replies.take_notes()
    assert not replies.failed_inquiry


def test_the_end_of_the_connection_is_not_the_answer() -> None:
    replies = asking()
    last = b.error("57P01", "terminating connection", severity="FATAL")
    assert replies.feed(last) == last
    assert replies.fatal is not None


@pytest.mark.parametrize(
    "row",
    [[b"app.x", b"1"], [b"app.x", b"1", b"t", b"x"], []],
)
def test_rows_that_are_none(row: list[bytes | None]) -> None:
    replies = asking()
    replies.feed(b.data_row(row) + DONE + READY)
    assert not replies.in_step
    assert replies.failed_inquiry


def test_what_comes_in_between() -> None:
    replies = asking()
    replies.notifies = True
    zone = b.parameter_status("TimeZone", "GMT")
    data = HEAD + NOTIFICATION + b.notice("00000", "hello") + ROWS + DONE + zone + READY
    assert replies.feed(data) == NOTIFICATION
    assert replies.parameters["TimeZone"] == "GMT" and "TimeZone" not in replies.shown
    assert replies.parameters_changed
    replies = asking()
    assert replies.feed(data) == b""


def test_pins_alone_change_no_setting() -> None:
    replies = asking(inquiry=Inquiry((), Pin.LISTEN, "app"))
    replies.others = pack({"app.x": "1"})
    replies.feed(b.data_row([b"1", None, b"f"]) + DONE + READY)
    assert replies.answer is not None and replies.answer.pins == Pin.NONE
    assert replies.others == pack({"app.x": "1"})


def test_the_first_value_of_a_setting_counts() -> None:
    """Asked for before it was changed for the asking."""
    replies = asking(inquiry=Inquiry(("statement_timeout",), Pin.NONE, "app"))
    first, none, again = (
        b.data_row(row)
        for row in (
            [b"statement_timeout", b"1ms", b"t"],
            [b"", b"0", b"f"],
            [b"statement_timeout", b"0", b"t"],
        )
    )
    done = b.command_complete("SELECT 1")
    assert replies.feed(HEAD + first + done + HEAD + none + done + HEAD + again + done + READY) == b""
    assert replies.answer is not None
    assert replies.answer.settings == {"statement_timeout": "1ms"}


@pytest.mark.parametrize(("tag", "loaded"), [("LOAD", True), ("CALL", False), ("SELECT 1", False)])
def test_that_a_library_was_loaded_shows_by_its_tag(tag: str, loaded: bool) -> None:
    for entries in ([owed.QUERY], [owed.EXECUTE, owed.SYNC], [owed.BATCH]):
        replies = Replies(Prepared(10), {})
        replies.extend(list(entries))
        answer = b.command_complete(tag) + READY
        assert replies.feed(answer) == answer
        assert replies.loaded is loaded and replies.noted is loaded


# -- refused texts -----------------------------------------------------------------------------------------------------

REFUSED = "ErrorResponse ERROR 0A000 LISTEN: this needs a server connection of the session's own"


def refusing(*, tracked: bool = True) -> Exchange:
    exchange = Exchange(tracked=tracked)
    exchange.requests.session_state = "error"
    return exchange


def split_up(exchange: Exchange, data: bytes, size: int) -> list[str]:
    """What the client gets, when the answers come in pieces of this size."""
    answers = exchange.postgres.feed(exchange.plan(data))
    given = exchange.replies.take_given()
    return transcript(given + b"".join(exchange.replies.feed(piece) for piece in pieces(answers, size)))


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
def test_a_query_is_refused_in_its_place(size: int) -> None:
    exchange = refusing()
    told = split_up(exchange, query(b"select 1") + query(b"listen news") + query(b"select 2"), size)
    assert told == [
        *("RowDescription ?column?:23", "DataRow 1", "CommandComplete SELECT 1", "ReadyForQuery I"),
        *(REFUSED, "ReadyForQuery I"),
        *("RowDescription ?column?:23", "DataRow 2", "CommandComplete SELECT 1", "ReadyForQuery I"),
    ]
    assert not exchange.postgres.session.belongings.pins


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("name", [b"", b"s"])
def test_a_parse_is_refused_and_the_rest_of_the_batch_skipped(name: bytes, size: int) -> None:
    exchange = refusing()
    batch = once(b"select 1") + parse(name, b"listen news") + run(name) + SYNC + query(b"select 2")
    told = split_up(exchange, batch, size)
    assert told[-6:-4] == [REFUSED, "ReadyForQuery I"]
    assert told[-3] == "DataRow 2"
    assert exchange.send(run(name) + SYNC)[0].startswith("ErrorResponse ERROR 26000")
    assert not exchange.postgres.session.belongings.pins


def test_it_fails_the_transaction_as_any_error() -> None:
    exchange = refusing()
    exchange.send(query(b"begin"))
    exchange.send(query(b"insert into t values (1)"))
    assert exchange.send(query(b"listen news")) == [REFUSED, "ReadyForQuery E"]
    assert exchange.send(query(b"select 1"))[0].startswith("ErrorResponse ERROR 25P02")
    assert exchange.send(query(b"commit")) == ["CommandComplete ROLLBACK", "ReadyForQuery I"]
    assert exchange.postgres.store.tables == {}


def test_statements_from_before_stay() -> None:
    exchange = refusing()
    exchange.send(parse(b"s", b"select 1") + parse(b"", b"select 2") + SYNC)
    assert exchange.send(parse(b"s", b"listen news") + SYNC) == [REFUSED, "ReadyForQuery I"]
    assert exchange.send(run(b"s") + SYNC)[1] == "DataRow 1"
    assert exchange.send(run(b"") + SYNC)[1] == "DataRow 2"


@pytest.mark.parametrize("request_", [query(b"listen news"), parse(b"", b"listen news") + SYNC])
def test_the_unnamed_statement_from_before_is_gone(request_: bytes) -> None:
    """As it is where Postgres refuses it."""
    exchange = refusing()
    exchange.send(parse(b"", b"select 2") + SYNC)
    exchange.send(request_)
    assert exchange.send(run(b"") + SYNC)[0].startswith("ErrorResponse ERROR 26000")


@pytest.mark.parametrize("refused", [query(b"listen news"), parse(b"", b"listen news") + FLUSH])
def test_what_is_refused_and_skipped_has_changed_nothing(refused: bytes) -> None:
    exchange = refusing()
    exchange.send(parse(b"", b"select 2") + SYNC)
    assert exchange.send(run(b"no") + refused + SYNC)[0].startswith("ErrorResponse ERROR 26000")
    assert exchange.send(run(b"") + SYNC)[1] == "DataRow 2"


def test_prepare_is_refused_too() -> None:
    exchange = refusing()
    assert exchange.send(query(b"prepare p as select pg_advisory_lock(1)"))[0].startswith("ErrorResponse ERROR 0A000")
    assert exchange.send(query(b"do $$ begin perform pg_advisory_lock(1); end $$"))[0].startswith(
        "ErrorResponse ERROR 0A000 advisory lock: "
    )


def test_named_statements_that_do_not_follow_are_refused_too() -> None:
    exchange = refusing(tracked=False)
    assert exchange.send(parse(b"s", b"listen news") + SYNC) == [REFUSED, "ReadyForQuery I"]
    assert exchange.send(run(b"s") + SYNC)[0].startswith("ErrorResponse ERROR 26000")


def test_settings_are_not_refused() -> None:
    exchange = refusing()
    assert exchange.send(query(b"set lock_timeout = '5s'")) == ["CommandComplete SET", "ReadyForQuery I"]


def test_what_comes_in_parts_is_not_refused_since_its_rest_is_sent_as_it_is() -> None:
    exchange = refusing()
    whole = query(b"listen news; select '" + b"x" * 100_000 + b"'")
    assert exchange.plan(whole[:9000]) == whole[:9000]
    assert exchange.owed() == ["query"]


def test_what_is_sent_in_the_place_of_a_refused_text_is_no_sql() -> None:
    exchange = refusing()
    assert len(list(messages(exchange.plan(query(b"listen news"))))) == 1
    assert exchange.postgres.feed(query(FAILS))[:1] == b"E"


# -- what is noted -----------------------------------------------------------------------------------------------------


def noting(session_state: SessionState = "pin", *, tracked: bool = True) -> tuple[Exchange, list[Traces]]:
    exchange, noted = Exchange(tracked=tracked), list[Traces]()
    exchange.requests._stir = noted.append
    exchange.requests.session_state = session_state
    return exchange, noted


LISTEN = Traces(pins=Pin.LISTEN)


@pytest.mark.parametrize(
    "request_",
    [
        query(b"listen news"),
        query(b"select 1") + query(b"listen news"),
        once(b"listen news") + SYNC,
        parse(b"s", b"listen news") + run(b"s") + SYNC,
        query(b"select 1; listen news; select 2"),
    ],
)
@pytest.mark.parametrize("tracked", [True, False])
def test_what_is_sent_is_noted(request_: bytes, tracked: bool) -> None:
    exchange, noted = noting(tracked=tracked)
    exchange.plan(request_)
    assert noted == [LISTEN]
    assert exchange.requests.take_touched() == LISTEN
    assert not exchange.requests.touched


def test_what_is_only_prepared_is_not() -> None:
    exchange, noted = noting()
    exchange.send(parse(b"s", b"listen news") + SYNC)
    assert noted == []
    for _ in range(2):
        exchange.send(run(b"s") + SYNC)
    assert noted == [LISTEN, LISTEN]


def test_a_statement_is_noted_under_other_settings_too() -> None:
    exchange, noted = noting()
    exchange.send(parse(b"s", b"listen news") + SYNC)
    exchange.requests.speak(("LATIN1", "on", "ISO, MDY", "postgres", "UTC"))
    exchange.send(run(b"s") + SYNC)
    exchange.requests.retire()
    exchange.send(run(b"s") + SYNC)
    assert noted == [LISTEN, LISTEN]


def test_sql_that_names_a_statement_is_noted_when_it_is_run() -> None:
    exchange, noted = noting()
    exchange.send(parse(b"p", b"select set_config('app.x', '1', false)") + SYNC)
    exchange.plan(parse(b"e", b"execute p") + SYNC)
    assert noted == []
    exchange.plan(run(b"e") + SYNC)
    exchange.plan(query(b"execute p"))
    assert noted == [Traces(frozenset({"app.x"}))] * 2


def test_names_that_are_parameters_are_read_from_bind() -> None:
    exchange, noted = noting()
    exchange.send(parse(b"s", b"select set_config($1, $2, false)") + SYNC)
    exchange.plan(bind(b"", b"s", [b"app.x", b"1"]) + execute() + SYNC)
    exchange.plan(bind(b"", b"s", [b"TIMEZONE", b"UTC"]) + execute() + SYNC)
    assert noted == [Traces(frozenset({"app.x"})), Traces(frozenset({"TimeZone"}))]
    # A statement of SQL's has its parameters in another place.
    noted.clear()
    exchange.plan(query(b"prepare q(text, text) as select set_config($1, $2, false)"))
    assert not any(traces.pins for traces in noted)
    exchange.plan(query(b"execute q('app.x', '1')"))
    assert noted[-1] == Traces(pins=Pin.SETTINGS)


def test_a_value_that_has_not_come_yet_names_nothing_that_is_known() -> None:
    exchange, noted = noting()
    exchange.plan(parse(b"s", b"select set_config($2, $1, false)") + SYNC)
    whole = bind(b"", b"s", [b"x" * 100_000, b"app.x"])
    exchange.plan(whole[:9000])
    assert noted == [Traces(pins=Pin.SETTINGS)]


def test_a_text_in_parts_is_noted_part_by_part() -> None:
    exchange, noted = noting()
    whole = query(b"insert into t values (1); " + b"-" * 70_000 + b"\nset lock_timeout = '5s'; listen news")
    exchange.plan(whole[:9000])
    assert noted == []
    for at in range(9000, len(whole), 7000):
        part = whole[at : at + 7000]
        exchange.requests.read_on(part, more=at + len(part) < len(whole))
    touched = exchange.requests.take_touched()
    assert touched.names == {"lock_timeout"} and touched.pins == Pin.LISTEN
    # The rest of another message is none of a text.
    exchange.plan(bind(b"", b"", [b"x" * 100_000])[:9000])
    exchange.requests.read_on(b"; listen news", more=False)
    assert not exchange.requests.touched


def test_what_is_ignored_is_not_noted_but_settings_are() -> None:
    exchange, noted = noting("ignore")
    exchange.plan(query(b"listen news; set lock_timeout = '5s'; unlisten *"))
    exchange.plan(query(b"listen news"))
    assert noted == [Traces(frozenset({"lock_timeout"}))]


def test_in_session_mode_nothing_is_noted() -> None:
    exchange, noted = noting()
    exchange.requests.session_state = None
    exchange.plan(query(b"listen news; set lock_timeout = '5s'"))
    assert noted == []
