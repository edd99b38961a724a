"""Cancels: by asyncpg, by psycopg, and by ^C in psql. They hit what runs, and the session goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from behaviour.fronts import PSQL
from helpers.waiting import until, until_blocking
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from helpers.site import Site

Connect = Callable[..., Awaitable[asyncpg.Connection]]


async def test_asyncpg_cancels(session: asyncpg.Connection, site: Site, table: str) -> None:
    running = asyncio.create_task(session.execute(f"SELECT pg_sleep(60) /* {table} */"))
    await until(lambda: site.admin.running(table))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not site.admin.running(table))
    with pytest.raises(TimeoutError):
        await session.fetchval("SELECT 1 FROM pg_sleep(60)", timeout=0.05)
    assert await session.fetchval("SELECT 1") == 1


async def test_in_a_transaction(session: asyncpg.Connection) -> None:
    async with session.transaction():
        pid = await session.fetchval("SELECT pg_backend_pid()")
        with pytest.raises(TimeoutError):
            async with session.transaction():
                await session.execute("SELECT pg_sleep(60)", timeout=0.05)
        assert await session.fetchval("SELECT pg_backend_pid()") == pid


async def test_psycopg_cancels(libpq: psycopg.AsyncConnection[Any], site: Site, table: str) -> None:
    running = asyncio.create_task(libpq.execute(f"SELECT pg_sleep(60) /* {table} */".encode()))
    await until(lambda: site.admin.running(table))
    await libpq.cancel_safe(timeout=20)
    with pytest.raises(psycopg.errors.QueryCanceled, match="canceling statement due to user request"):
        await running
    # One that comes too late does no harm.
    await libpq.cancel_safe(timeout=20)
    assert await (await libpq.execute("SELECT 1")).fetchone() == (1,)


@pytest.mark.parametrize("how", ["cancel", "cancel_safe"])
def test_psycopg_cancels_from_another_thread(conninfo: dict[str, Any], site: Site, table: str, how: str) -> None:
    """By libpq's old function, which speaks in clear and to the same address, and by the one of libpq 17."""
    with psycopg.connect(**conninfo, autocommit=True) as connection, ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            running = pool.submit(connection.execute, f"SELECT pg_sleep(60) /* {table} */".encode())
            until_blocking(lambda: site.admin.running(table))
            getattr(connection, how)()
            with pytest.raises(psycopg.errors.QueryCanceled, match="canceling statement due to user request"):
                running.result(20)
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("conninfo", PSQL, indirect=True)
async def test_control_c_in_psql(conninfo: dict[str, Any], site: Site, table: str) -> None:
    environment = os.environ | {"PGPASSWORD": conninfo.pop("password")}
    psql = await asyncio.create_subprocess_exec(
        EmbeddedPostgres.binary("psql"),
        *("-X", "-c", f"SELECT pg_sleep(60) /* {table} */"),
        " ".join(f"{name}={value}" for name, value in conninfo.items()),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: site.admin.running(table))
    psql.send_signal(signal.SIGINT)
    async with asyncio.timeout(20):
        _, said = await psql.communicate()
    assert b"canceling statement due to user request" in said
    assert psql.returncode == 1
    await until(lambda: not site.admin.running(table))


async def test_statement_timeout(session: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.QueryCanceledError, match="statement timeout"):
        async with session.transaction():
            await session.execute("SET LOCAL statement_timeout = 20")
            await session.execute("SELECT pg_sleep(60)")
    assert await session.fetchval("SELECT 1") == 1
