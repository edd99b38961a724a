"""What is counted of a session, and what SHOW CLIENTS tells of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from helpers.conversations import FLUSH, SYNC, once, run
from helpers.session_pair import SessionPair
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, describe_statement, parse, query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

SESSION = Terms(pool_mode="session", tracked=False)
BLOCK = [query(b"begin"), query(b"select 1"), query(b"commit")]
PREPARE = parse(b"s", b"select $1::int") + describe_statement(b"s") + FLUSH


@pytest.mark.parametrize("terms", [Terms(), SESSION, Terms(query_timeout=60), Terms(lazy_begin=True)])
@pytest.mark.parametrize(
    ("steps", "transactions", "queries"),
    [
        ([], 0, 0),
        ([query(b"select 1")], 1, 1),
        ([query(b"select 1")] * 3, 3, 3),
        ([query(b"select 1/0")], 1, 1),
        ([once(b"select 1") + SYNC], 1, 1),
        ([once(b"select 1") + FLUSH, SYNC], 1, 1),
        (BLOCK, 1, 3),
        ([BLOCK[0], BLOCK[2]], 1, 2),
        (BLOCK * 2 + [query(b"select 1")], 3, 7),
        # What is pipelined is one: it is over when nothing is owed any more.
        ([query(b"select 1") + query(b"select 2")], 1, 1),
        ([b"".join(BLOCK)], 1, 1),
    ],
)
async def test_transactions_and_queries(terms: Terms, steps: list[bytes], transactions: int, queries: int) -> None:
    pair = SessionPair(backends=1, terms=terms)
    client = pair.connect()
    for step in steps:
        client.send(step)
    stats = pair.pool.stats
    assert (stats.xact_count, stats.query_count) == (transactions, queries)
    assert stats.login_count == 1


async def test_octets_in_both_directions() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    stats = pair.pool.stats
    for request in (query(b"select 1"), once(b"select 1") + SYNC, query(b"select '" + b"x" * 100_000 + b"'")):
        received, sent = stats.received, stats.sent
        for at in range(0, len(request), 30_000):
            client.feed(request[at : at + 30_000])
        pair.pump()
        answer = client.transport.take()
        assert stats.received - received == len(request)
        assert stats.sent - sent == len(answer)


async def test_statements() -> None:
    pair = SessionPair(backends=2)
    first, second = pair.connect(), pair.connect()
    stats = pair.pool.stats
    first.send(PREPARE)
    first.send(run(b"s", b"1") + SYNC)
    first.send(run(b"s", b"1") + SYNC)
    # One Parse from the client, and one for each backend that it came to.
    assert (stats.client_parse_count, stats.server_parse_count, stats.bind_count) == (1, 2, 2)
    second.send(PREPARE)
    second.send(once(b"select 1") + SYNC)
    assert (stats.client_parse_count, stats.server_parse_count, stats.bind_count) == (2, 2, 2)
    assert (first.session.prepared_statements, second.session.prepared_statements) == (1, 1)


async def test_times() -> None:
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    stats = pair.pool.stats
    client.send(query(b"begin"))
    other.send(query(b"select pg_sleep(1)"))
    assert other.session.state is State.WAITING
    await asyncio.sleep(0.02)
    # A look at the backend's clock stands for the pool's, which stamps what is given back.
    client.send(query(b"select pg_sleep(1)"))
    await asyncio.sleep(0.02)
    pair.wake()
    await asyncio.sleep(0.02)
    pair.links[0].backend.idle_since = asyncio.get_running_loop().time()
    client.send(query(b"commit"))
    # The wait of the other is what the first did meanwhile; of that, two thirds were the client's own turns.
    assert stats.wait_time >= 0.06
    assert stats.xact_time >= 0.06
    assert stats.think_time >= 0.04
    assert 0.02 <= stats.query_time == stats.xact_time - stats.think_time
    pair.wake()


async def test_a_session_is_seen() -> None:
    before = time.time()
    pair = SessionPair(backends=1)
    client, other = pair.connect(application_name="shop"), pair.connect()
    session = client.session
    assert before <= session.connect_time <= time.time()
    assert session.request_time == pytest.approx(session.connect_time, abs=1)
    assert (session.word, session.application_name, session.wait) == ("idle", "shop", 0.0)
    await asyncio.sleep(0.02)
    client.send(query(b"begin"))
    assert session.word == "active"
    assert session.request_time > session.connect_time + 0.01
    other.send(query(b"select 1"))
    await asyncio.sleep(0.01)
    assert other.session.word == "waiting"
    assert 0.0 < other.session.wait < 30
    client.send(TERMINATE_MESSAGE)
    pair.pump()
    assert (other.session.word, other.session.wait) == ("idle", 0.0)


async def test_a_message_in_one_piece_may_be_too_long_too() -> None:
    pair = SessionPair(backends=1, max_packet_size=1000)
    client = pair.connect()
    assert client.send(query(b"select '" + b"x" * 900 + b"'"))[-1] == "ReadyForQuery I"
    for _ in range(2):
        assert client.send(query(b"select 1"))[-1] == "ReadyForQuery I"
    assert client.send(query(b"select '" + b"x" * 1000 + b"'"))[-1].startswith("ErrorResponse FATAL 54000")
