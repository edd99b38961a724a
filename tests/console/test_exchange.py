"""The console's protocol, octets in and out: both kinds of it, all at once and one by one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from helpers.consoles import cells, error, kinds, notices, rows, tags
from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.console.calls import Call, Look
from pgtrunk_gateway.console.columns import Row, Table, ints
from pgtrunk_gateway.console.exchange import Exchange
from pgtrunk_gateway.console.reply import Reply
from pgtrunk_gateway.errors import NotAllowed

COLUMNS = ints("n square")


def answer(exchange: Exchange, call: Call, length: int = 0) -> None:
    """VERSION gives a table of numbers, another show what has gone wrong, and all else is done."""
    match call:
        case Look(show) if show.name == "VERSION":
            table: Iterator[Row] = ((n, n * n) for n in range(length))
            exchange.done(Reply("SHOW", Table(call.columns if length == 0 else COLUMNS, table)))
        case Look():
            exchange.failed(NotAllowed())
        case _:
            exchange.done(Reply("DONE", notice="so it is", detail="at last"))


def converse(exchange: Exchange, data: bytes, length: int = 0) -> bytes:
    exchange.feed(data)
    while not exchange.ended and exchange.advance():
        if exchange.call is not None:
            answer(exchange, exchange.call, length)
    return exchange.take()


def extended(sql: bytes, *, binary: bool = False, limit: int = 0) -> bytes:
    return (
        client.parse(b"", sql)
        + client.describe_statement(b"")
        + client.bind(b"", b"", binary=binary)
        + client.describe_portal(b"")
        + client.execute(b"", limit)
    )


# -- the simple protocol -----------------------------------------------------------------------------------------------


def test_a_table() -> None:
    out = converse(Exchange(), client.query(b"SHOW VERSION"), 2)
    assert kinds(out) == "TDDCZ"
    assert rows(out) == [{"n": "0", "square": "0"}, {"n": "1", "square": "1"}]
    assert tags(out) == ["SHOW"]


def test_a_notice_comes_before_the_end() -> None:
    out = converse(Exchange(), client.query(b"RELOAD"))
    assert kinds(out) == "NCZ"
    (notice,) = notices(out)
    assert (notice.severity, notice.sqlstate, notice.message, notice.detail) == (
        "NOTICE", "00000", "so it is", "at last",
    )  # fmt: skip


def test_several_statements_have_one_end() -> None:
    assert kinds(converse(Exchange(), client.query(b"RELOAD; SHOW VERSION; RELOAD"), 1)) == "NCTDCNCZ"


def test_nothing_is_an_empty_query() -> None:
    assert kinds(converse(Exchange(), client.query(b" ; -- nothing"))) == "IZ"


def test_none_of_several_statements_is_run_when_one_is_none() -> None:
    out = converse(Exchange(), client.query(b"RELOAD; nonsense"))
    assert kinds(out) == "EZ" and error(out).sqlstate == "42601"


def test_an_error_ends_the_query_and_not_the_session() -> None:
    exchange = Exchange()
    out = converse(exchange, client.query(b"RELOAD; SHOW POOLS; RELOAD") + client.query(b"RELOAD"))
    assert kinds(out) == "NCEZNCZ"
    assert error(out).severity == "ERROR"


def test_other_encodings_and_function_calls_are_refused() -> None:
    exchange = Exchange()
    assert error(converse(exchange, client.query(b"PAUSE \xff"))).sqlstate == "22021"
    out = converse(exchange, encode(b"F", b"\0\0\0\1"))
    assert kinds(out) == "EZ" and error(out).sqlstate == "0A000"
    assert kinds(converse(exchange, client.query(b"RELOAD"))) == "NCZ"


# -- the extended protocol ---------------------------------------------------------------------------------------------


def test_a_statement_is_described_before_it_has_run() -> None:
    exchange = Exchange()
    out = converse(exchange, client.parse(b"s", b"SHOW VERSION") + client.describe_statement(b"s"))
    assert kinds(out) == "1tT"
    out = converse(exchange, client.bind(b"", b"s") + client.execute() + client.SYNC_MESSAGE)
    assert kinds(out) == "2CZ"


@pytest.mark.parametrize("binary", [False, True])
def test_rows_in_the_format_that_was_asked_for(binary: bool) -> None:
    exchange = Exchange()
    exchange.feed(extended(b"SHOW LISTS", binary=binary) + client.SYNC_MESSAGE)
    while exchange.advance():
        if exchange.call is not None:
            exchange.done(Reply("SHOW", Table(exchange.call.columns, [("x", 258)])))
    out = exchange.take()
    assert kinds(out) == "1tT2TDCZ"
    assert cells(out) == [[b"x", b"\0\0\1\2" if binary else b"258"]]


def test_what_has_no_rows_has_no_description() -> None:
    assert kinds(converse(Exchange(), extended(b"RELOAD") + client.SYNC_MESSAGE)) == "1tn2nNCZ"
    assert kinds(converse(Exchange(), extended(b" ;") + client.SYNC_MESSAGE)) == "1tn2nIZ"


def test_a_portal_gives_as_many_rows_as_are_asked_for() -> None:
    exchange = Exchange()
    opening = client.parse(b"", b"SHOW VERSION") + client.bind(b"p", b"")
    out = converse(exchange, opening + client.execute(b"p", 2), 5)
    assert kinds(out) == "12DDs"
    assert cells(converse(exchange, client.execute(b"p", 2))) == [[b"2", b"4"], [b"3", b"9"]]
    assert kinds(converse(exchange, client.execute(b"p", 2))) == "DC"
    out = converse(exchange, client.execute(b"p", 2) + client.SYNC_MESSAGE)
    assert kinds(out) == "EZ" and error(out).sqlstate == "55000"


def test_as_many_rows_as_there_are_is_the_end() -> None:
    exchange = Exchange()
    out = converse(exchange, client.parse(b"", b"SHOW VERSION") + client.bind(b"", b"") + client.execute(b"", 2), 2)
    assert kinds(out) == "12DDC"


def test_an_error_skips_all_until_sync() -> None:
    exchange = Exchange()
    broken = client.parse(b"", b"nonsense") + client.bind(b"", b"") + client.execute() + client.query(b"RELOAD")
    assert kinds(converse(exchange, broken)) == "E"
    assert kinds(converse(exchange, client.FLUSH_MESSAGE + client.SYNC_MESSAGE)) == "Z"
    assert kinds(converse(exchange, client.query(b"RELOAD"))) == "NCZ"


def test_a_command_that_fails_does_so_too() -> None:
    out = converse(Exchange(), extended(b"SHOW POOLS") + extended(b"RELOAD") + client.SYNC_MESSAGE)
    assert kinds(out) == "1tT2TEZ" and error(out).sqlstate == "42501"


def test_portals_end_with_sync_and_statements_do_not() -> None:
    exchange = Exchange()
    converse(exchange, client.parse(b"s", b"RELOAD") + client.bind(b"p", b"s") + client.SYNC_MESSAGE)
    out = converse(exchange, client.execute(b"p") + client.SYNC_MESSAGE)
    assert error(out).sqlstate == "34000"
    out = converse(exchange, client.parse(b"s", b"RELOAD") + client.SYNC_MESSAGE)
    assert error(out).sqlstate == "42P05"
    out = converse(exchange, client.close_statement(b"s") + client.bind(b"", b"s") + client.SYNC_MESSAGE)
    assert kinds(out) == "3EZ" and error(out).sqlstate == "26000"


def test_a_portal_is_closed_and_its_name_free() -> None:
    exchange = Exchange()
    opening = client.parse(b"", b"RELOAD") + client.bind(b"p", b"")
    assert kinds(converse(exchange, opening + client.close_portal(b"p") + client.bind(b"p", b""))) == "1232"
    assert error(converse(exchange, client.bind(b"p", b""))).sqlstate == "42P03"


def bind(parameters: int = 0, formats: tuple[int, ...] = ()) -> bytes:
    values = b"\xff\xff\xff\xff" * parameters
    tail = struct.pack(f"!H{len(formats)}H", len(formats), *formats)
    return encode(b"B", b"\0\0" + struct.pack("!HH", 0, parameters) + values + tail)


@pytest.mark.parametrize(
    ("message", "sqlstate", "words"),
    [
        (bind(parameters=1), "08P01", "supplies 1 parameters"),
        (bind(formats=(0, 0)), "08P01", "2 result formats but query has 1 columns"),
        (bind(formats=(2,)), "22023", "unsupported format code"),
        (client.parse(b"", b"RELOAD; RELOAD"), "42601", "multiple commands"),
        (client.parse(b"", b"SELECT t.oid FROM pg_catalog.pg_type t WHERE oid = $1"), "42601", "invalid command"),
        (client.describe_statement(b"no"), "26000", '"no" does not exist'),
        (client.describe_portal(b"no"), "34000", '"no" does not exist'),
    ],
)
def test_what_is_refused(message: bytes, sqlstate: str, words: str) -> None:
    exchange = Exchange()
    out = converse(exchange, client.parse(b"", b"SHOW VERSION") + message + client.SYNC_MESSAGE)
    assert kinds(out) == "1EZ"
    assert error(out).sqlstate == sqlstate and words in error(out).message


def test_statements_are_bounded() -> None:
    exchange = Exchange()
    out = converse(exchange, b"".join(client.parse(b"%d" % n, b"RELOAD") for n in range(1001)) + client.SYNC_MESSAGE)
    assert kinds(out) == "1" * 1000 + "EZ"
    assert error(out).sqlstate == "54000"


def test_portals_are_bounded_and_so_are_names() -> None:
    exchange = Exchange()
    binds = b"".join(client.bind(b"%d" % n, b"") for n in range(101))
    out = converse(exchange, client.parse(b"", b"RELOAD") + binds + client.SYNC_MESSAGE)
    assert kinds(out) == "1" + "2" * 100 + "EZ" and error(out).sqlstate == "54000"
    assert kinds(converse(exchange, client.parse(b"n" * 1024, b"RELOAD") + client.SYNC_MESSAGE)) == "1Z"
    out = converse(exchange, client.parse(b"n" * 1025, b"RELOAD") + client.SYNC_MESSAGE)
    assert kinds(out) == "EZ" and error(out).sqlstate == "54000"


# -- both --------------------------------------------------------------------------------------------------------------


def test_goodbye_is_heard_behind_an_error_too() -> None:
    exchange = Exchange()
    converse(exchange, client.parse(b"", b"nonsense") + client.TERMINATE_MESSAGE + client.query(b"RELOAD"))
    assert exchange.ended


@pytest.mark.parametrize(
    "garbage", [b"p\0\0\0\4", b"\x01\0\0\0\4", b"Q\0\0\0\3", b"Q\x7f\0\0\0", b"Q\0\0\0\5a", encode(b"B", b"\0\0")]
)
def test_what_ends_a_session(garbage: bytes) -> None:
    exchange = Exchange()
    opening = client.parse(b"", b"RELOAD")
    with pytest.raises(ProtocolViolation):
        converse(exchange, opening + garbage)


def test_octet_by_octet() -> None:
    conversation = extended(b"SHOW VERSION") + client.SYNC_MESSAGE + client.query(b"RELOAD; SHOW VERSION")
    whole = converse(Exchange(), conversation, 3)
    exchange = Exchange()
    assert b"".join(converse(exchange, bytes([octet]), 3) for octet in conversation) == whole


def test_long_answers_are_made_in_parts() -> None:
    exchange = Exchange()
    exchange.feed(client.query(b"SHOW VERSION"))
    most = steps = 0
    while exchange.advance():
        if exchange.call is not None:
            answer(exchange, exchange.call, 10_000)
        most, steps = max(most, exchange.size), steps + 1
        exchange.take()
    assert steps > 100
    assert most < 5000
