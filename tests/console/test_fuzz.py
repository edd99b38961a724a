"""Whatever is typed at the console or sent to it: commands, or an error of ours; in time that grows with its length."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.consoles import kinds
from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import encode, whole
from pgtrunk_gateway.console.calls import Call, Look, read
from pgtrunk_gateway.console.columns import Table
from pgtrunk_gateway.console.exchange import Exchange
from pgtrunk_gateway.console.registry import SHOWS, VERBS
from pgtrunk_gateway.console.reply import Reply
from pgtrunk_gateway.errors import GatewayError, InvalidArgument, InvalidCommand, NotAllowed

WORDS = (
    *SHOWS, *VERBS, "SHOW", "SELECT", "SET", "HELP", "TO", "=", ";", "'", '"', "''", '""', "--", "/*", "*/", "\n",
    " ", "0", "1.5", "-1", "p0", "'a b'", '"a b"', "client_encoding", "default_pool_size", "a" * 63, "b" * 300, "ä",
    "\0",
)  # fmt: skip
typed = st.one_of(
    st.text(max_size=100),
    st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
    st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=12).map("".join),
)


@settings(max_examples=200)
@given(typed)
def test_what_is_typed_is_commands_or_refused(sql: str) -> None:
    try:
        calls = read(sql)
    except (InvalidCommand, InvalidArgument) as error:
        assert len(error.message) < 200
    else:
        assert len(calls) <= len(sql)


@pytest.mark.parametrize(
    "part", ["'", '"', "''", "/*", "*/", "/* */", "--", "-", ".", ";", "= ", "a ", "SHOW a;", "'a"]
)
def test_no_length_takes_long(part: str) -> None:
    """With backtracking it would take until the test's deadline."""
    with contextlib.suppress(InvalidCommand, InvalidArgument):
        read("SHOW VERSION; " + part * ((1 << 18) // len(part)))


_bodies = st.one_of(
    st.binary(max_size=20),
    typed.map(lambda sql: sql.encode("utf-8", "surrogatepass") + b"\0"),
    st.binary(max_size=6).map(lambda rest: b"SS\0" + rest),
)
_messages = st.one_of(
    st.builds(lambda kind, body: encode(bytes([kind]), body), st.sampled_from(sorted(client.KINDS)), _bodies),
    typed.map(lambda sql: client.query(sql.encode("utf-8", "replace").replace(b"\0", b""))),
    st.sampled_from(
        [
            client.parse(b"", b"SHOW VERSION"),
            client.parse(b"s", b"SHOW POOLS"),
            client.bind(b"", b""),
            client.bind(b"p", b"s", binary=True),
            client.bind(b"", b"", [b"1"]),
            client.describe_statement(b"s"),
            client.describe_portal(b"p"),
            client.execute(b"", 0),
            client.execute(b"p", 1),
            client.close_statement(b"s"),
            client.close_portal(b""),
            client.SYNC_MESSAGE,
            client.FLUSH_MESSAGE,
        ]
    ),
    st.binary(max_size=12),
)


def answer(exchange: Exchange, call: Call) -> None:
    if isinstance(call, Look) and call.show.name != "VERSION":
        exchange.failed(NotAllowed())
    elif isinstance(call, Look):
        exchange.done(Reply("SHOW", Table(call.columns, [("a",), ("b",), (None,)])))
    else:
        exchange.done(Reply("DONE", notice="so it is"))


@settings(max_examples=200)
@given(st.lists(_messages, max_size=12), st.integers(1, 40))
def test_any_octets_are_answered_in_whole_messages_or_end_the_session(sent: list[bytes], size: int) -> None:
    exchange = Exchange()
    data = b"".join(sent)
    out = b""
    with contextlib.suppress(ProtocolViolation):
        for at in range(0, len(data), size):
            exchange.feed(data[at : at + size])
            while not exchange.ended and exchange.advance():
                if exchange.call is not None:
                    answer(exchange, exchange.call)
    out += exchange.take()
    assert whole(out) == len(out)
    assert set(kinds(out)) <= set("TDCNZEIn123tsd")


@given(st.lists(_messages, max_size=8))
def test_behind_any_of_it_a_query_is_answered(sent: list[bytes]) -> None:
    exchange = Exchange()
    try:
        for data in (*sent, client.SYNC_MESSAGE, client.query(b"SHOW VERSION")):
            exchange.feed(data)
            while not exchange.ended and exchange.advance():
                if exchange.call is not None:
                    answer(exchange, exchange.call)
    except (ProtocolViolation, GatewayError):
        return
    if not exchange.ended and not exchange._reader.rest():
        assert kinds(exchange.take()).endswith("TDDDCZ")
