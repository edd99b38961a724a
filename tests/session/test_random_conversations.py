"""Random conversations of two clients over random backends: each sees what a Postgres of its own would say."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.postgres_model import PostgresModel
from helpers.postgres_sql import Store
from helpers.session_pair import PairedClient, SessionPair
from helpers.transcript import transcript
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    FLUSH_MESSAGE,
    SYNC,
    SYNC_MESSAGE,
    bind,
    close_portal,
    close_statement,
    copy_data,
    copy_fail,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

_TEXTS = [
    b"select $1::int",
    b"select $1::text",
    b"select 1",
    b"select generate_series(1, 3)",
    b"insert into t values (1)",
    b"select count(*) from t",
    b"show timezone",
    b"set timezone = 'Asia/Tokyo'",
    b"begin",
    b"commit",
    b"rollback",
    b"selec",
    b"select 1/0",
    b"select 1/(random()*0)::int",
    b"copy t from stdin",
    b"copy t to stdout",
    b"",
]
_QUERIES = [
    *_TEXTS[2:],
    b"insert into t values (2); select 5",
    b"insert into t values (3); select 1/0",
    b"begin; select 1",
]
_names = st.sampled_from([b"a", b"b", b"long"])
_portals = st.sampled_from([b"", b"p"])
_texts = st.sampled_from(_TEXTS)
_values = st.lists(st.sampled_from([b"1", None]), max_size=1)
_limits = st.sampled_from([0, 0, 1, 2])

_runs = st.builds(
    lambda portal, name, values, limit: bind(portal, name, values) + describe_portal(portal) + execute(portal, limit),
    _portals,
    _names,
    _values,
    _limits,
)
_once = st.builds(
    lambda text, values, limit: parse(b"", text) + bind(b"", b"", values) + execute(b"", limit),
    _texts,
    _values,
    _limits,
)
_extended = st.one_of(
    st.builds(parse, _names, _texts),
    _runs,
    _runs,
    _once,
    st.builds(describe_statement, _names),
    st.builds(describe_portal, _portals),
    st.builds(execute, _portals, _limits),
    st.builds(close_statement, _names),
    st.builds(close_portal, _portals),
    st.just(FLUSH_MESSAGE),
)
_copies = st.sampled_from(
    [
        copy_data(b"7\n") + COPY_DONE_MESSAGE,
        copy_data(b"7\n") + copy_data(b"8\n") + COPY_DONE_MESSAGE,
        copy_data(b"x\n") + COPY_DONE_MESSAGE,
        copy_fail(b"no"),
    ]
)
_batches = st.builds(lambda parts: b"".join(parts) + SYNC_MESSAGE, st.lists(_extended, max_size=5))
_steps = st.one_of(
    _batches,
    _batches,
    st.builds(lambda parts: b"".join(parts), st.lists(_extended, min_size=1, max_size=3)),
    st.builds(query, st.sampled_from(_QUERIES)),
    _copies,
    st.just(SYNC_MESSAGE),
)
_conversations = st.lists(st.tuples(st.integers(0, 1), _steps), min_size=1, max_size=14)


class Pieces:
    """Cuts as the dice fall."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            size = self.dice.choice([1, 2, 5, 9, 30, 1000])
            yield data[:size]
            data = data[size:]


class Compared:
    """A client of the gateway, and what a Postgres of its own says to the same."""

    def __init__(self, client: PairedClient, postgres: PostgresModel) -> None:
        self.client = client
        self.postgres = postgres
        self.early: list[str] = []
        """What the gateway has said, and Postgres has not yet: it keeps its answers until Sync or Flush."""
        self.given_up = False
        """They may differ from here on (see test_differences.py), and are not compared any more."""

    @property
    def closed(self) -> bool:
        return self.postgres.closed

    @property
    def can_go_on(self) -> bool:
        return not self.given_up and (self.client.session.backend is not None or bool(self.client.pair.pool.free))

    @staticmethod
    def plainly(lines: list[str]) -> list[str]:
        # Two names of a client's for one statement are one to the gateway: an error may show the other.
        return [line.replace('statement "b"', 'statement "a"') for line in lines]

    def send(self, data: bytes) -> None:
        failed = self.postgres.block == "E"
        expected = self.plainly(transcript(self.postgres.feed(data)))
        received = self.early + self.plainly(self.client.send(data))
        self.early = received[len(expected) :]
        if self.closed or (failed and any(" 25P02 " in line for line in received)):
            # What may not be said during COPY, and statements that have to be parsed in a failed transaction.
            self.given_up = True
            return
        assert received[: len(expected)] == expected
        assert all(line in ("ParseComplete", "CloseComplete") for line in self.early)


