"""Random pipelines of two sessions, each of whose transactions gets another backend: Postgres's answers, one by one.

What is pipelined is any interleaving of queries, batches, Flush and Syncs, with errors anywhere in it, by the protocol
and by SQL. The few places where a pipeline can see names otherwise (tests/session/test_differences.py) are avoided: a
name is parsed once, used in the batch of its Parse or when that is answered, and closed or deallocated when all is
answered that was asked before.

Avoided, too, is what ends PostgreSQL 18.6 itself by a segmentation fault, and with it all its sessions: Execute of the
unnamed portal, without a Bind, in a failed transaction whose last Query has failed.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Final

import pytest

from behaviour.test_statements import said, stage, turning
from behaviour.wire import lines, wires
from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    close_portal,
    close_statement,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from behaviour.test_conversations import Stage
    from helpers.raw_session import RawSession

__all__ = ["said", "stage", "turning"]

TEXTS: Final = (
    b"select 1",
    b"select $1::int",
    b"select $1::text || 'x'",
    b"select generate_series(1, 3)",
    b"select 1/0",
    b"select 1/(random()*0)::int",
    b"selec",
    b"",
)
QUERIES: Final = (
    *TEXTS[:1],
    *TEXTS[3:],
    b"select 1; select 2",
    b"select 1; select 1/0; select 2",
    b"select ';'; select 3",
)
IN_VAIN: Final = tuple(f"ErrorResponse ERROR {state}" for state in ("25P02", "26000", "08P01", "42601"))
BLOCKS: Final = (b"begin", b"commit", b"rollback")


class Dice:
    """Throws what one session writes."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._own = b"-- " + seed.encode()
        self._names: list[bytes] = [b"unknown", b"~0"]
        self._answered = 0
        """How many of them were given before what is being written."""
        self._batch = 0
        """How many of them were given before the batch that is being written."""

    def write(self) -> tuple[bytes, int]:
        """What is written at once, and how many times ReadyForQuery answers it."""
        dice = self._random
        self._answered = self._batch = len(self._names)
        if dice.random() < 0.25:
            name = self._name()
            return dice.choice(
                [
                    (query(b'deallocate "' + name + b'"'), 1),
                    (close_statement(name) + SYNC_MESSAGE, 1),
                    (self._once(b'deallocate "' + name + b'"') + SYNC_MESSAGE, 1),
                    (query(b"deallocate all"), 1),
                    (query(b"rollback"), 1),
                ]
            )
        parts = [self._part() for _ in range(dice.randrange(1, 8))]
        return b"".join(part for part, _ in parts), sum(count for _, count in parts)

    def _part(self) -> tuple[bytes, int]:
        self._batch = len(self._names)
        dice, name = self._random, self._name()
        match dice.randrange(8):
            case 0:
                return query(dice.choice(QUERIES)), 1
            case 1:
                return query(b'execute "' + name + b'"'), 1
            case 2:
                new = self._new()
                return query(b'select 1; prepare "' + new + b'" as select 7; execute "' + new + b'"'), 1
            case 3:
                return query(dice.choice(BLOCKS)), 1
            case 4:
                syncs = dice.choice([1, 2])
                return parse(self._new(), dice.choice(TEXTS)) + SYNC_MESSAGE * syncs, syncs
            case _:
                messages = b"".join(self._message() for _ in range(dice.randrange(1, 6)))
                return messages + SYNC_MESSAGE, 1

    def _message(self) -> bytes:
        dice, name = self._random, self._name()
        portal = dice.choice([b"", b"", b"p"])
        match dice.randrange(9):
            case 0:
                # A text of its own: what is skipped of a known one may be there, see above.
                new = self._new()
                return parse(new, dice.choice(TEXTS) + self._own + new)
            case 1:
                return describe_statement(name)
            case 2:
                return FLUSH_MESSAGE
            case 3:
                return self._once(
                    dice.choice([*TEXTS, b'execute "' + name + b'"', b'prepare "' + self._new() + b'" as select 8'])
                )
            case 4:
                return execute(b"p", dice.choice([0, 1, 2]))
            case 5:
                return describe_portal(portal) + close_portal(portal)
            case _:
                values = [b"1"] * dice.choice([0, 0, 1])
                return bind(portal, name, values) + describe_portal(portal) + execute(portal, dice.choice([0, 0, 1]))

    def _name(self) -> bytes:
        return self._random.choice((self._names[: self._answered] + self._names[self._batch :])[-5:])

    def _new(self) -> bytes:
        self._names.append(b"n%d" % len(self._names))
        return self._names[-1]

    def _once(self, text: bytes) -> bytes:
        values = [b"1"] * text.count(b"$1")
        return parse(b"", text) + bind(b"", b"", values) + describe_portal(b"") + execute()


def alike(told: list[str]) -> list[str]:
    """Without what may differ: the name in an error of a statement with several, and which error a failed transaction
    gives where the statement is not on this backend."""
    out: list[str] = []
    answer: list[str] = []
    for text in told:
        answer.append(re.sub('"n[0-9]+"', "one of its names", text) if text.startswith("ErrorResponse") else text)
        if text.startswith("ReadyForQuery"):
            failed = text.endswith("E") and any(line.startswith(IN_VAIN) for line in answer)
            out += ["failed"] if failed else answer
            answer = []
    return out + answer


async def converse(stage: Stage, through: str, seed: int) -> list[list[str]]:
    """What two sessions hear, in turn."""
    heard: list[list[str]] = []
    async with wires(stage.fronts[through]) as wire:
        sessions: list[tuple[RawSession, Dice]] = [(await wire.log_in(), Dice(f"{seed}.{who}")) for who in range(2)]
        for _ in range(12):
            for session, dice in sessions:
                data, count = dice.write()
                session.send(data)
                heard.append([repr(data), *alike(lines(await session.until_ready(count)))])
    return heard


@pytest.mark.parametrize(
    "seed", [*range(30), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(30, 2000))]
)
async def test_answers_are_those_of_postgres(stage: Stage, seed: int) -> None:
    expected = await converse(stage, "direct", seed)
    for at, (ours, theirs) in enumerate(zip(await converse(stage, "turning", seed), expected, strict=True)):
        assert ours == theirs, at
