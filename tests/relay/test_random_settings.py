"""Random settings and pins of several sessions over random backends: each sees what a Postgres of its own would say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.conversations import SYNC, once
from helpers.postgres_model import PostgresModel
from helpers.session_pair import PairedClient, SessionPair
from helpers.transcript import transcript
from pgtrunk.wire.frontend import bind, execute, parse, query
from pgtrunk_gateway.relay.terms import Terms

_NAMES = (b"lock_timeout", b"statement_timeout", b"app.x", b"timezone")
_VALUES = {b"app.x": (b"'one'", b"'two'"), b"timezone": (b"'UTC'", b"'Asia/Tokyo'")}
_TIMES = (b"'5s'", b"'6s'", b"0")
_SETS = [b"set %s = %s" % (name, value) for name in _NAMES for value in _VALUES.get(name, _TIMES)]
_LOOKS = [b"select current_setting('%s', true)" % name for name in (*_NAMES, b"role")]
_TEXTS = [
    *_SETS,
    *_LOOKS,
    *_LOOKS,
    *(b"reset %s" % name for name in _NAMES),
    *(b"set local %s = %s" % (name, _VALUES.get(name, _TIMES)[0]) for name in _NAMES[:3]),
    *(b"select set_config('%s', %s, false)" % (name, _VALUES.get(name, _TIMES)[1]) for name in _NAMES[:3]),
    *(b"begin", b"commit", b"rollback", b"begin", b"commit", b"rollback"),
    *(b"reset all", b"discard all", b"set role r", b"set role none"),
    *(b"select 1/0", b"selec", b"set lock_timeout = 'x'"),
    *(b"listen news", b"unlisten *", b"create temp table mine (a int)", b"drop table mine"),
    *(b"declare c cursor with hold for select 1", b"close c", b"set a.b.c = 1"),
]
_texts = st.sampled_from(_TEXTS)
_names = st.sampled_from([b"one", b"two"])
_steps = st.one_of(
    st.builds(query, _texts),
    st.builds(query, _texts),
    st.builds(lambda texts: query(b"; ".join(texts)), st.lists(_texts, min_size=2, max_size=4)),
    st.builds(lambda text: once(text) + SYNC, _texts),
    st.builds(lambda texts: b"".join(map(query, texts)), st.lists(_texts, min_size=2, max_size=4)),
    st.builds(lambda name, text: parse(name, text) + SYNC, _names, _texts),
    st.builds(lambda name: bind(b"", name) + execute() + SYNC, _names),
)
_conversations = st.lists(st.tuples(st.integers(0, 2), _steps), min_size=1, max_size=16)


class Compared:
    """A client of the gateway, and what a Postgres of its own says to the same."""

    def __init__(self, client: PairedClient) -> None:
        self.client = client
        self.postgres = PostgresModel()
        self.given_up = False
        """They may differ from here on: statements have to be parsed in a failed transaction (test_differences.py)."""

    @property
    def can_go_on(self) -> bool:
        return not self.given_up and (self.client.session.backend is not None or bool(self.client.pair.pool.free))

    @staticmethod
    def plainly(lines: list[str]) -> list[str]:
        """Less what the gateway says by itself; and a setting that only sessions have is empty, or is not there."""
        own = "NoticeResponse NOTICE 00000 this session keeps"
        lines = [line.replace("DataRow NULL", "DataRow ") for line in lines if not line.startswith(own)]
        return [line.replace('statement "two"', 'statement "one"') for line in lines]

    def send(self, data: bytes) -> None:
        failed = self.postgres.block == "E"
        expected = self.plainly(transcript(self.postgres.feed(data)))
        received = self.plainly(self.client.send(data))
        if failed and any(" 25P02 " in line for line in received):
            self.given_up = True
            return
        assert received == expected


async def hold_against_postgres(
    conversation: list[tuple[int, bytes]], backends: int, prepared: int, dice: random.Random
) -> None:
    pair = SessionPair(backends=backends, prepared=prepared, terms=Terms(tracked=True))
    pair.pool.choose = lambda free: dice.randrange(len(free))
    compared = [Compared(pair.connect()) for _ in range(3)]
    for who, request in conversation:
        if compared[who].can_go_on:
            compared[who].send(request)
    for one in compared:
        one.client.vanish()
        pair.pump()
    pair.finish_cancels()
    pair.check_idle()


_worlds = (st.integers(1, 3), st.sampled_from([1, 200]), st.randoms(use_true_random=False))


@settings(max_examples=500)
@given(_conversations, *_worlds)
async def test_each_session_sees_what_postgres_says(
    conversation: list[tuple[int, bytes]], backends: int, prepared: int, dice: random.Random
) -> None:
    await hold_against_postgres(conversation, backends, prepared, dice)


@pytest.mark.long
@settings(max_examples=20_000)
@given(_conversations, *_worlds)
async def test_so_does_each_of_many(
    conversation: list[tuple[int, bytes]], backends: int, prepared: int, dice: random.Random
) -> None:
    await hold_against_postgres(conversation, backends, prepared, dice)
