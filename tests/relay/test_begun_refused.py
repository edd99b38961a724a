"""A transaction has begun without a backend, and its first request is refused or cancelled; or BEGIN fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers.begun import ABORTED, AHEAD, BEGIN, BEGUN, COMMIT, INSERT, ONE, ROLLBACK, SELECT, begun, sent, tags
from helpers.conversations import FLUSH, SYNC, once, run
from helpers.postgres_sql import SqlError
from helpers.session_pair import PairedClient, SessionPair, pieces
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import parse, query
from pgtrunk_gateway.errors import QueryWaitTimeout, ShuttingDown
from pgtrunk_gateway.session.state import State

CANCELED = "ErrorResponse ERROR 57014 canceling statement due to user request"


@pytest.fixture
async def pair() -> SessionPair:
    return SessionPair(backends=1, lazy_begin=True)


# -- no backend is free ----------------------------------------------------------------------------------------------


def too_long() -> QueryWaitTimeout:
    return QueryWaitTimeout("no backend became free in time", severity="ERROR")


TIMEOUT = "ErrorResponse ERROR 53300 no backend became free in time"
REFUSALS: list[tuple[Callable[[PairedClient], object], str]] = [
    (lambda client: client.session.cancel(), CANCELED),
    (lambda client: client.session.refuse(too_long()), TIMEOUT),
]


def waiting(request_: bytes) -> tuple[SessionPair, PairedClient]:
    pair = SessionPair(backends=0, lazy_begin=True)
    client = begun(pair)
    assert client.send(request_) == []
    assert client.session.state is State.WAITING
    return pair, client


@pytest.mark.parametrize("request_", [query(INSERT), once(INSERT) + SYNC])
async def test_the_first_request_waits(request_: bytes) -> None:
    pair, client = waiting(request_)
    pair.open_backend()
    pair.pump()
    assert client.read()[-1] == "ReadyForQuery T"
    assert sent(pair)[: len(AHEAD)] == AHEAD
    assert client.send(COMMIT) == tags("COMMIT I")
    assert pair.store.tables == {"t": [1]}
    pair.check_idle()


@pytest.mark.parametrize(("refuse", "words"), REFUSALS)
@pytest.mark.parametrize("request_", [query(INSERT), once(INSERT) + SYNC])
@pytest.mark.parametrize("ending", [b"commit", b"rollback", b"end work", b"abort;"])
async def test_when_that_is_refused_the_transaction_has_failed(
    request_: bytes, refuse: Callable[[PairedClient], object], words: str, ending: bytes
) -> None:
    pair, client = waiting(request_)
    refuse(client)
    assert client.read() == [words, "ReadyForQuery E"]
    assert client.session.state is State.BEGUN
    assert client.send(query(ending)) == tags("ROLLBACK I")
    assert client.session.state.name == "IDLE"
    assert client.send(BEGIN) == BEGUN
    pair.open_backend()
    assert client.send(SELECT) == [*ONE, "ReadyForQuery T"]
    assert pair.store.tables == {}


@pytest.mark.parametrize(("refuse", "words"), REFUSALS)
async def test_what_comes_then_fails_as_in_postgres(refuse: Callable[[PairedClient], object], words: str) -> None:
    pair, client = waiting(query(INSERT))
    refuse(client)
    assert client.read() == [words, "ReadyForQuery E"]
    pair.open_backend()
    assert client.send(query(INSERT)) == [ABORTED, "ReadyForQuery E"]
    assert sent(pair) == AHEAD + "QQ"
    assert client.send(once(INSERT) + SYNC) == [ABORTED, "ReadyForQuery E"]
    assert client.send(BEGIN) == [ABORTED, "ReadyForQuery E"]
    assert client.send(query(b"selec")) == [
        'ErrorResponse ERROR 42601 syntax error at or near "selec"',
        "ReadyForQuery E",
    ]
    assert client.send(COMMIT) == tags("ROLLBACK I")
    assert client.send(query(INSERT)) == tags("INSERT 0 1 I")
    assert pair.store.tables == {"t": [1]}
    pair.check_idle()


@pytest.mark.parametrize("request_", [BEGIN, once(INSERT) + SYNC, query(b"commit and chain"), SELECT + COMMIT])
async def test_whatever_it_is_that_comes(request_: bytes) -> None:
    pair, client = waiting(SELECT)
    client.session.cancel()
    client.read()
    pair.open_backend()
    assert client.send(request_)[0].startswith("ErrorResponse ERROR")
    client.send(ROLLBACK)
    pair.check_idle()


async def test_a_refusal_after_a_refusal() -> None:
    pair, client = waiting(SELECT)
    for _ in range(3):
        client.session.cancel()
        assert client.read() == [CANCELED, "ReadyForQuery E"]
        client.send(SELECT)
        assert client.session.state is State.WAITING
    pair.open_backend()
    pair.pump()
    assert client.read() == [ABORTED, "ReadyForQuery E"]


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_refused_batch_is_skipped_to_its_sync(size: int) -> None:
    pair, client = waiting(once(INSERT))
    pair.split = pieces(size)
    client.session.cancel()
    assert client.read() == [CANCELED]
    assert client.session.state is State.SKIPPING
    assert client.send(once(INSERT) + COMMIT) == []
    assert client.send(SYNC + COMMIT + BEGIN) == ["ReadyForQuery E", *tags("ROLLBACK I", "BEGIN T")]


async def test_what_was_pipelined_behind_a_refused_request() -> None:
    pair, client = waiting(SELECT)
    client.send(SELECT + COMMIT + BEGIN)
    client.session.cancel()
    assert client.read() == [CANCELED, "ReadyForQuery E"]
    assert client.session.state is State.WAITING
    pair.open_backend()
    pair.pump()
    assert client.read() == [ABORTED, "ReadyForQuery E", *tags("ROLLBACK I", "BEGIN T")]
    client.send(ROLLBACK)
    pair.check_idle()


async def test_its_end_behind_a_refused_request() -> None:
    _, client = waiting(SELECT)
    client.send(COMMIT + BEGIN)
    client.session.cancel()
    assert client.read() == [CANCELED, "ReadyForQuery E", *tags("ROLLBACK I", "BEGIN T")]
    assert client.session.state is State.BEGUN


async def test_a_refusal_that_is_fatal() -> None:
    pair, client = waiting(SELECT)
    client.session.refuse(ShuttingDown())
    assert client.session.state is State.CLOSED
    assert not pair.pool.waiting


async def test_a_cancel_finds_nothing_to_cancel(pair: SessionPair) -> None:
    client = begun(pair)
    client.session.cancel()
    assert client.read() == []
    assert client.send(SELECT) == [*ONE, "ReadyForQuery T"]


async def test_a_cancel_means_the_request_and_not_begin(pair: SessionPair) -> None:
    """Who carries it waits as long as the backend is at something of the gateway's."""
    client = begun(pair)
    (link,) = pair.links
    assert not link.backend.is_setting
    client.feed(query(b"select pg_sleep(60)"))
    assert link.backend.is_setting and link.backend.runs
    # Postgres has flushed the answers to BEGIN, though the query runs on.
    pair.pump()
    assert not link.backend.is_setting and link.backend.runs
    pair.answer(link, link.model.cancel())
    pair.pump()
    assert client.read() == ["RowDescription pg_sleep:2278", CANCELED, "ReadyForQuery E"]
    assert client.send(COMMIT) == tags("ROLLBACK I")


