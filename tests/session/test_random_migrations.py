"""Random migrations between the requests of clients on random backends.

Nobody gets rows by columns that he was not told. Nor does anybody get an error without need; and what was refused has
not run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.migrating import INSERT, OIDS, SELECT, STALE, Migrating
from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    close_statement,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from helpers.session_pair import PairedClient

TEXTS = {b"s": SELECT, b"t": SELECT, b"i": INSERT, b"": SELECT}
Step: TypeAlias = tuple[int, str, bytes | int]
"""Who does what: with which statement, or which type the column gets."""

_names = st.sampled_from(list(TEXTS))
_actions = st.sampled_from(["tell", "parse", "describe", "run", "run", "run", "run described", "two", "begin", "end"])
_steps = st.one_of(
    st.tuples(st.integers(0, 2), _actions, _names),
    st.tuples(st.integers(0, 2), _actions, _names),
    st.tuples(st.integers(0, 2), _actions, _names),
    st.tuples(st.just(-1), st.just("migrate"), st.sampled_from(OIDS)),
)
_conversations = st.lists(_steps, min_size=4, max_size=30)


class Witness:
    """A client that remembers what it was told, and holds what it gets against it."""

    def __init__(self, client: PairedClient, pair: Migrating, *, in_pieces: bool) -> None:
        self.client = client
        self.pair = pair
        self.in_pieces = in_pieces
        self.told: dict[bytes, int | None] = {}
        """What it was told of the statements that it has; None: nothing."""
        self.block = False

    def take(self, action: str, name: bytes) -> None:
        if self.client.session.backend is None and not self.pair.pool.free:
            return
        if name not in self.told and action in ("describe", "run", "run described", "two"):
            action = "tell"
        getattr(self, "_" + action.replace(" ", "_"))(name)

    def _send(self, data: bytes) -> list[str]:
        received = self.client.send(data)
        if self.block and received and received[-1] == "ReadyForQuery E":
            self.block = False
            received += self._query(b"rollback")
        return received

    def _query(self, text: bytes) -> list[str]:
        # As in Postgres, there is no unnamed statement any more.
        self.told.pop(b"", None)
        return self.client.send(query(text))

    def _begin(self, _: bytes) -> None:
        if not self.block:
            self._query(b"begin")
            self.block = True

    def _end(self, _: bytes) -> None:
        if self.block:
            self._query(b"commit")
            self.block = False

    def _anew(self, name: bytes) -> bytes:
        known = name and name in self.told
        return (close_statement(name) if known else b"") + parse(name, TEXTS[name])

    def _parse(self, name: bytes) -> None:
        received = self._send(self._anew(name) + SYNC_MESSAGE)
        assert "ParseComplete" in received
        self.told[name] = None

    def _tell(self, name: bytes) -> None:
        received = self.client.send(self._anew(name) + describe_statement(name) + FLUSH_MESSAGE)
        received += self._send(SYNC_MESSAGE)
        self._hears(name, received)

    def _describe(self, name: bytes) -> None:
        self._hears(name, self._send(describe_statement(name) + SYNC_MESSAGE))

    def _hears(self, name: bytes, received: list[str]) -> None:
        described = [line for line in received if line.startswith("RowDescription")]
        if STALE in received:
            # Postgres has found out between the two messages: in a transaction, or when ParseComplete had been given.
            assert not described and (not self._is_outside(received) or self.in_pieces or not name)
            if "ParseComplete" in received:
                # It is a new statement, and of that nothing was told.
                self.told[name] = None
            self.told.setdefault(name, None)
            return
        assert described == [f"RowDescription n:{self.pair.column}"]
        self.told[name] = self.pair.column

    @staticmethod
    def _is_outside(received: list[str]) -> bool:
        return "CommandComplete ROLLBACK" not in received

    def _run(self, name: bytes) -> None:
        inserted, told, now = self.pair.inserted, self.told[name], self.pair.column
        received = self._send(bind(b"", name) + execute() + SYNC_MESSAGE)
        if STALE in received:
            # Of the unnamed statement nothing is asked again, nor of what comes in pieces.
            spared = told is None and (not name or self.in_pieces)
            assert told not in (None, now) or spared or not self._is_outside(received)
            assert self.pair.inserted == inserted
            assert not any(line.startswith("DataRow") for line in received)
            return
        assert f"DataRow {now}" in received
        assert told in (None, now)
        assert self.pair.inserted == inserted + (name == b"i")

    def _run_described(self, name: bytes) -> None:
        received = self._send(bind(b"", name) + describe_portal(b"") + execute() + SYNC_MESSAGE)
        if STALE in received:
            # What comes in pieces is not asked again.
            assert not self._is_outside(received) or not name or self.in_pieces
            return
        assert f"RowDescription n:{self.pair.column}" in received and f"DataRow {self.pair.column}" in received

    def _two(self, name: bytes) -> None:
        """A pipeline: in one batch, and another behind it."""
        runs = bind(b"", name) + execute()
        told, now = self.told[name], self.pair.column
        received = self._send(runs + runs + SYNC_MESSAGE + runs + SYNC_MESSAGE)
        assert sum(line.startswith("ReadyForQuery") for line in received) in (2, 3)
        rows = [line for line in received if line.startswith("DataRow")]
        assert set(rows) <= {f"DataRow {now}"}
        assert (told in (None, now)) if rows else (STALE in received and told != now)


class Pieces:
    """Cuts as the dice fall, or none."""

    def __init__(self, dice: random.Random, sizes: list[int]) -> None:
        self.dice = dice
        self.sizes = sizes

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            size = self.dice.choice(self.sizes)
            yield data[:size]
            data = data[size:]


async def hold(
    conversation: list[Step],
    backends: int,
    prepared: int,
    lazy_begin: bool,
    sizes: list[int],
    dice: random.Random,
) -> None:
    pair = Migrating(backends=backends, prepared=prepared, lazy_begin=lazy_begin, split=Pieces(dice, sizes))
    pair.pool.choose = lambda free: dice.randrange(len(free))
    witnesses = [Witness(pair.connect(), pair, in_pieces=len(sizes) > 1) for _ in range(3)]
    for who, action, what in conversation:
        if isinstance(what, int):
            # A table that somebody reads cannot be altered.
            if not any(witness.block for witness in witnesses):
                pair.migrate(what)
        else:
            witnesses[who].take(action, what)
    for witness in witnesses:
        witness.client.vanish()
    pair.finish_cancels()
    pair.check_idle()


_worlds = (
    st.integers(1, 3),
    st.sampled_from([1, 2, 200]),
    st.booleans(),
    st.sampled_from([[1 << 20], [1, 2, 5, 9, 30, 1000]]),
    st.randoms(use_true_random=False),
)


@settings(max_examples=300)
@given(_conversations, *_worlds)
async def test_nobody_gets_rows_by_columns_that_he_was_not_told(
    conversation: list[Step],
    backends: int,
    prepared: int,
    lazy_begin: bool,
    sizes: list[int],
    dice: random.Random,
) -> None:
    await hold(conversation, backends, prepared, lazy_begin, sizes, dice)


@pytest.mark.long
@settings(max_examples=20_000)
@given(_conversations, *_worlds)
async def test_nor_does_any_of_many(
    conversation: list[Step],
    backends: int,
    prepared: int,
    lazy_begin: bool,
    sizes: list[int],
    dice: random.Random,
) -> None:
    await hold(conversation, backends, prepared, lazy_begin, sizes, dice)
