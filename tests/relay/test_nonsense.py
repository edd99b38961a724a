"""Whatever a client sends, in whatever order and pieces: nothing is raised, and the next session notices nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.conversations import FLUSH, MALFORMED, SYNC, once, run
from helpers.session_pair import SessionPair
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    KINDS,
    TERMINATE_MESSAGE,
    bind,
    close_statement,
    copy_data,
    copy_fail,
    describe_statement,
    parse,
    query,
)
from pgtrunk_gateway.errors import QueryWaitTimeout
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

_GOOD = [
    query(b"select 1"),
    query(b"begin"),
    query(b"insert into t values (1); select 1/0"),
    query(b"copy t from stdin"),
    query(b"select pg_sleep(1)"),
    query(b"discard all"),
    once(b"select 1/0"),
    once(b"copy t from stdin"),
    once(b"insert into t values (1)"),
    once(b"select pg_sleep(1)"),
    parse(b"s", b"select $1::int"),
    parse(b"s", b"select $1::int") + describe_statement(b"s") + FLUSH,
    parse(b"s", b"selec") + describe_statement(b"s") + FLUSH,
    run(b"s", b"1"),
    run(b"no"),
    run(b""),
    close_statement(b"s"),
    bind(b"", b"s", [bytes(70_000)]),
    query(b"select '" + b"x" * 70_000 + b"'"),
    copy_data(b"1\n"),
    copy_data(b"x\n"),
    copy_data(b"1\n" * 40_000),
    copy_fail(b"no"),
    COPY_DONE_MESSAGE,
    SYNC,
    SYNC,
    SYNC,
    FLUSH,
]
_BAD = [TERMINATE_MESSAGE, encode(b"p", b"x\0"), encode(b"y"), b"Q\0\0\0\3", b"\0"]
_messages = st.one_of(
    st.sampled_from(_GOOD),
    st.sampled_from(_GOOD),
    st.sampled_from(MALFORMED),
    st.builds(lambda kind, body: encode(bytes([kind]), body), st.sampled_from(sorted(KINDS)), st.binary(max_size=12)),
    st.sampled_from(_BAD),
)
_TERMS = [
    Terms(),
    Terms(pool_mode="session", reset_query="DISCARD ALL", tracked=False),
    Terms(pool_mode="statement"),
    Terms(reset_query="DISCARD ALL"),
]
_events = st.one_of(
    _messages,
    _messages,
    _messages,
    st.sampled_from(
        ["pump", "wake", "cancel", "cancels end", "refuse", "full", "drained", "backend full", "lost", "kill"]
    ),
    st.sampled_from(_TERMS),
)


class Pieces:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            size = self.dice.choice([1, 3, 40, 5_000, 100_000])
            yield data[:size]
            data = data[size:]


@settings(max_examples=300)
@given(
    st.sampled_from(_TERMS),
    st.lists(_events, max_size=25),
    st.integers(0, 2),
    st.booleans(),
    st.randoms(use_true_random=False),
)
async def test_nothing_that_a_client_does_reaches_the_next(
    terms: Terms, events: list[bytes | str | Terms], backends: int, certain: bool, dice: random.Random
) -> None:
    pair = SessionPair(backends=backends, split=Pieces(dice), certain=certain, terms=terms)
    client, other = pair.connect(TimeZone="Asia/Tokyo"), pair.connect()
    for event in events:
        if isinstance(event, bytes):
            client.write(event)
            if dice.random() < 0.7:
                pair.pump()
        elif isinstance(event, Terms):
            assert client.session.admission is not None
            client.session.admission.terms = event
            client.session.reconfigure()
        elif event == "kill":
            client.session.kill()
        elif event == "pump":
            pair.pump()
        elif event == "wake":
            pair.wake()
        elif event == "cancel" and client.session.backend is not None:
            pair.cancels.cancel(client.session.backend)
        elif event == "cancels end":
            pair.finish_cancels()
        elif event == "refuse":
            client.session.refuse(QueryWaitTimeout(severity="ERROR"))
        elif event == "full":
            client.session.pause_writing()
        elif event == "drained":
            client.session.resume_writing()
        elif event == "backend full" and client.session.backend is not None:
            client.session.backend.pause_writing()
            client.session.backend_drained()
        elif event == "lost" and client.session.backend is not None:
            client.session.backend.transport.abort()
            client.session.backend.connection_lost(ConnectionResetError())
    if client.session.state is not State.CLOSED:
        client.vanish()
    client.outbox = []
    pair.pump()
    for _ in range(3):
        pair.finish_cancels()
        pair.wake()
    for backend in list(pair.pool.free):
        assert not backend.transport.is_closing()
    pair.check_idle()
    if not pair.pool.free:
        pair.open_backend()
    assert other.send(query(b"show timezone"))[1] == "DataRow UTC"
    assert other.send(once(b"select 5") + SYNC)[3] == "DataRow 5"
    assert pair.context.admitted == 1
