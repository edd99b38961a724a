"""Unnamed statements whose texts are too long to be kept: they pass in parts, and are there while their backend is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from helpers.conversations import FLUSH, ONE, SYNC, run
from helpers.postgres_model import PostgresModel
from helpers.session_pair import SessionPair, Splitter, pieces
from helpers.transcript import transcript
from pgtrunk.wire.frontend import describe_statement, parse, query
from pgtrunk_gateway.session import inbound

LIMIT: Final = 70_000
SIZE: Final = 100_000
LONG: Final = parse(b"", ONE.ljust(SIZE))
RUN: Final = run(b"", b"1")
BEGUN: Final = query(b"begin; select 1")
FAILED: Final = query(b"begin; select 1/0")

ROW: Final = ["BindComplete", "DataRow 1", "CommandComplete SELECT 1"]
GONE: Final = [
    "ErrorResponse ERROR 26000 the unnamed prepared statement was too long to be kept",
    "ReadyForQuery I",
]

split = pytest.mark.parametrize(
    "split", [pieces(1000), pieces(20_000), pieces(64 << 10)], ids=["1000", "20000", "64 kB"]
)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(inbound, "LONGEST_KEPT", LIMIT)
    yield


CONVERSATIONS: Final = {
    "in one batch": [LONG + RUN + SYNC, LONG + describe_statement(b"") + RUN + RUN + SYNC],
    "described": [LONG + describe_statement(b"") + FLUSH, RUN + SYNC],
    "with Flush": [LONG + FLUSH, RUN + FLUSH, RUN + SYNC],
    "in a transaction": [BEGUN, LONG + SYNC, RUN + SYNC, query(b"commit")],
    "in a transaction that has failed": [FAILED, LONG + RUN + SYNC, query(b"rollback"), LONG + RUN + SYNC],
    "skipped": [parse(b"", b"selec") + LONG + RUN + SYNC, query(b"select 1")],
    "behind another": [parse(b"", b"select 2") + LONG + RUN + SYNC],
    "ahead of another": [LONG + parse(b"", b"select 2") + run() + SYNC, run() + SYNC],
    "behind a query": [query(b"select 5") + LONG + RUN + SYNC],
    "wrong": [parse(b"", b"selec".ljust(SIZE)) + RUN + SYNC, LONG + RUN + SYNC],
    "pipelined": [(LONG + RUN + SYNC) * 3],
    "dropped by a query": [BEGUN, LONG + SYNC, query(b"select 1"), RUN + SYNC, query(b"rollback")],
    "with a setting": [parse(b"", b"set timezone = 'Asia/Tokyo'".ljust(SIZE)) + run() + SYNC, query(b"show timezone")],
}


@split
@pytest.mark.parametrize("backends", [1, 2])
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_it_is_as_any_other(name: str, backends: int, split: Splitter) -> None:
    pair = SessionPair(backends=backends, split=split)
    client, postgres = pair.connect(), PostgresModel()
    for step in CONVERSATIONS[name]:
        assert client.send(step) == transcript(postgres.feed(step))
    pair.check_idle()


@split
async def test_the_backend_is_kept_until_it_is_used(split: Splitter) -> None:
    """A short one that is only prepared would have its Flush made a Sync, and follow the session."""
    pair = SessionPair(backends=2, split=split)
    client = pair.connect()
    assert client.send(parse(b"", ONE) + FLUSH) == ["ParseComplete"]
    assert client.session.backend is None
    client.send(SYNC)
    assert client.send(LONG + FLUSH) == ["ParseComplete"]
    assert client.session.backend is not None
    assert client.send(RUN + SYNC) == [*ROW, "ReadyForQuery I"]
    pair.check_idle()


@split
async def test_another_backend_does_not_have_it(split: Splitter) -> None:
    pair = SessionPair(backends=2, split=split)
    client = pair.connect()
    assert client.send(LONG + RUN + SYNC) == ["ParseComplete", *ROW, "ReadyForQuery I"]
    # Each transaction is on the other one.
    for _ in range(2):
        assert client.send(RUN + SYNC) == GONE
        assert client.send(RUN + SYNC) == [*ROW, "ReadyForQuery I"]
    # Others are as good as ever, before and after.
    assert client.send(parse(b"", ONE) + RUN + SYNC) == ["ParseComplete", *ROW, "ReadyForQuery I"]
    assert client.send(RUN + SYNC) == [*ROW, "ReadyForQuery I"]
    pair.check_idle()


@split
async def test_nor_does_one_on_which_another_session_was(split: Splitter) -> None:
    pair = SessionPair(backends=1, split=split)
    client, other = pair.connect(), pair.connect()
    assert client.send(LONG + RUN + SYNC)[0] == "ParseComplete"
    assert client.send(RUN + SYNC) == [*ROW, "ReadyForQuery I"], "it is still there"
    assert other.send(parse(b"", b"select 5") + run() + SYNC)[0] == "ParseComplete"
    assert client.send(RUN + SYNC) == GONE
    assert other.send(run() + SYNC)[1] == "DataRow 5"
    pair.check_idle()


async def test_a_name_is_refused() -> None:
    pair = SessionPair(backends=1, split=pieces(20_000))
    client = pair.connect()
    (error,) = client.send(parse(b"s", ONE.ljust(SIZE)) + SYNC)
    assert error == f"ErrorResponse FATAL 54000 a message of type 'P' with {SIZE + 9} octets is too large"
    assert pair.connect().send(query(b"select 1"))[-1] == "ReadyForQuery I"
    pair.check_idle()


@pytest.mark.parametrize("upto", [6, 9_000, SIZE - 1])
async def test_a_client_that_leaves_in_the_middle_of_it(upto: int) -> None:
    pair = SessionPair(backends=1, split=pieces(20_000))
    client = pair.connect()
    client.write(LONG[:upto])
    pair.pump()
    client.vanish()
    pair.finish_cancels()
    # Of less than its beginning, nothing was sent.
    assert pair.pool.gone == ([] if upto < 9_000 else ["client left in the middle of a message"])
    assert bool(pair.pool.free) is (upto < 9_000)
