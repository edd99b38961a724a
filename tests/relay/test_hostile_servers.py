"""Whatever a server answers, in whatever pieces: nothing is raised, and the next session is served by another one."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.session_pair import SessionPair
from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import copy_data, parse, query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

_REQUESTS = [
    query(b"select 1"),
    query(b"begin"),
    query(b"discard all"),
    query(b"copy t from stdin"),
    once(b"select 1") + SYNC,
    parse(b"s", b"select $1::int") + FLUSH,
    parse(b"s", b"select 1") + run(b"s") + SYNC,
    run(b"s") + SYNC,
    copy_data(b"1\n"),
    SYNC,
]
_KINDS = b"123ACDEGHIKNRSTVWZcdnstvx\0\xff"
_honest = st.sampled_from(
    [
        server.ready(),
        server.ready(b"T"),
        server.ready(b"E"),
        server.ready(b"?"),
        server.PARSE_COMPLETE_MESSAGE,
        encode(b"2"),
        server.command_complete("SELECT 1"),
        server.command_complete("DISCARD ALL"),
        server.error("42601", "no"),
        server.error("0A000", "cached plan must not change result type"),
        server.error("57P01", "bye", severity="FATAL"),
        server.notice("00000", "hm"),
        server.parameter_status("TimeZone", "UTC"),
        server.data_row([b"1"]),
        encode(b"E", b"\0"),
        encode(b"E"),
        encode(b"G", b"\0\0\0"),
        encode(b"H", b"\0\0\0"),
        encode(b"s"),
        encode(b"n"),
        encode(b"Z"),
        encode(b"S", b"TimeZone"),
    ]
)
_answers = st.one_of(
    _honest,
    _honest,
    st.builds(lambda kind, body: encode(bytes([kind]), body), st.sampled_from(_KINDS), st.binary(max_size=12)),
    st.sampled_from([b"D\0\0\0\3", b"D\x7f\xff\xff\xff", b"Z\xff\xff\xff\xff", b"E\0\0\0\0", b"\0\0\0\0\0"]),
    st.binary(max_size=12),
)


@settings(max_examples=300)
@given(
    st.sampled_from(
        [
            Terms(),
            Terms(pool_mode="session", reset_query="DISCARD ALL", tracked=False),
            Terms(pool_mode="statement"),
            Terms(reset_query="DISCARD ALL"),
        ]
    ),
    st.lists(st.sampled_from(_REQUESTS), min_size=1, max_size=4),
    st.lists(_answers, max_size=8),
    st.randoms(use_true_random=False),
    st.booleans(),
)
async def test_nothing_that_a_server_answers_reaches_others(
    terms: Terms, requests: list[bytes], answers: list[bytes], dice: random.Random, vanishes: bool
) -> None:
    pair = SessionPair(backends=1, certain=dice.random() < 0.8, terms=terms)
    (link,) = pair.links
    # What the model of an honest server knows is not what this one has said.
    link.check_clean = lambda: None  # type: ignore[method-assign]
    client, other = pair.connect(TimeZone="Asia/Tokyo"), pair.connect()
    for request in requests:
        if client.transport.is_reading():
            client.feed(request)
    if vanishes and client.session.state is not State.CLOSED:
        client.vanish()
    data = b"".join(answers)
    while data and link.transport.is_reading():
        size = dice.choice([1, 3, 40, 1000])
        link.backend.data_received(data[:size])
        data = data[size:]
    if link.backend in pair.pool.free:
        replies = link.backend.replies
        assert replies.in_step and not replies.queue
    link.transport.closing = True
    link.backend.connection_lost(None)
    assert client.session.backend is None
    if client.session.state is not State.CLOSED:
        client.vanish()
    pair.open_backend()
    assert other.send(query(b"show timezone"))[1] == "DataRow UTC"
    assert other.send(once(b"select 5") + SYNC)[3] == "DataRow 5"
    assert pair.context.tally.total == 1
