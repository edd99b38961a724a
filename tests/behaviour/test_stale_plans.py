"""A migration changes the columns of prepared statements: clients see their rows, or the error where they have to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from behaviour.fronts import FRONTS, LIBPQ
from behaviour.wire import lines, wires
from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from behaviour.fronts import Front
    from behaviour.wire import Wire
    from helpers.raw_session import RawSession
    from helpers.site import Site

Connect = Callable[..., Awaitable[asyncpg.Connection]]

GATEWAYS = tuple(front for front in FRONTS if front != "direct")
STALE = "ErrorResponse ERROR 0A000 cached plan must not change result type"
READY = "ReadyForQuery I"


@pytest_asyncio.fixture(params=GATEWAYS)
async def wire(fronts: dict[str, Front], request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    async with wires(fronts[request.param]) as wire:
        yield wire


@pytest.fixture
def migrate(site: Site, table: str) -> Callable[[], None]:
    """Adds a column to the table, which has one row to begin with."""
    site.admin.execute(f"CREATE TABLE {table} (n int); INSERT INTO {table} VALUES (1)")
    site.admin.execute(f"GRANT ALL ON {table} TO PUBLIC")
    columns = iter("abcdefgh")
    return lambda: site.admin.execute(f"ALTER TABLE {table} ADD {next(columns)} text DEFAULT 'x'")


def run(name: bytes, *, described: bool = True) -> bytes:
    return bind(b"", name) + (describe_portal(b"") if described else b"") + execute() + SYNC_MESSAGE


async def told(session: RawSession, *data: bytes, times: int = 1) -> list[str]:
    session.send(*data)
    return lines(await session.until_ready(times))


def rows(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("DataRow", "Error"))]


async def test_with_its_description(wire: Wire, table: str, migrate: Callable[[], None]) -> None:
    session = await wire.log_in()
    text = f"select * from {table}".encode()
    await told(session, parse(b"s", text) + SYNC_MESSAGE)
    assert rows(await told(session, run(b"s"))) == ["DataRow 1"]
    for more in (", x", ", x, x"):
        migrate()
        answer = await told(session, run(b"s"))
        assert [line.split()[0] for line in answer] == [
            *("BindComplete", "RowDescription", "DataRow", "CommandComplete", "ReadyForQuery")
        ]
        assert rows(answer) == [f"DataRow 1{more}"]


async def test_without_a_description(wire: Wire, table: str, migrate: Callable[[], None]) -> None:
    """Who was never told the columns is told the rows; who was gets the error, which says that they are others now."""
    session, other = await wire.log_in(), await wire.log_in()
    text = f"select * from {table}".encode()
    await told(session, parse(b"s", text) + SYNC_MESSAGE)
    assert rows(await told(session, run(b"s", described=False))) == ["DataRow 1"]
    migrate()
    assert rows(await told(session, run(b"s", described=False))) == ["DataRow 1, x"]
    await told(other, parse(b"s", text) + describe_statement(b"s") + SYNC_MESSAGE)
    await told(other, run(b"s"))
    migrate()
    for _ in range(3):
        assert await told(other, run(b"s", described=False)) == [STALE, READY]
    await told(other, describe_statement(b"s") + SYNC_MESSAGE)
    assert rows(await told(other, run(b"s", described=False))) == ["DataRow 1, x, x"]


async def test_who_parses_a_known_text(wire: Wire, table: str, migrate: Callable[[], None]) -> None:
    session = await wire.log_in()
    text = f"select * from {table}".encode()
    await told(session, parse(b"s", text) + SYNC_MESSAGE + run(b"s"), times=2)
    migrate()
    other = await wire.log_in()
    other.send(parse(b"s", text) + describe_statement(b"s") + FLUSH_MESSAGE)
    answer = lines(await other.until("TE"))
    assert [line.split()[0] for line in answer] == ["ParseComplete", "ParameterDescription", "RowDescription"]
    assert rows(await told(other, run(b"s", described=False))) == ["DataRow 1, x"]


async def test_in_a_transaction(wire: Wire, table: str, migrate: Callable[[], None]) -> None:
    session = await wire.log_in()
    await told(session, parse(b"s", f"select * from {table}".encode()) + SYNC_MESSAGE + run(b"s"), times=2)
    migrate()
    await told(session, query(b"begin"))
    assert await told(session, run(b"s")) == [STALE, "ReadyForQuery E"]
    await told(session, query(b"rollback"))
    assert rows(await told(session, run(b"s"))) == ["DataRow 1, x"]


async def test_with_more_behind_it(wire: Wire, table: str, migrate: Callable[[], None]) -> None:
    """What comes behind it may have to come behind it: the error."""
    session = await wire.log_in()
    await told(session, parse(b"s", f"select * from {table}".encode()) + SYNC_MESSAGE + run(b"s"), times=2)
    migrate()
    answer = await told(session, run(b"s") + query(b"select 2"), times=2)
    assert [answer[0], *rows(answer)] == [STALE, STALE, "DataRow 2"]
    assert rows(await told(session, run(b"s"))) == ["DataRow 1, x"]


async def test_by_execute(wire: Wire, table: str, migrate: Callable[[], None]) -> None:
    session = await wire.log_in()
    await told(session, query(f"prepare s as select * from {table}".encode()))
    assert rows(await told(session, query(b"execute s"))) == ["DataRow 1"]
    migrate()
    assert rows(await told(session, query(b"execute s"))) == ["DataRow 1, x"]


async def test_what_has_been_answered_is_not_asked_again(
    wire: Wire, table: str, migrate: Callable[[], None], site: Site
) -> None:
    session = await wire.log_in()
    await told(session, query(f"prepare s as select * from {table}; execute s".encode()))
    migrate()
    answer = await told(session, query(f"insert into {table} values (2); execute s".encode()))
    assert answer == ["CommandComplete INSERT 0 1", STALE, READY]
    assert rows(await told(session, query(b"execute s"))) == ["DataRow 1, x"]


async def test_asyncpg(connect: Connect, table: str, migrate: Callable[[], None]) -> None:
    session, text = await connect(), f"SELECT * FROM {table}"
    assert await session.fetchrow(text) == (1,)
    migrate()
    assert await session.fetchrow(text) == (1, "x")
    assert await (await connect()).fetchrow(text) == (1, "x")
    migrate()
    with pytest.raises(asyncpg.InvalidCachedStatementError):
        async with session.transaction():
            await session.fetchrow(text)
    assert await session.fetchrow(text) == (1, "x", "x")


@pytest.mark.parametrize("conninfo", [front for front in LIBPQ if front != "direct"], indirect=True)
async def test_psycopg(libpq: psycopg.AsyncConnection[Any], table: str, migrate: Callable[[], None]) -> None:
    text = f"SELECT * FROM {table}".encode()
    for more in ((), ("x",), ("x", "x")):
        for _ in range(7):
            assert await (await libpq.execute(text)).fetchone() == (1, *more)
        migrate()
