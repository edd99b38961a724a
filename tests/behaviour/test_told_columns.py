"""A client that was told the columns of a statement never gets rows with others, whichever backend serves it.

As with Postgres it gets "cached plan must not change result type" until it prepares or describes anew; and a statement
that changes something has not run then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from behaviour.fronts import FRONTS, LIBPQ
from behaviour.wire import lines, wires
from helpers.site import DATABASE
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
    from behaviour.fronts import Front
    from behaviour.wire import Wire
    from helpers.raw_session import RawSession
    from helpers.site import Site

Connect = Callable[..., Awaitable[asyncpg.Connection]]

GATEWAYS = tuple(front for front in FRONTS if front != "direct")
STALE = "ErrorResponse ERROR 0A000 cached plan must not change result type"
READY = "ReadyForQuery I"
INT, REAL, TEXT = 23, 700, 25


@pytest_asyncio.fixture(params=GATEWAYS)
async def wire(fronts: dict[str, Front], request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    async with wires(fronts[request.param]) as wire:
        yield wire


@pytest.fixture
def migrate(site: Site, table: str) -> Callable[[str], None]:
    """Gives the column of the table, which has one row, another type; the gateway does not see it."""
    site.admin.execute(f"CREATE TABLE {table} (n int); INSERT INTO {table} VALUES (1); GRANT ALL ON {table} TO PUBLIC")
    return lambda type_: site.admin.execute(f"ALTER TABLE {table} ALTER n TYPE {type_}")


def run(name: bytes, *values: bytes) -> bytes:
    return bind(b"", name, values) + execute()


async def told(session: RawSession, *data: bytes, times: int = 1) -> list[str]:
    session.send(*data)
    return lines(await session.until_ready(times))


async def rows(session: RawSession, *data: bytes, times: int = 1) -> list[str]:
    return [line for line in await told(session, *data, times=times) if line.startswith(("DataRow", "Error"))]


async def prepare(session: RawSession, name: bytes, text: str) -> list[str]:
    """As asyncpg does: with Flush, and its Sync when the answer is there."""
    session.send(parse(name, text.encode()) + describe_statement(name) + FLUSH_MESSAGE)
    answer = lines(await session.until("TnE"))
    assert await told(session, SYNC_MESSAGE) == [READY]
    return answer


async def take(wire: Wire, count: int = 1) -> list[RawSession]:
    """Other sessions that hold the backends which would be used next."""
    holding = [await wire.log_in() for _ in range(count)]
    for session in holding:
        await told(session, query(b"begin"))
        await told(session, query(b"select 1"))
    return holding


async def test_each_time_until_it_is_described_anew(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session = await wire.log_in()
    await prepare(session, b"s", f"select n from {table}")
    assert await rows(session, run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]
    migrate("real")
    # By turns on a backend that has analysed it before the migration, and on others.
    for holders in (0, 1, 2, 0, 1):
        holding = await take(wire, holders)
        assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, READY]
        for holder in holding:
            await told(holder, query(b"rollback"))
    answer = await told(session, describe_statement(b"s") + SYNC_MESSAGE)
    assert answer[1:2] == [f"RowDescription n:{REAL}"]
    for holders in (0, 1, 2):
        await take(wire, holders)
        assert await rows(session, run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]


async def test_until_it_is_prepared_anew(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session, text = await wire.log_in(), f"select n from {table}"
    await prepare(session, b"s", text)
    migrate("real")
    await take(wire)
    assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, READY]
    anew = close_statement(b"s") + parse(b"s", text.encode())
    assert await rows(session, anew + run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]
    assert (await prepare(session, b"t", text))[-1] == f"RowDescription n:{REAL}"
    assert await rows(session, run(b"t") + SYNC_MESSAGE) == ["DataRow 1"]
    migrate("int")
    assert await told(session, run(b"t") + SYNC_MESSAGE) == [STALE, READY]


async def test_what_is_as_it_was_again(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session = await wire.log_in()
    await prepare(session, b"s", f"select n from {table}")
    migrate("real")
    for holders in (0, 1):
        await take(wire, holders)
        assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, READY]
    migrate("int")
    for holders in (0, 1):
        await take(wire, holders)
        assert await rows(session, run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]


async def test_a_statement_that_is_refused_has_not_run(
    wire: Wire, table: str, migrate: Callable[[str], None], site: Site
) -> None:
    session = await wire.log_in()
    await prepare(session, b"s", f"insert into {table} values (2) returning n")
    assert await rows(session, run(b"s") + SYNC_MESSAGE) == ["DataRow 2"]
    migrate("real")
    for holders in (0, 1):
        await take(wire, holders)
        assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, READY]
    assert await rows(session, query(f"select count(*) from {table}".encode())) == ["DataRow 2"]


async def test_who_was_not_told_gets_the_rows(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    one, other, text = await wire.log_in(), await wire.log_in(), f"select n from {table}"
    await prepare(one, b"s", text)
    await told(other, parse(b"s", text.encode()) + SYNC_MESSAGE)
    assert await rows(other, run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]
    migrate("real")
    for holders in (0, 1, 2):
        await take(wire, holders)
        assert await rows(other, run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]
        assert await told(one, run(b"s") + SYNC_MESSAGE) == [STALE, READY]
    # Nor does who is told anew with the rows.
    told_with_rows = bind(b"", b"s") + describe_portal(b"") + execute() + SYNC_MESSAGE
    answer = await told(one, told_with_rows)
    assert answer[1:3] == [f"RowDescription n:{REAL}", "DataRow 1"]
    assert await told(one, run(b"s") + SYNC_MESSAGE) == [STALE, READY]


async def test_one_told_before_and_one_after(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    before, after, text = await wire.log_in(), await wire.log_in(), f"select n from {table}"
    assert (await prepare(before, b"s", text))[-1] == f"RowDescription n:{INT}"
    await take(wire)
    migrate("real")
    assert (await prepare(after, b"s", text))[-1] == f"RowDescription n:{REAL}"
    for holders in (0, 1, 2):
        await take(wire, holders)
        assert await rows(after, run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]
        assert await told(before, run(b"s") + SYNC_MESSAGE) == [STALE, READY]
    third = await wire.log_in()
    assert (await prepare(third, b"s", text))[-1] == f"RowDescription n:{REAL}"


async def test_in_a_transaction(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session = await wire.log_in()
    await prepare(session, b"s", f"select n from {table}")
    migrate("real")
    for holders in (0, 1):
        await take(wire, holders)
        await told(session, query(b"begin"))
        assert await rows(session, query(b"select 5")) == ["DataRow 5"]
        assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, "ReadyForQuery E"]
        assert (await told(session, run(b"s") + SYNC_MESSAGE))[0].startswith("ErrorResponse ERROR 25P02")
        await told(session, query(b"rollback"))
    await told(session, query(b"begin"))
    assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, "ReadyForQuery E"]
    assert await told(session, query(b"rollback")) == ["CommandComplete ROLLBACK", READY]


async def test_in_a_pipeline(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session = await wire.log_in()
    await prepare(session, b"s", f"select n from {table}")
    await prepare(session, b"a", "select 7")
    migrate("real")
    for holders in (0, 1, 2):
        await take(wire, holders)
        request = run(b"a") + SYNC_MESSAGE + run(b"s") + SYNC_MESSAGE + query(b"select 8") + run(b"a") + SYNC_MESSAGE
        assert await rows(session, request, times=4) == ["DataRow 7", STALE, "DataRow 8", "DataRow 7"]
        batch = run(b"a") + run(b"s") + run(b"a") + SYNC_MESSAGE
        assert await rows(session, batch + run(b"a") + SYNC_MESSAGE, times=2) == ["DataRow 7", STALE, "DataRow 7"]


async def test_what_is_as_it_was_goes_on_wherever_it_is(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session = await wire.log_in()
    await prepare(session, b"s", f"insert into {table} values ($1) returning n")
    await prepare(session, b"a", "select 7")
    for number in (b"3", b"4", b"5"):
        await take(wire)
        batch = run(b"a") + run(b"s", number) + run(b"a") + SYNC_MESSAGE
        expected = ["DataRow 7", f"DataRow {number.decode()}", "DataRow 7"]
        assert await rows(session, batch + run(b"a") + SYNC_MESSAGE, times=2) == [*expected, "DataRow 7"]
    # In parts, and with what asks for the answers in the last of them.
    await take(wire)
    for at, part in enumerate((run(b"a"), run(b"s", b"6"), run(b"a"))):
        session.send(part[:4])
        session.send(part[4:])
        if at == 1:
            await rows(await wire.log_in(), query(b"select 1"))
    assert await rows(session, SYNC_MESSAGE) == ["DataRow 7", "DataRow 6", "DataRow 7"]
    assert await rows(session, query(f"select count(*) from {table}".encode())) == ["DataRow 5"]


async def test_parameters_count_too(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session, text = await wire.log_in(), f"insert into {table} values ($1)"
    await prepare(session, b"s", text)
    migrate("text")
    await take(wire)
    assert await told(session, run(b"s", b"2") + SYNC_MESSAGE) == [STALE, READY]
    answer = await prepare(session, b"t", text)
    assert f"ParameterDescription [{TEXT}]" in answer
    assert await rows(session, run(b"t", b"two") + SYNC_MESSAGE) == []
    assert await rows(session, query(f"select n from {table}".encode())) == ["DataRow 1", "DataRow two"]


async def test_the_unnamed_statement(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    session, text = await wire.log_in(), f"select n from {table}"
    for _ in range(2):
        await prepare(session, b"", text)
        await take(wire)
        assert await rows(session, run(b"") + SYNC_MESSAGE) == ["DataRow 1"]
    await prepare(session, b"", text)
    migrate("real")
    for holders in (0, 1):
        await take(wire, holders)
        assert await told(session, run(b"") + SYNC_MESSAGE) == [STALE, READY]
    await prepare(session, b"", text)
    assert await rows(session, run(b"") + SYNC_MESSAGE) == ["DataRow 1"]


async def test_dropped_and_made_anew_through_the_gateway(wire: Wire, table: str, site: Site) -> None:
    """Whoever parses a text then gets what it means now, on backends that have parsed it before, too."""
    owner, one, other = await wire.log_in(), await wire.log_in(), await wire.log_in()
    text = f"insert into {table} values ($1)"
    site.admin.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    await told(owner, query(f"create table {table} (n int)".encode()))
    assert f"ParameterDescription [{INT}]" in await prepare(one, b"s", text)
    await told(owner, query(f"begin; drop table {table}; create table {table} (n text); commit".encode()))
    assert f"ParameterDescription [{TEXT}]" in await prepare(other, b"s", text)
    assert await rows(other, run(b"s", b"two") + SYNC_MESSAGE) == []
    await told(owner, query(b"begin"))
    await told(owner, query(f"alter table {table} alter n type int using 1".encode()))
    await told(owner, query(b"commit"))
    third = await wire.log_in()
    assert f"ParameterDescription [{INT}]" in await prepare(third, b"s", text)


async def test_what_fails_by_its_types_is_parsed_anew(wire: Wire, table: str, migrate: Callable[[str], None]) -> None:
    """Postgres keeps the types of parameters for good: what was an integer once cannot be compared with a text."""
    session, text = await wire.log_in(), f"select n from {table} where n = $1"
    await told(session, parse(b"s", text.encode()) + SYNC_MESSAGE)
    assert await rows(session, bind(b"", b"s", [b"1"]) + describe_portal(b"") + execute() + SYNC_MESSAGE) == [
        "DataRow 1"
    ]
    migrate("text")
    failed = await rows(session, run(b"s", b"1") + SYNC_MESSAGE)
    assert failed[0].startswith("ErrorResponse ERROR 42883")
    assert await rows(session, run(b"s", b"1") + SYNC_MESSAGE) == ["DataRow 1"]


async def test_backends_that_are_replaced(wire: Wire, table: str, migrate: Callable[[str], None], site: Site) -> None:
    session = await wire.log_in()
    await prepare(session, b"s", f"select n from {table}")
    migrate("real")
    site.admin.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        f"WHERE pid <> pg_backend_pid() AND datname = '{DATABASE}' AND backend_type = 'client backend'"
    )
    assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, READY]


@pytest.mark.parametrize("front_", [front for front in GATEWAYS if front != "mtls"])
async def test_in_session_mode_and_pinned(
    fronts: dict[str, Front], front_: str, table: str, migrate: Callable[[str], None]
) -> None:
    """The backend stays, and Postgres says it; who prepares anew is asked again where nothing was answered yet."""
    text = f"select n from {table}"
    async with wires(fronts[front_]) as wire:
        by_session, pinned = await wire.log_in(f"{DATABASE}_session"), await wire.log_in()
        await told(pinned, query(b"listen news"))
        for session in (by_session, pinned):
            await prepare(session, b"s", text)
            assert await rows(session, run(b"s") + SYNC_MESSAGE) == ["DataRow 1"]
        migrate("real")
        for session in (by_session, pinned):
            assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, READY]
            assert (await prepare(session, b"t", text))[-1] == f"RowDescription n:{REAL}"
            assert await rows(session, run(b"t") + SYNC_MESSAGE) == ["DataRow 1"]
            assert await told(session, run(b"s") + SYNC_MESSAGE) == [STALE, READY]


@pytest.mark.parametrize("kept", ["session mode", "pinned"])
@pytest.mark.parametrize("front_", [front for front in GATEWAYS if front != "mtls"])
async def test_who_keeps_its_backend_is_asked_again_too(
    fronts: dict[str, Front], front_: str, kept: str, table: str, migrate: Callable[[str], None]
) -> None:
    text = f"select n from {table}"
    async with wires(fronts[front_]) as wire:
        session = await wire.log_in(f"{DATABASE}_session" if kept == "session mode" else DATABASE)
        await told(session, query(b"listen news"))
        await told(session, parse(b"s", text.encode()) + SYNC_MESSAGE + run(b"s") + SYNC_MESSAGE, times=2)
        migrate("real")
        assert (await prepare(session, b"t", text))[-1] == f"RowDescription n:{REAL}"
        assert await rows(session, run(b"t") + SYNC_MESSAGE) == ["DataRow 1"]
        # What fails is skipped to the Sync that the client sends.
        session.send(parse(b"u", b"selec") + describe_statement(b"u") + FLUSH_MESSAGE)
        assert lines(await session.until("E"))[-1].startswith("ErrorResponse ERROR 42601")
        behind = parse(b"u", b"select 1") + run(b"t") + FLUSH_MESSAGE + run(b"t") + SYNC_MESSAGE
        assert await told(session, behind) == [READY]
        assert (await prepare(session, b"u", "select 1"))[0] == "ParseComplete"


# -- drivers -----------------------------------------------------------------------------------------------------------


async def held(connect: Connect) -> asyncpg.Connection:
    session = await connect()
    await session.execute("BEGIN; SELECT 1")
    return session


@pytest.mark.parametrize("options", [{}, {"statement_cache_size": 0}], ids=["cached", "unnamed"])
async def test_asyncpg(connect: Connect, table: str, migrate: Callable[[str], None], options: dict[str, Any]) -> None:
    sessions = [await connect(**options) for _ in range(3)]
    select, insert = f"SELECT n FROM {table} ORDER BY 1", f"INSERT INTO {table} VALUES ($1) RETURNING n"
    written, holding = [1], list[asyncpg.Connection]()
    for type_, kind in (("int", int), ("real", float), ("int", int), ("text", str), ("int USING n::int", int)):
        migrate(type_)
        for number, session in enumerate(sessions):
            if number:
                holding.append(await held(connect))
            # It has to know of the other type before it can give a value of it.
            found = [row[0] for row in await session.fetch(select)]
            assert sorted(map(int, found)) == written and {type(each) for each in found} == {kind}
            written.append(len(written) + 1)
            inserted = await session.fetchval(insert, kind(written[-1]))
            assert inserted == kind(written[-1]) and type(inserted) is kind
        while holding:
            await holding.pop().execute("ROLLBACK")


async def test_asyncpg_prepared(connect: Connect, table: str, migrate: Callable[[str], None]) -> None:
    session = await connect()
    statement = await session.prepare(f"SELECT n FROM {table}")
    assert await statement.fetchval() == 1
    migrate("real")
    for _ in range(2):
        await held(connect)
        with pytest.raises(asyncpg.InvalidCachedStatementError):
            await statement.fetchval()
    assert await (await session.prepare(f"SELECT n FROM {table}")).fetchval() == 1.0


@pytest.mark.parametrize("conninfo", [front for front in LIBPQ if front != "direct"], indirect=True)
async def test_psycopg(
    libpq: psycopg.AsyncConnection[Any], conninfo: dict[str, Any], table: str, migrate: Callable[[str], None]
) -> None:
    libpq.prepare_threshold = 0
    for type_, kind in (("int", int), ("real", float), ("text", str)):
        migrate(type_)
        for _ in range(2):
            for _ in range(3):
                row = await (await libpq.execute(f"SELECT n FROM {table}".encode(), binary=True)).fetchone()
                assert row is not None and row == (kind(1),) and type(row[0]) is kind
            async with await psycopg.AsyncConnection.connect(**conninfo) as other:
                # It holds the backend that would be used next.
                await other.execute("SELECT 1")
                row = await (await libpq.execute(f"SELECT n FROM {table}".encode(), binary=True)).fetchone()
                assert row == (kind(1),)
