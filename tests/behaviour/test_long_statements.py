"""Texts of statements that are longer than what is kept of one: they pass in parts, and for one transaction.

A Parse that names its statement is refused there, in words: it would have to be kept for other backends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import pytest

from behaviour.wire import lines, wires
from helpers.memory import Peak
from pgtrunk.wire.frontend import FLUSH_MESSAGE, SYNC_MESSAGE, bind, execute, parse, query
from pgtrunk_gateway.session.inbound import LONGEST_KEPT

if TYPE_CHECKING:
    from behaviour.fronts import Front

Connect = Callable[..., Awaitable[asyncpg.Connection]]

LONG: Final = LONGEST_KEPT + (1 << 20)
ROOM: Final = 6 << 20
"""Octets by which a process between client and Postgres may grow."""
PATIENCE: Final = 300.0
GONE: Final = "ErrorResponse ERROR 26000 the unnamed prepared statement was too long to be kept"
SYNC: Final = SYNC_MESSAGE
TEXT: Final = b"select $1::int -- ".ljust(LONG, b"x")
RUN: Final = bind(b"", b"", [b"7"]) + execute()
ANSWER: Final = ["BindComplete", "DataRow 7", "CommandComplete SELECT 1"]
READY: Final = "ReadyForQuery I"

sizes = pytest.mark.parametrize(
    "size",
    [LONG, pytest.param(256 << 20, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
    ids=["17 MB", "256 MB"],
)


@sizes
@pytest.mark.parametrize("front", ["tcp", "quic", "sidecar-unix"], indirect=True)
async def test_asyncpg_prepares_and_runs_it(front: Front, connect: Connect, size: int) -> None:
    """It prepares with Flush, waits, and then binds: the backend is its own until then."""
    session = await connect(command_timeout=PATIENCE)
    assert await session.fetchval("SELECT 1") == 1
    peak = Peak(front.between)
    for _ in range(2):
        assert await session.fetchval("SELECT $1::int -- ".ljust(size, "x"), 7) == 7
    assert peak.growth < ROOM
    assert await session.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("conninfo", ["direct", "tcp", "sidecar-unix"], indirect=True)
async def test_psycopg_runs_it(conninfo: dict[str, Any]) -> None:
    async with await psycopg.AsyncConnection.connect(**conninfo, autocommit=True) as connection:
        text = TEXT.replace(b"$1", b"%s")
        assert await (await connection.execute(text, (7,), prepare=False)).fetchone() == (7,)
        with pytest.raises(psycopg.errors.UndefinedTable):
            await connection.execute(b"SELECT %s FROM nowhere -- ".ljust(LONG, b"x"), (7,), prepare=False)
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)


async def test_a_name_for_it_is_refused_in_words(fronts: dict[str, Front]) -> None:
    async with wires(fronts["tcp"]) as wire:
        session, other = await wire.log_in(), await wire.log_in()
        session.send(parse(b"s", TEXT), SYNC)
        (error,) = [message.error for message in await session.until_lost(60) if message.kind == "E"]
        assert (error.severity, error.sqlstate) == ("FATAL", "54000")
        assert error.detail == f"the longest statement with a name = {LONGEST_KEPT}"
        assert "unnamed" in error.hint
        assert await other.ask(query(b"select 1")) == "TDCZI"


@pytest.mark.parametrize("through", ["direct", "tcp", pytest.param("quic", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("between", "told"),
    [
        (b"", []),
        (SYNC, [READY]),
        (FLUSH_MESSAGE, []),
        (RUN, ANSWER),
        (RUN + FLUSH_MESSAGE, ANSWER),
    ],
    ids=["at once", "Sync", "Flush", "twice", "twice, with Flush"],
)
async def test_in_a_transaction_it_is_as_any_other(
    fronts: dict[str, Front], through: str, between: bytes, told: list[str]
) -> None:
    async with wires(fronts[through]) as wire:
        session = await wire.log_in()
        assert await session.ask(query(b"begin; select 1")) == "CTDCZT"
        session.send(parse(b"", TEXT), between)
        expected = ["ParseComplete", *told]
        if between.endswith((SYNC, FLUSH_MESSAGE)):
            assert [line.replace(" T", " I") for line in lines(await session.take(len(expected), 60))] == expected
            expected = []
        session.send(RUN, SYNC)
        assert lines(await session.until("Z", 60)) == [*expected, *ANSWER, "ReadyForQuery T"]
        assert await session.ask(RUN, SYNC) == "2DCZT"
        assert await session.ask(query(b"commit")) == "CZI"


async def test_in_another_transaction_it_is_gone_and_the_error_says_why(fronts: dict[str, Front]) -> None:
    async with wires(fronts["tcp"]) as wire:
        session, other = await wire.log_in(), await wire.log_in()
        session.send(parse(b"", TEXT), RUN, SYNC)
        assert lines(await session.until("Z", 60)) == ["ParseComplete", *ANSWER, READY]
        # Whoever has had the backend in between.
        assert await other.ask(parse(b"", b"select 5"), SYNC) == "1ZI"
        for _ in range(2):
            session.send(RUN, SYNC)
            error, ready = lines(await session.until_ready())
            assert (error.startswith(GONE), ready) == (True, READY)
        assert await session.ask(parse(b"", b"select $1::int"), RUN, SYNC) == "12DCZI"
        assert await session.ask(RUN, SYNC) == "2DCZI"


async def test_what_fails_leaves_nothing(fronts: dict[str, Front]) -> None:
    async with wires(fronts["tcp"]) as wire:
        session = await wire.log_in()
        for text in (b"selec ", b"select 1; select 2 -- "):
            session.send(parse(b"", text.ljust(LONG, b"x")), RUN, SYNC)
            assert session.kinds(await session.until("Z", 60)) == "EZI"
            assert await session.ask(RUN, SYNC) == "EZI"
        # Skipped to Sync.
        session.send(parse(b"", b"selec"), parse(b"", TEXT), RUN, SYNC)
        assert session.kinds(await session.until("Z", 60)) == "EZI"
        assert await session.ask(query(b"select 1")) == "TDCZI"
