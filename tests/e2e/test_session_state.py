"""The settings that a session makes in transaction mode: they follow it, nobody else has them, and they cost little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest

from helpers.flights import counted
from helpers.raw_session import RawSession
from helpers.session_states import backend_of, pinned, play_settings, root
from helpers.site import USER
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import Start, Way

__all__ = ["root"]

ONE = {"default_pool_size": 1}


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize("size", [1, 2, 3])
async def test_settings_follow_their_session_and_no_other(start: Start, pooled: Way, size: int) -> None:
    await play_settings(await start(default_pool_size=size), pooled)


async def test_transactions_and_savepoints(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    async with session.transaction():
        await session.execute("SET lock_timeout = '1s'")
        inner = session.transaction()
        await inner.start()
        await session.execute("SET lock_timeout = '2s'; SET statement_timeout = '7s'")
        await inner.rollback()
        assert await session.fetchval("SHOW lock_timeout") == "1s"
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with session.transaction():
            await session.execute("SET lock_timeout = '3s'")
            await session.execute("SELECT 1/0")
    for _ in range(2):
        assert await other.fetchval("SHOW lock_timeout") == "0"
        assert await session.fetchval("SHOW lock_timeout") == "1s"
        assert await session.fetchval("SHOW statement_timeout") == "0"


async def test_roles(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE)
    admin = gateway.site.admin
    admin.execute("CREATE ROLE carried")
    admin.execute("GRANT carried TO app")
    try:
        session, other = await gateway.connect(pooled), await gateway.connect(pooled)
        await session.execute("SET ROLE carried")
        for _ in range(2):
            assert await other.fetchval("SELECT current_user") == USER
            assert await session.fetchval("SELECT current_user") == "carried"
        await session.execute("RESET ROLE")
        assert await session.fetchval("SELECT current_user") == USER
        await session.execute("SET ROLE carried")
        assert await other.fetchval("SELECT current_user") == USER
        admin.execute("REVOKE carried FROM app")
        # Nothing runs as somebody else than the session wants.
        with pytest.raises(asyncpg.PostgresError, match="permission denied to set role"):
            await session.fetchval("SELECT current_user")
        assert await other.fetchval("SELECT current_user") == USER
    finally:
        admin.execute("DROP ROLE carried")


async def test_who_a_superuser_says_that_it_is(start: Start, root: str) -> None:
    gateway = await start(databases={"root": root}, **ONE)
    session, other = await gateway.connect("tcp", database="root"), await gateway.connect("tcp", database="root")
    await session.execute(f"SET SESSION AUTHORIZATION {USER}")
    for _ in range(2):
        assert await other.fetchval("SELECT session_user") == "state_root"
        assert await session.fetchval("SELECT session_user") == USER
    await session.execute("RESET SESSION AUTHORIZATION")
    for one in (other, session):
        assert await one.fetchval("SELECT session_user") == "state_root"
    await session.close()
    await other.close()


async def test_a_short_statement_timeout(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE)
    hasty, other = await gateway.connect(pooled), await gateway.connect(pooled)
    await hasty.execute("SET statement_timeout = '100ms'")
    for _ in range(3):
        assert await other.fetchval("SHOW statement_timeout") == "0"
        with pytest.raises(asyncpg.QueryCanceledError):
            await hasty.execute("SELECT pg_sleep(60)")
    assert not pinned(gateway)


async def test_a_long_script_such_as_pg_dumps(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    rows = ",\n".join(f"({number}, 'a set of data; drop it')" for number in range(20_000))
    await session.execute(
        "SET statement_timeout = 0;\nSET lock_timeout = '5s';\n"
        "SELECT pg_catalog.set_config('search_path', '', false);\n"
        f"SELECT count(*) FROM (VALUES {rows}) v;\nSET work_mem = '1234kB';\n"
    )
    assert not pinned(gateway)
    for _ in range(2):
        assert await other.fetchval("SHOW search_path") == '"$user", public'
        assert await other.fetchval("SHOW lock_timeout") == "0"
        assert await session.fetchval("SHOW search_path") == ""
        assert await session.fetchval("SHOW lock_timeout") == "5s"
        assert await session.fetchval("SHOW work_mem") == "1234kB"


async def test_a_value_of_another_encoding(start: Start) -> None:
    gateway = await start(**ONE)
    conninfo = gateway.conninfo("tcp")
    async with (
        await psycopg.AsyncConnection.connect(**conninfo, client_encoding="LATIN1", autocommit=True) as latin,
        await psycopg.AsyncConnection.connect(**conninfo, autocommit=True) as utf8,
    ):
        await latin.execute("SET app.x = 'größe'")
        for _ in range(2):
            await utf8.execute("SET app.x = 'schöner'")
            for session, value in ((latin, "größe"), (utf8, "schöner")):
                answer = await session.execute("SELECT current_setting('app.x'), length(current_setting('app.x'))")
                assert await answer.fetchone() == (value, len(value))
        await latin.execute("SET client_encoding = 'UTF8'")
        await utf8.execute("SELECT 1")
        answer = await latin.execute("SELECT length(current_setting('app.x'))")
        assert await answer.fetchone() == (5,)


async def test_a_session_that_goes_on_at_once(start: Start, pooled: Way) -> None:
    """Before the gateway knows what has been set."""
    gateway = await start(default_pool_size=2, auth_type="trust")
    session = await RawSession.start(gateway, pooled, lock_timeout="5s")
    assert await session.ask(frontend.query(b"SELECT 1")) == "TDCZI"
    for text, expected in ((b"SET lock_timeout = '9s'", b"9s"), (b"RESET ALL", b"5s"), (b"SET lock_timeout = 0", b"0")):
        session.send(frontend.query(text))
        await session.until_ready()
        session.send(frontend.query(b"SHOW lock_timeout"))
        (row,) = (answer for answer in await session.until_ready() if answer.kind == "D")
        assert row.body.endswith(expected)


# -- what it costs -----------------------------------------------------------------------------------------------------


async def test_ordinary_requests_are_not_asked_after(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE)
    session = await gateway.connect(pooled)
    await session.fetchval("SELECT $1::int", 5)
    flights = counted(gateway)
    for _ in range(3):
        await session.execute("SELECT 1")
        await session.execute("SELECT 'set; listen'; SELECT 2")
        assert await session.fetchval("SELECT $1::int", 5) == 5
        async with session.transaction():
            await session.execute("SET LOCAL lock_timeout = '5s'")
            await session.execute("SELECT set_config('app.x', '1', true)")
        await session.execute("SET TimeZone = 'UTC'")
        await session.execute("UNLISTEN *")
        await session.reset()
    assert not any(b"pg_catalog.current_setting" in write or b"EXISTS(" in write for write in flights.writes)
    flights.writes.clear()
    await session.execute("SET lock_timeout = '5s'")
    await until(lambda: gateway.counts(leased=0))
    assert len(flights.writes) == 2
    await session.execute("SELECT 1")
    assert flights.writes[2:] == [frontend.query(b"SELECT 1")]


async def test_a_backend_that_has_the_settings_is_preferred(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    await session.execute("SET lock_timeout = '5s'")
    async with session.transaction():
        own = await backend_of(session)
        assert await backend_of(other) != own
    for _ in range(5):
        assert await backend_of(other) != own
        assert await backend_of(session) == own
        assert await backend_of(other) != own