async def hold_against_postgres(
    conversation: list[tuple[int, bytes]], backends: int, prepared: int, lazy_begin: bool, dice: random.Random
) -> None:
    pair = SessionPair(backends=backends, prepared=prepared, lazy_begin=lazy_begin, split=Pieces(dice))
    pair.pool.choose = lambda free: dice.randrange(len(free))
    store = Store()
    compared = [Compared(pair.connect(), PostgresModel(store)) for _ in range(2)]
    for who, step in conversation:
        if compared[who].can_go_on:
            compared[who].send(step)
            if compared[who].closed:
                pair.open_backend()
    for one in compared:
        if not one.client.transport.closing:
            one.client.vanish()
    pair.finish_cancels()
    pair.check_idle()


_worlds = (st.integers(1, 3), st.sampled_from([1, 2, 200]), st.booleans(), st.randoms(use_true_random=False))


@settings(max_examples=1000)
@given(_conversations, *_worlds)
async def test_each_client_sees_what_postgres_says(
    conversation: list[tuple[int, bytes]], backends: int, prepared: int, lazy_begin: bool, dice: random.Random
) -> None:
    await hold_against_postgres(conversation, backends, prepared, lazy_begin, dice)


@pytest.mark.long
@settings(max_examples=30_000)
@given(_conversations, *_worlds)
async def test_so_does_each_of_many(
    conversation: list[tuple[int, bytes]], backends: int, prepared: int, lazy_begin: bool, dice: random.Random
) -> None:
    await hold_against_postgres(conversation, backends, prepared, lazy_begin, dice)


_pipelines = st.lists(st.tuples(st.integers(0, 1), st.lists(_steps, min_size=1, max_size=4)), min_size=1, max_size=6)


@settings(max_examples=300)
@given(_pipelines, *_worlds)
async def test_pipelines_get_an_answer_for_each_sync_and_leave_the_backends_clean(
    pipelines: list[tuple[int, list[bytes]]], backends: int, prepared: int, lazy_begin: bool, dice: random.Random
) -> None:
    """Up to the first error, the very answers; behind it names may mean something else, see test_differences.py."""
    pair = SessionPair(backends=backends, prepared=prepared, lazy_begin=lazy_begin, split=Pieces(dice))
    pair.pool.choose = lambda free: dice.randrange(len(free))
    store = Store()
    for who in (0, 1):
        client, postgres = pair.connect(), PostgresModel(store)
        early: list[str] = []
        for pipeline in (b"".join(steps) for to, steps in pipelines if to == who):
            expected = Compared.plainly(transcript(postgres.feed(pipeline)))
            received = early + Compared.plainly(client.send(pipeline))
            if postgres.closed:
                pair.open_backend()
                break
            failed = next((at for at, line in enumerate(expected) if is_error(line)), len(expected))
            assert received[:failed] == expected[:failed]
            if failed < len(expected):
                # A name that means something else may be an error where it is none to Postgres: then a Query behind it
                # is skipped up to the next Sync, and only that is answered.
                has_more_errors = sum(map(is_error, received)) > sum(map(is_error, expected))
                least = count_syncs(pipeline) if has_more_errors else sum(map(is_ready, expected))
                assert sum(map(is_ready, received)) >= least
                break
            early = received[len(expected) :]
        if not client.transport.closing:
            client.vanish()
        pair.finish_cancels()
    pair.check_idle()


def is_ready(line: str) -> bool:
    return line.startswith("ReadyForQuery")


def is_error(line: str) -> bool:
    return line.startswith("ErrorResponse")


def count_syncs(pipeline: bytes) -> int:
    reader = MessageReader(len(pipeline))
    reader.feed(pipeline)
    return sum(kind == SYNC for kind, _ in iter(reader.next, None))
