"""The state of a session in transaction mode: settings follow it, and what cannot be carried keeps its backend."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import dict_row

from helpers.flights import counted
from helpers.postgres import create_user
from helpers.raw_session import RawSession
from helpers.session_states import EVERYTHING, PINS, backend_of, pinned, play_pins, play_settings, sessions
from helpers.sidecars import sidecar_process
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

ONE = {"default_pool_size": 1}


async def show(gateway: LocalGateway, what: str) -> list[dict[str, Any]]:
    """What the console says."""

    def run() -> list[dict[str, Any]]:
        login = gateway.conninfo("unix", user="pgtrunk", password=None, dbname="pgbouncer")
        with psycopg.connect(**login, autocommit=True) as connection:
            return connection.cursor(row_factory=dict_row).execute(f"SHOW {what}".encode()).fetchall()

    return await asyncio.to_thread(run)


@pytest_asyncio.fixture
async def root(site: Site) -> str:
    """An entry of [databases] whose backends are a superuser's."""
    await create_user(site.postgres, "state_root", "secret", "SUPERUSER")
    return site.target(f"user=state_root password=secret dbname={DATABASE}")


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
