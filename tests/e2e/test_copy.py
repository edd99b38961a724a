"""COPY in and out, by the drivers that do it differently: asyncpg in the extended protocol, psycopg in both."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest

from helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helpers.gateways import Connect, Start, Way

both_loops = pytest.mark.both_loops

ROWS = 20_000


@both_loops
async def test_asyncpg_copies_in_and_out(connect: Connect) -> None:
    session = await connect()
    await session.execute("DROP TABLE IF EXISTS copied; CREATE TABLE copied (n int, x text)")
    records = [(n, "ä" * (n % 100)) for n in range(ROWS)]
    assert await session.copy_records_to_table("copied", records=records) == f"COPY {ROWS}"
    out = io.BytesIO()
    assert await session.copy_from_query("SELECT * FROM copied ORDER BY n", output=out) == f"COPY {ROWS}"
    assert out.getvalue().decode() == "".join(f"{n}\t{x}\n" for n, x in records)
    assert await session.fetchval("SELECT count(*) FROM copied") == ROWS


@both_loops
async def test_asyncpg_copies_from_a_slow_source(connect: Connect) -> None:
    session = await connect()
    await session.execute("DROP TABLE IF EXISTS copied; CREATE TABLE copied (n int)")

    async def lines() -> AsyncIterator[bytes]:
        for n in range(30):
            yield f"{n}\n".encode()
            await asyncio.sleep(0)

    assert await session.copy_to_table("copied", source=lines()) == "COPY 30"
    assert await session.fetchval("SELECT sum(n) FROM copied") == 435


@both_loops
async def test_a_copy_that_fails_leaves_the_session_in_step(connect: Connect) -> None:
    session = await connect()
    await session.execute("DROP TABLE IF EXISTS copied; CREATE TABLE copied (n int PRIMARY KEY)")
    for _ in range(3):
        with pytest.raises(asyncpg.UniqueViolationError):
            await session.copy_records_to_table("copied", records=[(n % 1000,) for n in range(ROWS)])
        with pytest.raises(asyncpg.BadCopyFileFormatError):
            await session.copy_to_table("copied", source=io.BytesIO(b"1\t2\n" * ROWS))
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await session.copy_to_table("copied", source=io.BytesIO(b"not a number\n"))
        assert await session.fetchval("SELECT count(*) FROM copied") == 0


@both_loops
async def test_a_source_that_fails_ends_the_copy(connect: Connect) -> None:
    session = await connect()
    await session.execute("DROP TABLE IF EXISTS copied; CREATE TABLE copied (n int)")

    async def lines() -> AsyncIterator[bytes]:
        yield b"1\n"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await session.copy_to_table("copied", source=lines())
    assert await session.fetchval("SELECT count(*) FROM copied") == 0


@both_loops
async def test_a_copy_inside_a_transaction_is_rolled_back_with_it(connect: Connect) -> None:
    session = await connect()
    await session.execute("DROP TABLE IF EXISTS copied; CREATE TABLE copied (n int)")
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with session.transaction():
            await session.copy_records_to_table("copied", records=[(1,)])
            assert await session.fetchval("SELECT count(*) FROM copied") == 1
            await session.execute("SELECT 1/0")
    assert await session.fetchval("SELECT count(*) FROM copied") == 0


@both_loops
@pytest.mark.parametrize("text", ["COPY copied (n) FROM STDIN", "COPY copied (n) FROM STDIN WHERE n < %s"])
@pytest.mark.parametrize("libpq", ["direct", "tcp", "unix"])
async def test_psycopg_copies_in_and_out(start: Start, libpq: Way, text: str) -> None:
    gateway = await start()
    async with await psycopg.AsyncConnection.connect(**gateway.conninfo(libpq), autocommit=True) as session:
        await session.execute("DROP TABLE IF EXISTS copied; CREATE TABLE copied (n int, x text DEFAULT 'x')")
        cursor = session.cursor()
        async with cursor.copy(text, [ROWS] if "%s" in text else None) as copy:
            for n in range(ROWS):
                await copy.write_row((n,))
        async with cursor.copy("COPY copied TO STDOUT") as copy:
            assert [row async for row in copy.rows()] == [(str(n), "x") for n in range(ROWS)]
        with pytest.raises(RuntimeError, match="not today"):
            async with cursor.copy("COPY copied FROM STDIN") as copy:
                await copy.write(b"1\tx\n")
                raise RuntimeError("not today")
        counted = await (await session.execute("SELECT count(*) FROM copied")).fetchone()
        assert counted == (ROWS,)


async def test_a_reader_that_pauses_pauses_postgres(start: Start, pooled: Way) -> None:
    """What a client does not read stays in Postgres, not in the gateway."""
    gateway = await start()
    session = await gateway.connect(pooled)
    goes_on = asyncio.Event()
    began = asyncio.Event()
    taken = 0

    async def slowly(data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        began.set()
        await goes_on.wait()

    query = "SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
    copying = asyncio.create_task(session.copy_from_query(query, output=slowly))
    await began.wait()
    admin = gateway.site.admin
    await until(
        lambda: admin.rows("SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND datname = 'e2e'")
    )
    (backend,) = (backend for pool in gateway.gateway.pools for backend in pool.backends.values())
    assert backend.holder is not None
    goes_on.set()
    assert await copying == "COPY 20000"
    assert taken == 20_000 * 1001
