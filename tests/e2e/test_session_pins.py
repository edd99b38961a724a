"""Sessions that keep their backend in transaction mode, for what only it has; or are refused, or lose it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from helpers.session_states import EVERYTHING, PINS, backend_of, pinned, play_pins, root, sessions
from helpers.sidecars import sidecar_process
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

__all__ = ["root"]

ONE = {"default_pool_size": 1}


async def show(gateway: LocalGateway, what: str) -> list[dict[str, Any]]:
    """What the console says."""

    def run() -> list[dict[str, Any]]:
        login = gateway.conninfo("unix", user="pgtrunk", password=None, dbname="pgbouncer")
        with psycopg.connect(**login, autocommit=True) as connection:
            return connection.cursor(row_factory=dict_row).execute(f"SHOW {what}".encode()).fetchall()

    return await asyncio.to_thread(run)


# -- pins --------------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_carried_keeps_its_backend(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE)
    await play_pins(gateway, pooled)
    (row,) = [row for row in await show(gateway, "POOLS") if row["database"] == DATABASE]
    assert row["pins_total"] == 2 * len(PINS)


async def test_what_is_told_of_it(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    notices: list[Any] = []
    session.add_log_listener(lambda _, notice: notices.append(notice))
    assert await show(gateway, "PINS") == []
    await session.execute(EVERYTHING)
    await until(lambda: notices)
    words = ", ".join(PINS)
    (notice,) = notices
    assert notice.severity == "NOTICE"
    assert notice.message == f"this session keeps its server connection from now on: {words}"
    assert "session_state = pin" in notice.detail and "DISCARD ALL" in notice.hint
    (row,) = await show(gateway, "PINS")
    own = sessions(gateway)[0]
    assert (row["user"], row["database"], row["pinned"], row["id"]) == (USER, DATABASE, words, own.id)
    assert row["remote_pid"] == await backend_of(session)
    assert 0 <= row["seconds"] < 100
    clients = {row["id"]: row["pinned"] for row in await show(gateway, "CLIENTS")}
    assert clients[own.id] == words
    assert clients[sessions(gateway)[1].id] == ""
    assert await other.fetchval("SELECT 1") == 1
    await session.execute("DISCARD ALL")
    await until(lambda: not pinned(gateway))
    assert await show(gateway, "PINS") == []
    assert len(notices) == 1


@pytest.mark.parametrize("ending", ["close", "terminate", "in a transaction"])
async def test_what_a_pinned_session_leaves_is_gone(start: Start, pooled: Way, ending: str) -> None:
    gateway = await start(**ONE)
    session = await gateway.connect(pooled)
    await session.execute(EVERYTHING + "; SET work_mem = '1234kB'; SET TimeZone = 'Asia/Tokyo'")
    pid = await backend_of(session)
    if ending == "close":
        await session.close()
    else:
        if ending == "in a transaction":
            await session.execute("BEGIN; LOCK TABLE pg_class IN ACCESS SHARE MODE")
        session.terminate()
    other = await gateway.connect(pooled)
    assert await backend_of(other) == pid
    left = await other.fetchrow(
        "SELECT current_setting('work_mem') AS work_mem, current_setting('TimeZone') AS zone,"
        " (SELECT count(*) FROM pg_listening_channels()) AS channels, to_regclass('mine') AS mine,"
        " (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors,"
        " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') AS locks"
    )
    assert left is not None
    assert left["work_mem"] != "1234kB" and left["zone"] != "Asia/Tokyo"
    assert (left["channels"], left["mine"], left["cursors"], left["locks"]) == (0, None, 0, 0)
    assert gateway.counts(backends=1)


@pytest.mark.both_loops
async def test_notifications(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    heard: asyncio.Queue[object] = asyncio.Queue()

    def hear(*news: object) -> None:
        heard.put_nowait(news[-1])

    await session.add_listener("state_news", hear)
    await until(lambda: pinned(gateway) == ["LISTEN"])
    for number in range(3):
        gateway.site.admin.execute(f"NOTIFY state_news, '{number}'")
        assert await asyncio.wait_for(heard.get(), 20) == str(number)
        await other.execute(f"NOTIFY state_news, 'other {number}'")
        assert await asyncio.wait_for(heard.get(), 20) == f"other {number}"
        async with session.transaction():
            await session.execute(f"NOTIFY state_news, 'own {number}'")
        assert await asyncio.wait_for(heard.get(), 20) == f"own {number}"
    await session.remove_listener("state_news", hear)
    await until(lambda: not pinned(gateway))
    gateway.site.admin.execute("NOTIFY state_news, 'nobody'")
    assert await session.fetchval("SELECT 1") == 1
    assert heard.empty()


async def test_notifications_through_a_sidecar(start: Start, site: Site) -> None:
    gateway = await start(default_pool_size=2)
    async with (
        sidecar_process(site, gateway.quic.port) as sidecar,
        await psycopg.AsyncConnection.connect(**sidecar.conninfo(), autocommit=True) as session,
    ):
        await session.execute("LISTEN sidecar_news")
        await until(lambda: pinned(gateway) == ["LISTEN"])
        for number in range(3):
            site.admin.execute(f"NOTIFY sidecar_news, '{number}'")
            (news,) = [news async for news in session.notifies(timeout=20, stop_after=1)]
            assert (news.channel, news.payload) == ("sidecar_news", str(number))
        await session.execute("UNLISTEN *")
        await until(lambda: not pinned(gateway))


async def test_load(start: Start, root: str) -> None:
    gateway = await start(databases={"root": root}, **ONE)
    session = await gateway.connect("tcp", database="root", statement_cache_size=0)
    pid = await backend_of(session)
    await session.execute("LOAD 'plpgsql'")
    await until(lambda: pinned(gateway) == ["LOAD"])
    await session.execute("DISCARD ALL")
    assert await backend_of(session) == pid
    assert pinned(gateway) == ["LOAD"]
    await session.close()
    other = await gateway.connect("tcp", database="root")
    # There is no way to unload it.
    assert await backend_of(other) != pid
    with pytest.raises(asyncpg.PostgresError):
        await other.execute("LOAD 'no such library'")
    assert not pinned(gateway)
    await other.close()


async def test_a_do_block_and_a_function_of_ones_own(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE)
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    await session.execute("DO $$ BEGIN SET lock_timeout = '5s'; PERFORM set_config('app.x', '1', false); END $$")
    for _ in range(2):
        assert await other.fetchval("SHOW lock_timeout") == "0"
        assert await session.fetchval("SHOW lock_timeout") == "5s"
        assert await session.fetchval("SELECT current_setting('app.x')") == "1"
    await session.execute("DO $$ BEGIN EXECUTE 'CREATE TEMP TABLE mine (a int)'; END $$")
    await until(lambda: pinned(gateway) == ["temporary table"])


async def test_asyncpgs_own_pool_gives_backends_back(start: Start) -> None:
    """What it sends when a connection comes back to it frees what the gateway keeps."""
    gateway = await start(default_pool_size=2)
    login = {**gateway.address("tcp"), "user": USER, "password": PASSWORD, "database": DATABASE, "ssl": False}
    async with asyncpg.create_pool(**login, min_size=3, max_size=3) as pool:
        for _ in range(3):
            async with pool.acquire() as session:
                await session.execute("LISTEN news; SET lock_timeout = '5s'; SELECT pg_advisory_lock(79)")
                await until(lambda: pinned(gateway))
            await until(lambda: not pinned(gateway))
            async with pool.acquire() as session:
                assert await session.fetchval("SHOW lock_timeout") == "0"


# -- the gateway's own business ----------------------------------------------------------------------------------------


async def test_pause_and_reload_with_a_pinned_session(start: Start) -> None:
    gateway = await start(default_pool_size=2)
    session, other = await gateway.connect("tcp"), await gateway.connect("tcp")
    await session.execute("LISTEN news")
    await until(lambda: pinned(gateway))
    pid = await backend_of(session)
    await gateway.gateway.operations.reload()
    assert await backend_of(session) == pid
    assert pinned(gateway) == ["LISTEN"]
    (pool,) = gateway.gateway.pools
    pool.reconnect()
    # It may keep what it has; whoever is not pinned has another backend.
    assert await backend_of(session) == pid
    assert await other.fetchval("SELECT 1") == 1
    await session.execute("UNLISTEN *")
    assert await backend_of(session) != pid


async def test_a_pause_waits_for_a_pinned_session(start: Start) -> None:
    gateway = await start(**ONE)
    session = await gateway.connect("tcp")
    await session.execute("LISTEN news")
    await until(lambda: pinned(gateway))
    (pool,) = gateway.gateway.pools
    pool.pause()
    paused = asyncio.ensure_future(pool.wait_idle())
    assert await session.fetchval("SELECT 1") == 1
    assert not paused.done()
    await session.execute("UNLISTEN *")
    await asyncio.wait_for(paused, 20)
    waiting = asyncio.ensure_future(session.fetchval("SELECT 2"))
    await until(lambda: gateway.counts(waiting=1))
    pool.resume()
    assert await waiting == 2


async def test_kill_and_the_end_of_a_backend(start: Start) -> None:
    gateway = await start(default_pool_size=2)
    session = await gateway.connect("tcp")
    await session.execute("LISTEN news")
    await until(lambda: pinned(gateway))
    gateway.site.admin.execute("SELECT pg_terminate_backend(%s)", await backend_of(session))
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        for _ in range(100):
            await session.execute("SELECT 1")
    await until(lambda: not pinned(gateway))
    assert await (await gateway.connect("tcp")).fetchval("SELECT 1") == 1


async def test_a_shutdown_waits_for_pinned_sessions(start: Start) -> None:
    gateway = await start(default_pool_size=2, shutdown_timeout=60)
    session, idle = await gateway.connect("tcp"), await gateway.connect("tcp")
    await session.execute("LISTEN news")
    await until(lambda: pinned(gateway))
    context = gateway.gateway.context
    context.closing_idle = True
    for one in sessions(gateway):
        one.end_if_idle()
    await until(idle.is_closed)
    assert await session.fetchval("SELECT 1") == 1
    await session.execute("UNLISTEN *")
    await until(session.is_closed)
    context.closing_idle = False


# -- error and ignore --------------------------------------------------------------------------------------------------


async def test_what_is_refused(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE, session_state="error")
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    for words, (pins, _) in {**PINS, "LOAD": ("LOAD 'plpgsql'", "")}.items():
        with pytest.raises(asyncpg.FeatureNotSupportedError) as caught:
            await session.execute(pins)
        assert caught.value.message == f"{words}: this needs a server connection of the session's own"
        assert "session_state = error" in str(caught.value.detail)
        assert "pool_mode be session" in str(caught.value.hint)
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await session.fetch(pins)
    with pytest.raises(asyncpg.FeatureNotSupportedError):
        async with session.transaction():
            await session.execute("SET lock_timeout = '5s'; SET app.x = '1'")
            await session.execute("LISTEN news")
    assert await session.fetchval("SHOW lock_timeout") == "0"
    await session.execute("SET lock_timeout = '5s'")
    assert await other.fetchval("SHOW lock_timeout") == "0"
    assert await session.fetchval("SHOW lock_timeout") == "5s"
    assert not pinned(gateway)


async def test_what_is_let_go(start: Start, pooled: Way) -> None:
    gateway = await start(**ONE, session_state="ignore")
    session, other = await gateway.connect(pooled), await gateway.connect(pooled)
    for pins, frees in PINS.values():
        await session.execute(pins)
        assert await other.fetchval("SELECT 1") == 1
        # By luck it is the same backend.
        await session.execute(frees)
    await session.execute("SET lock_timeout = '5s'")
    assert await other.fetchval("SHOW lock_timeout") == "0"
    assert await session.fetchval("SHOW lock_timeout") == "5s"
    assert not pinned(gateway)