async def test_nor_what_fails_in_the_place_of_what_was_refused() -> None:
    pair, client = waiting(SELECT)
    client.session.cancel()
    client.read()
    link = pair.open_backend()
    client.feed(SELECT)
    answers = link.model.feed(link.transport.take())
    ends = answers.index(encode(b"3")) + 5
    for part in (answers[:5], answers[5:ends]):
        link.backend.data_received(part)
        assert link.backend.is_setting
    link.backend.data_received(answers[ends:])
    assert not link.backend.is_setting
    assert client.read() == [ABORTED, "ReadyForQuery E"]


async def test_a_refused_request_is_counted_as_one_of_its_transaction() -> None:
    pair, client = waiting(SELECT)
    client.session.cancel()
    client.send(COMMIT)
    stats = pair.pool.stats
    assert (stats.xact_count, stats.query_count) == (1, 2)


# -- BEGIN fails -----------------------------------------------------------------------------------------------------


def cancels_begin(pair: SessionPair) -> None:
    """Somebody on the server cancels BEGIN, once."""
    (link,) = pair.links
    runs = link.model._transaction

    def fails(words: str) -> str:
        link.model._transaction = runs  # type: ignore[method-assign]
        raise SqlError("57014", "canceling statement due to user request")

    link.model._transaction = fails  # type: ignore[method-assign]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "request_",
    [query(INSERT), once(INSERT) + SYNC, once(INSERT) + FLUSH, parse(b"s", INSERT) + run(b"s") + SYNC],
    ids=["query", "batch", "open batch", "named"],
)
async def test_if_begin_fails_its_request_does_not_run(pair: SessionPair, request_: bytes, size: int) -> None:
    pair.split = pieces(size)
    client = begun(pair)
    cancels_begin(pair)
    assert client.send(request_) == ["ErrorResponse FATAL 57014 canceling statement due to user request"]
    assert client.session.state is State.CLOSED
    pair.pump()
    assert pair.store.tables == {}
    assert pair.pool.gone == ["server answers cannot be told apart"]
    assert pair.context.admitted == 0


async def test_if_it_fails_ahead_of_what_shall_fail(pair: SessionPair) -> None:
    other = pair.connect()
    other.send(query(b"begin; select 1"))
    client = begun(pair)
    client.send(SELECT)
    client.session.cancel()
    client.read()
    other.send(ROLLBACK)
    cancels_begin(pair)
    assert client.send(query(INSERT))[0].startswith("ErrorResponse FATAL 57014")
    pair.pump()
    assert pair.store.tables == {}


async def test_nobody_is_told_what_was_pipelined_behind_that(pair: SessionPair) -> None:
    client = begun(pair)
    cancels_begin(pair)
    assert client.send(once(INSERT) + SYNC + SELECT + once(b"selec") + SYNC) == [
        "ErrorResponse FATAL 57014 canceling statement due to user request"
    ]
    assert pair.store.tables == {}


async def test_a_client_that_vanishes_while_it_fails(pair: SessionPair) -> None:
    client = begun(pair)
    cancels_begin(pair)
    client.feed(query(INSERT))
    client.vanish()
    pair.pump()
    pair.finish_cancels()
    assert pair.store.tables == {}
    assert pair.pool.gone == ["server answers cannot be told apart"]
