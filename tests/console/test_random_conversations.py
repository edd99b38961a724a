"""Conversations at random: they stay in step, however they are cut, and what is kept of them is bounded."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from helpers.consoles import Room, kinds
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.console.calls import FAKES
from pgtrunk_gateway.console.columns import Table
from pgtrunk_gateway.console.exchange import Exchange
from pgtrunk_gateway.console.registry import SHOWS, VERBS
from pgtrunk_gateway.console.reply import Reply
from pgtrunk_gateway.console.words import statements
from pgtrunk_gateway.errors import InvalidCommand

# -- what is typed -----------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["SHOW", "set", "select", "to", "=", ";", "'", '"', "''", "--", "/*", "*/", "\n", " ", "0", "-1", "1.5", "p0", "é",
     "wait_for_clients", "help", "$1", "(", "\0", *SHOWS, *VERBS, *FAKES]
)  # fmt: skip
SQL = st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=12).map(" ".join), st.lists(WORDS).map("".join))


@given(SQL)
def test_words_are_what_was_written(sql: str) -> None:
    try:
        found = list(statements(sql))
    except InvalidCommand:
        return
    for statement in found:
        assert statement.words and statement.source in sql
    # What has been understood once is understood alone, too.
    for statement in found:
        (again,) = statements(statement.source)
        assert again.words == statement.words


# -- what is sent ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([b"", b"a", b"b"])
COMMANDS = st.sampled_from(
    [b"SHOW VERSION", b"SHOW POOLS", b"RELOAD", b"PAUSE p0", b"", b"nonsense", b"SHOW VERSION; RELOAD", b"SHOW HELP"]
)
FORMATS = st.lists(st.integers(0, 2), max_size=3).map(lambda codes: struct.pack(f"!H{len(codes)}H", len(codes), *codes))

MESSAGES = st.one_of(
    COMMANDS.map(client.query),
    st.builds(client.parse, NAMES, COMMANDS),
    st.builds(
        lambda portal, name, tail: encode(b"B", portal + b"\0" + name + b"\0\0\0\0\0" + tail), NAMES, NAMES, FORMATS
    ),
    NAMES.map(client.describe_statement),
    NAMES.map(client.describe_portal),
    st.builds(client.execute, NAMES, st.integers(-1, 4)),
    NAMES.map(client.close_statement),
    NAMES.map(client.close_portal),
    st.just(client.SYNC_MESSAGE),
    st.just(client.FLUSH_MESSAGE),
    st.just(client.COPY_DONE_MESSAGE),
    st.just(encode(b"F", b"\0" * 8)),
)
ROWS = 7


def answer(exchange: Exchange) -> None:
    assert exchange.call is not None
    columns = exchange.call.columns
    if columns:
        exchange.done(Reply("SHOW", Table(columns, ([None] * len(columns) for _ in range(ROWS)))))
    else:
        exchange.done(Reply("DONE"))


def converse(exchange: Exchange, data: bytes) -> bytes:
    exchange.feed(data)
    steps = 0
    while not exchange.ended and exchange.advance():
        steps += 1
        assert steps <= 20 * len(data) + 1000
        if exchange.call is not None:
            answer(exchange)
    return exchange.take()


@given(st.lists(MESSAGES, max_size=30))
def test_a_conversation_stays_in_step(conversation: list[bytes]) -> None:
    exchange = Exchange()
    out = converse(exchange, b"".join(conversation))
    # One ReadyForQuery for each message that calls for one, unless an error has it skipped until the next Sync.
    syncs = sum(message == client.SYNC_MESSAGE for message in conversation)
    most = syncs + sum(message[:1] in (b"Q", b"F") for message in conversation)
    assert syncs <= kinds(out).count("Z") <= most
    assert set(kinds(out)) <= set("123CDEIZTntNs")
    assert kinds(converse(exchange, client.SYNC_MESSAGE + client.query(b"RELOAD"))).endswith("ZCZ")


@given(st.lists(MESSAGES, max_size=10), st.data())
def test_the_same_in_pieces(conversation: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(conversation)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    exchange = Exchange()
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert b"".join(converse(exchange, piece) for piece in pieces) == converse(Exchange(), whole)


def test_what_is_kept_is_bounded() -> None:
    exchange = Exchange()
    # Statements, portals, and answers that were not fetched whole.
    for number in range(3000):
        name = b"%d" % number
        converse(exchange, client.parse(name, b"SHOW POOLS") + client.bind(name, name) + client.execute(name, 1))
        converse(exchange, client.SYNC_MESSAGE)
    assert len(exchange._statements) <= 1000 and not exchange._portals
    opening = b"".join(client.bind(b"%d" % number, b"0") for number in range(3000))
    converse(exchange, opening)
    assert len(exchange._portals) <= 100


async def test_a_session_survives_what_its_exchange_does() -> None:
    room = Room()
    visitor = await room.enter()
    for garbage in (b"Q\0\0\0\x08\xff\xff\xff\0", client.query(b"SELECT 1"), encode(b"F", b"")):
        assert kinds(await visitor.send(garbage)) == "EZ"
    await room.end()
