"""What is much, or large, passes through in the memory of some buffers, both ways, and whoever is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from helpers.memory import Peak
from helpers.waiting import until

if TYPE_CHECKING:
    from behaviour.fronts import Front
    from helpers.site import Site

Connect = Callable[..., Awaitable[asyncpg.Connection]]

MUCH: Final = 12 << 20
UNTAKEN: Final = 1 << 30
LARGE: Final = 12 << 20
ROOM: Final = 6 << 20
"""Octets by which a process between client and Postgres may grow."""
LINE: Final = b"x" * 1023 + b"\n"
LINES: Final = 64
"""At once."""
LOCK: Final = 4711
_LONG: Final = [pytest.mark.long, pytest.mark.timeout(1800)]
PATIENCE: Final = 1500.0
"""Seconds for a gigabyte, on a slow machine that others use."""

pytestmark = pytest.mark.parametrize("front", ["tcp", "quic", "sidecar-unix"], indirect=True)
much = pytest.mark.parametrize("size", [MUCH, pytest.param(1 << 30, marks=_LONG)], ids=["12 MB", "1 GB"])
large = pytest.mark.parametrize("size", [LARGE, pytest.param(256 << 20, marks=_LONG)], ids=["12 MB", "256 MB"])


async def lines(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // (LINES * len(LINE))):
        yield LINE * LINES


def query(size: int) -> str:
    """What COPY gives so many octets of."""
    return f"SELECT repeat('x', {len(LINE) - 1}) FROM generate_series(1, {size // len(LINE)})"


@much
async def test_copy_in(front: Front, session: asyncpg.Connection, table: str, size: int) -> None:
    await session.execute(f"CREATE TABLE {table} (x text)")
    peak = Peak(front.between)
    # Postgres reads it all, and keeps what is of another length: nothing.
    where = f"length(x) <> {len(LINE) - 1}"
    done = await session.copy_to_table(table, source=lines(size), where=where, timeout=PATIENCE)
    assert done == "COPY 0"
    assert peak.growth < ROOM


@much
async def test_copy_out(front: Front, session: asyncpg.Connection, size: int) -> None:
    peak = Peak(front.between)
    taken = 0

    async def take(data: bytes) -> None:
        nonlocal taken
        taken += len(data)

    done = await session.copy_from_query(query(size), output=take, timeout=PATIENCE)
    assert (done, taken) == (f"COPY {size // len(LINE)}", size)
    assert peak.growth < ROOM


async def test_copy_out_to_a_slow_reader(front: Front, session: asyncpg.Connection, site: Site) -> None:
    peak = Peak(front.between)
    began, goes_on = asyncio.Event(), asyncio.Event()
    taken = 0

    async def take(data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        began.set()
        await goes_on.wait()

    copying = asyncio.create_task(session.copy_from_query(query(MUCH), output=take, timeout=PATIENCE))
    await began.wait()
    await until(lambda: site.admin.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"))
    assert taken < ROOM
    goes_on.set()
    assert await copying == f"COPY {MUCH // len(LINE)}"
    assert taken == MUCH
    assert peak.growth < ROOM


async def test_copy_in_to_a_slow_postgres(front: Front, session: asyncpg.Connection, table: str, site: Site) -> None:
    await session.execute(f"CREATE TABLE {table} (x text)")
    peak = Peak(front.between)
    given, is_enough = 0, False

    async def source() -> AsyncIterator[bytes]:
        nonlocal given
        yield b"wait\n"
        async for some in lines(UNTAKEN):
            if is_enough:
                return
            given += len(some)
            yield some

    site.admin.execute("SELECT pg_advisory_lock(%s)", LOCK)
    try:
        where = f"CASE WHEN x = 'wait' THEN pg_advisory_xact_lock({LOCK})::text = 'x' ELSE false END"
        copying = asyncio.create_task(session.copy_to_table(table, source=source(), where=where, timeout=PATIENCE))
        await until(lambda: site.admin.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'advisory'"))
        # In this time much more would come, if somebody took it; the kernel does take some.
        await asyncio.sleep(0.5)
        assert given < UNTAKEN
        is_enough = True
    finally:
        site.admin.execute("SELECT pg_advisory_unlock(%s)", LOCK)
    assert await copying == "COPY 0"
    assert peak.growth < ROOM


@large
async def test_a_large_parameter(front: Front, connect: Connect, size: int) -> None:
    session = await connect(command_timeout=PATIENCE)
    statement = await session.prepare("SELECT octet_length($1::bytea)")
    peak = Peak(front.between)
    assert await statement.fetchval(bytes(size)) == size
    assert peak.growth < ROOM
    assert await session.fetchval("SELECT 1") == 1


@large
async def test_a_large_value(front: Front, connect: Connect, size: int) -> None:
    session = await connect(command_timeout=PATIENCE)
    statement = await session.prepare("SELECT repeat('x', $1::int)")
    peak = Peak(front.between)
    assert len(await statement.fetchval(size)) == size
    assert peak.growth < ROOM
    assert await session.fetchval("SELECT 1") == 1


@large
async def test_a_large_query(front: Front, connect: Connect, size: int) -> None:
    session = await connect(command_timeout=PATIENCE)
    peak = Peak(front.between)
    assert await session.execute("SELECT 1 -- " + "x" * size) == "SELECT 1"
    assert peak.growth < ROOM
    assert await session.fetchval("SELECT 1") == 1
