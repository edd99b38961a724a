"""Transaction blocks as drivers write them; and that no text is taken for a command that it is not."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus

from behaviour.fronts import PSQL
from behaviour.wire import lines, wires
from helpers.processes import run_program
from helpers.site import DATABASE
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.session.sql.blocks import block_command

if TYPE_CHECKING:
    from behaviour.fronts import Front
    from helpers.site import Site

Connect = Callable[..., Awaitable[asyncpg.Connection]]
Libpq = psycopg.AsyncConnection[Any]

_FIRST: Final = (b"begin", b"start transaction", b"commit", b"end", b"rollback", b"abort", b"begin read only")
_WORDS: Final = (
    *(b"work", b"transaction", b"read only", b"read write", b"isolation level serializable", b"isolation level"),
    *(b"isolation level repeatable read", b"read committed", b"uncommitted", b"deferrable", b"not deferrable", b"not"),
    *(b"and chain", b"and no chain", b"to savepoint a", b"to", b"prepared 'x'", b"begin", b"commit", b"work work"),
    *(b",", b";", b";;", b"/*", b"*/", b"/* /* */ */", b"--", b"'", b"'x'", b'"', b'"begin"', b"$$", b"$1", b"1"),
    *(b"\v", b"\f", b"\xc2\xa0", b"\xc3\xa4", b"\xff", b"\x01", b"(", b")", b"E'", b"U&''", b"atomic", b"1_0"),
    *(b"\\", b"=", b"::"),
)
_SPACES: Final = (b" ", b" ", b" ", b"\n", b"\t", b"", b"/**/", b" --\n", b"\r", b" -- x\r", b"/* -- */")


def cased(text: bytes, upper: bool) -> bytes:
    return text.upper() if upper else text


_parts = st.tuples(st.sampled_from(_SPACES), st.sampled_from(_WORDS))
_texts = st.builds(
    lambda first, rest, upper: cased(first + b"".join(space + word for space, word in rest), upper),
    st.sampled_from(_FIRST),
    st.lists(_parts, max_size=4),
    st.booleans(),
)


@pytest.fixture(scope="module")
def direct(site: Site) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(site.postgres.dsn(database=DATABASE), autocommit=True) as connection:
        yield connection


@settings(max_examples=1500)
@given(_texts)
def test_what_is_taken_for_a_command_is_that_command(direct: psycopg.Connection[Any], text: bytes) -> None:
    command = block_command(text + b"\0")
    if command is None:
        return
    connection = direct.pgconn
    connection.exec_(b"rollback")
    if not command.begins:
        connection.exec_(b"begin")
    result = connection.exec_(text)
    assert result.command_status == command.tag.encode(), result.error_message
    assert connection.transaction_status == (TransactionStatus.INTRANS if command.begins else TransactionStatus.IDLE)


def random_text(dice: random.Random) -> bytes:
    parts = [dice.choice(_SPACES) + dice.choice(_WORDS) for _ in range(dice.choice([0, 0, 1, 1, 2, 3]))]
    return cased(dice.choice(_FIRST) + b"".join(parts), dice.random() < 0.5)


async def answers(front: Front, texts: list[bytes]) -> list[list[str]]:
    """What is said to each of them, and to what comes behind it."""
    heard: list[list[str]] = []
    async with wires(front) as wire:
        session = await wire.log_in()
        for text in texts:
            session.send(query(text))
            heard.append([repr(text), *lines(await session.until_ready())])
    return heard


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 100))])
@pytest.mark.parametrize("through", ["tcp", "quic"])
async def test_whatever_is_written_is_answered_as_postgres_answers_it(
    fronts: dict[str, Front], through: str, seed: int
) -> None:
    dice = random.Random(seed)
    others = (b"select 1", b"select 1/0", b"commit", b"rollback", b"show transaction_isolation")
    texts: list[bytes] = []
    for _ in range(100):
        texts.append(random_text(dice))
        if dice.random() < 0.5:
            texts.append(dice.choice(others))
    expected = await answers(fronts["direct"], texts)
    for ours, theirs in zip(await answers(fronts[through], texts), expected, strict=True):
        assert ours == theirs


# -- drivers ---------------------------------------------------------------------------------------------------------


async def test_asyncpg(session: asyncpg.Connection) -> None:
    for options in ({}, {"isolation": "serializable", "readonly": True, "deferrable": True}, {"readonly": True}):
        async with session.transaction(**options):
            assert session.is_in_transaction()
        assert not session.is_in_transaction()
        async with session.transaction(**options), session.transaction():
            assert await session.fetchval("SHOW transaction_read_only") == ("on" if options else "off")
    for end in ("commit", "rollback"):
        transaction = session.transaction()
        await transaction.start()
        await getattr(transaction, end)()
        assert await session.fetchval("SELECT 1") == 1
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with session.transaction():
            await session.fetchval("SELECT 1 / $1::int", 0)
    statement = await session.prepare("SELECT $1::int + 1")
    async with session.transaction():
        assert await statement.fetchval(1) == 2
    async with session.transaction():
        rows = [row[0] async for row in session.cursor("SELECT generate_series(1, 100)", prefetch=7)]
        assert rows == [*range(1, 101)]


async def test_asyncpg_prepares_in_a_transaction(session: asyncpg.Connection) -> None:
    async with session.transaction():
        statement = await session.prepare("SELECT $1::text || 'x' AS x")
        assert [column.name for column in statement.get_attributes()] == ["x"]
        assert await statement.fetchval("y") == "yx"
    with pytest.raises(asyncpg.UndefinedTableError):
        async with session.transaction():
            await session.prepare("SELECT FROM nowhere")
    assert await statement.fetchval("z") == "zx"


async def test_psycopg(libpq: Libpq) -> None:
    for text, status in (
        (b"BEGIN", TransactionStatus.INTRANS),
        (b"COMMIT", TransactionStatus.IDLE),
        (b"START TRANSACTION READ ONLY", TransactionStatus.INTRANS),
        (b"ROLLBACK", TransactionStatus.IDLE),
    ):
        result = libpq.pgconn.exec_(text)
        assert result.command_status == text.removesuffix(b" READ ONLY")
        assert libpq.info.transaction_status == status
    async with libpq.transaction():
        assert libpq.info.transaction_status == TransactionStatus.INTRANS
    async with libpq.transaction(), libpq.transaction() as inner:
        await libpq.execute("SELECT 1")
        raise psycopg.Rollback(inner)
    await libpq.set_autocommit(False)
    for isolation, shown in ((psycopg.IsolationLevel.SERIALIZABLE, "serializable"), (None, "read committed")):
        await libpq.set_isolation_level(isolation)
        assert await (await libpq.execute("SHOW transaction_isolation")).fetchone() == (shown,)
        await libpq.rollback()
    with pytest.raises(psycopg.errors.DivisionByZero):
        await libpq.execute("SELECT 1/0")
    assert libpq.info.transaction_status == TransactionStatus.INERROR
    await libpq.rollback()


SCRIPT: Final = """
BEGIN;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY;
SHOW transaction_isolation;
ROLLBACK;
ROLLBACK;
START TRANSACTION;
BEGIN;
SELECT 1/0;
SELECT 2;
COMMIT;
\\set ON_ERROR_ROLLBACK on
BEGIN;
SELECT 3;
SELECT 1/0;
SELECT 4;
END;
\\set AUTOCOMMIT off
SELECT 5;
SELECT 1/0;
ROLLBACK;
"""


@pytest.mark.parametrize("conninfo", PSQL, indirect=True)
def test_psql(conninfo: dict[str, Any]) -> None:
    done = run_program("psql", conninfo, "-XAt", stdin=SCRIPT)
    assert done.stdout.split() == [
        *("BEGIN", "COMMIT", "BEGIN", "serializable", "ROLLBACK", "ROLLBACK", "START", "TRANSACTION", "BEGIN"),
        *("ROLLBACK", "BEGIN", "3", "4", "COMMIT", "5", "ROLLBACK"),
    ]
    assert [line.partition(":  ")[2] for line in done.stderr.splitlines() if ":  " in line] == [
        "there is no transaction in progress",
        "there is already a transaction in progress",
        "division by zero",
        "current transaction is aborted, commands ignored until end of transaction block",
        "division by zero",
        "division by zero",
    ]
