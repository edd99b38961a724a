"""The console of a fleet of processes: from any worker it shows and steers all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import pytest

from helpers.fleets import fleet_process
from helpers.site import DATABASE, USER
from helpers.waiting import until, until_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helpers.fleets import LocalFleet, StartFleet
    from helpers.site import Site

WORKERS: Final = 2
LAST: Final = WORKERS - 1
PLAIN: Final[Mapping[str, Any]] = {"workers": WORKERS, "quic_cert_file": None, "quic_key_file": None}


async def consoles(fleet: LocalFleet) -> list[asyncpg.Connection]:
    """An administrator at each worker's console, by the workers' numbers."""
    found: dict[int, asyncpg.Connection] = {}
    async with asyncio.timeout(30):
        while len(found) < fleet.supervisor.count:
            name = f"console {len(fleet.connections)}"
            connection = await fleet.connect(
                "unix",
                user="pgbouncer",
                password=None,
                database="pgbouncer",
                server_settings={"application_name": name},
            )
            clients = await connection.fetch("SHOW CLIENTS")
            (worker,) = [row["worker"] for row in clients if row["application_name"] == name]
            found.setdefault(worker, connection)
    return [found[index] for index in range(fleet.supervisor.count)]


async def rewrite(fleet: LocalFleet, old: str, new: str) -> None:
    text = await asyncio.to_thread(fleet.ini.read_text)
    assert old in text
    await asyncio.to_thread(fleet.ini.write_text, text.replace(old, new))


async def values(console: asyncpg.Connection, key: str) -> set[str]:
    """A setting, as each worker has it."""
    return {row["value"] for row in await console.fetch("SHOW CONFIG BY WORKER") if row["key"] == key}


# -- SHOW --------------------------------------------------------------------------------------------------------------


async def test_each_show_is_the_sum_of_what_is_there(start_fleet: StartFleet) -> None:
    count = 3
    fleet = await start_fleet(**{**PLAIN, "workers": count}, default_pool_size=20, max_client_conn=50)
    admins = await consoles(fleet)
    sessions = [await fleet.connect() for _ in range(3 * count)]
    for number, session in enumerate(sessions):
        await session.fetchval("SELECT 1")
        if number % 2:
            await session.execute("BEGIN; SELECT 1")
    counters = [await fleet.counters(index) for index in range(count)]
    leased = sum(each["leased"] for each in counters)
    backends = sum(each["backends"] for each in counters)
    assert (leased, [each["sessions"] for each in counters]) == (len(sessions) // 2, [3] * count)
    for admin in admins:
        (pool,) = [row for row in await admin.fetch("SHOW POOLS") if row["database"] == DATABASE]
        assert (pool["cl_active"], pool["sv_active"], pool["pool_size"]) == (len(sessions), leased, 20)
        assert pool["sv_active"] + pool["sv_idle"] + pool["sv_used"] == backends
        each = [row for row in await admin.fetch("SHOW POOLS BY WORKER") if row["database"] == DATABASE]
        assert [(row["worker"], row["cl_active"]) for row in each] == [(index, 3) for index in range(count)]
        clients = [row for row in await admin.fetch("SHOW CLIENTS") if row["database"] == DATABASE]
        assert sorted(row["worker"] for row in clients) == sorted([*range(count)] * 3)
        assert len({row["id"] for row in clients}) == len(sessions)
        servers = await admin.fetch("SHOW SERVERS")
        assert len(servers) == backends and sum(row["state"] == "active" for row in servers) == leased
        lists = {row["list"]: row["items"] for row in await admin.fetch("SHOW LISTS")}
        assert (lists["used_clients"], lists["used_servers"]) == (len(sessions) + count, backends)
        assert (lists["databases"], lists["pools"], lists["free_clients"]) == (2, 2, 50 - len(sessions))
        (database,) = [row for row in await admin.fetch("SHOW DATABASES") if row["name"] == DATABASE]
        assert database["current_client_connections"] == len(sessions)
        assert database["current_connections"] == backends
        (user,) = [row for row in await admin.fetch("SHOW USERS") if row["name"] == USER]
        assert (user["current_connections"], user["current_client_connections"]) == (backends, len(sessions))
        fleet_rows = await admin.fetch("SHOW FLEET")
        assert [row["sessions"] for row in fleet_rows] == [3] * count
        assert [row["pid"] for row in fleet_rows] == fleet.all_pids()
        assert sum(row["backends"] for row in fleet_rows) == backends
        (totals,) = [row for row in await admin.fetch("SHOW STATS_TOTALS") if row["database"] == DATABASE]
        assert totals["client_login_count"] == len(sessions)
        apart = [row for row in await admin.fetch("SHOW STATS_TOTALS BY WORKER") if row["database"] == DATABASE]
        assert sum(row["xact_count"] for row in apart) == totals["xact_count"] >= len(sessions)


async def test_totals_outlive_a_worker_and_the_fleet_tells_of_its_death(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admin, *_ = await consoles(fleet)
    sessions = [await fleet.connect() for _ in range(WORKERS)]
    for session in sessions:
        for _ in range(10):
            await session.fetchval("SELECT 1")

    async def count() -> int:
        rows = await admin.fetch("SHOW STATS_TOTALS")
        return next(int(row["xact_count"]) for row in rows if row["database"] == DATABASE)

    before = await count()
    assert before >= 10 * WORKERS
    await fleet.kill(LAST)
    assert await count() == before
    await fleet.until_served()
    assert await count() == before
    rows = await admin.fetch("SHOW FLEET")
    assert [row["restarts"] for row in rows] == [0, 1]
    assert [row["state"] for row in rows] == ["active"] * WORKERS


async def test_a_stopped_worker_is_named_and_the_others_are_shown(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admin, *_ = await consoles(fleet)
    heard: list[str] = []
    admin.add_log_listener(lambda _, message: heard.append(message.message))
    os.kill(fleet.pid(LAST), signal.SIGSTOP)
    try:
        shown = {row["worker"] for row in await admin.fetch("SHOW MEM")}
    finally:
        os.kill(fleet.pid(LAST), signal.SIGCONT)
    assert shown == {0}
    await until(lambda: heard)
    assert heard[0].startswith("worker 1 is not among these")


# -- verbs -------------------------------------------------------------------------------------------------------------


async def test_a_pause_waits_for_transactions_of_other_workers(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admins = await consoles(fleet)
    sessions = [await fleet.connect() for _ in range(WORKERS)]
    transaction = sessions[0].transaction()
    await transaction.start()
    await sessions[0].fetchval("SELECT 1")
    for admin in admins:
        pausing = asyncio.create_task(admin.execute("PAUSE"))
        await until(lambda: fleet.supervisor.operations.state == "paused")
        await asyncio.sleep(0.2)
        assert not pausing.done()
        # Whoever it was, the others know.
        other = admins[(admins.index(admin) + 1) % WORKERS]
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="already suspended/paused"):
            await other.execute("PAUSE")
        await sessions[0].fetchval("SELECT 1")
        await transaction.rollback()
        await asyncio.wait_for(pausing, 30)
        waiting = [asyncio.create_task(session.fetchval("SELECT 1")) for session in sessions]
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in waiting)
        await other.execute("RESUME")
        assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [1] * WORKERS
        transaction = sessions[0].transaction()
        await transaction.start()
        await sessions[0].fetchval("SELECT 1")
    await transaction.rollback()


async def test_a_client_on_another_worker_is_killed(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admins = await consoles(fleet)
    sessions = [await fleet.connect() for _ in range(WORKERS)]
    clients = [row for row in await admins[0].fetch("SHOW CLIENTS") if row["database"] == DATABASE]
    victim = next(row for row in clients if row["worker"] == LAST)
    await admins[0].execute(f"KILL_CLIENT {victim['id']}")
    left = [row["id"] for row in await admins[0].fetch("SHOW CLIENTS") if row["database"] == DATABASE]
    assert sorted(left) == sorted(row["id"] for row in clients if row["id"] != victim["id"])
    await until(lambda: sum(session.is_closed() for session in sessions) == 1)
    with pytest.raises(asyncpg.UndefinedObjectError, match="client not found"):
        await admins[LAST].execute(f"KILL_CLIENT {victim['id']}")


async def test_databases_are_disabled_and_enabled(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admins = await consoles(fleet)
    await admins[1].execute(f"DISABLE {DATABASE}")
    for _ in range(WORKERS):
        with pytest.raises(asyncpg.PostgresError):
            await fleet.connect()
    await admins[LAST].execute(f"ENABLE {DATABASE}")
    for _ in range(WORKERS):
        assert await (await fleet.connect()).fetchval("SELECT 1") == 1


async def test_reconnect_and_kill(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admins = await consoles(fleet)
    sessions = [await fleet.connect() for _ in range(WORKERS)]
    before = {await session.fetchval("SELECT pg_backend_pid()") for session in sessions}
    await admins[0].execute("RECONNECT")
    await admins[1].execute("WAIT_CLOSE")
    after = {await session.fetchval("SELECT pg_backend_pid()") for session in sessions}
    assert not before & after
    await admins[LAST].execute(f"KILL {DATABASE}")
    await until(lambda: all(session.is_closed() for session in sessions))
    assert not [row for row in await admins[0].fetch("SHOW SERVERS") if row["database"] == DATABASE]
    await admins[0].execute(f"RESUME {DATABASE}")
    assert await (await fleet.connect()).fetchval("SELECT 1") == 1


async def test_suspend_and_resume(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admins = await consoles(fleet)
    sessions = [await fleet.connect() for _ in range(WORKERS)]
    await admins[0].execute("SUSPEND")
    waiting = [asyncio.create_task(session.fetchval("SELECT 1")) for session in sessions]
    await asyncio.sleep(0.2)
    assert not any(each.done() for each in waiting)
    await admins[LAST].execute("RESUME")
    assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [1] * WORKERS


def test_shutdown_at_one_console_ends_the_fleet(site: Site) -> None:
    with fleet_process(site, **PLAIN) as fleet:
        fleet.port()
        with fleet.connect("unix", user="pgbouncer", dbname="pgbouncer") as admin:
            with contextlib.suppress(psycopg.OperationalError):
                admin.execute("SHUTDOWN")
            assert fleet.wait() == 0


def test_shutdown_waits_for_the_clients_of_all_workers(site: Site) -> None:
    with fleet_process(site, **PLAIN) as fleet:
        with fleet.connect() as one, fleet.connect() as other:
            with fleet.connect("unix", user="pgbouncer", dbname="pgbouncer") as admin:
                admin.execute("SHUTDOWN WAIT_FOR_CLIENTS")
            for session in (one, other):
                assert session.execute("SELECT 1").fetchone() == (1,)
        assert fleet.wait() == 0


# -- the configuration -------------------------------------------------------------------------------------------------


async def test_reload_and_set_are_for_all(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN, default_pool_size=4)
    admins = await consoles(fleet)
    await rewrite(fleet, "default_pool_size = 4", "default_pool_size = 5")
    await admins[1].execute("RELOAD")
    assert await values(admins[0], "default_pool_size") == {"5"}
    await admins[LAST].execute("SET default_pool_size = 6")
    assert await values(admins[0], "default_pool_size") == {"6"}
    assert fleet.supervisor.loaded.config.default_pool_size == 6
    await fleet.supervisor.operations.reload()
    assert await values(admins[0], "default_pool_size") == {"5"}
    assert fleet.log.count("default_pool_size: 4 -> 5") == 1


async def test_an_error_on_disk_changes_nothing_anywhere(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN, default_pool_size=4)
    admins = await consoles(fleet)
    await rewrite(fleet, "default_pool_size = 4", "default_pool_size = 5\nquery_timeout = long")
    for admin in admins:
        with pytest.raises(asyncpg.PostgresError, match="RELOAD failed") as caught:
            await admin.execute("RELOAD")
        refusal: Any = caught.value
        assert f"{fleet.ini}:" in refusal.detail and "query_timeout" in refusal.detail
    assert await values(admins[0], "default_pool_size") == {"4"}
    # Nor where one worker starts anew.
    await fleet.kill(LAST)
    await fleet.until_served()
    assert await values(admins[0], "default_pool_size") == {"4"}


async def test_a_worker_that_is_killed_while_paused_comes_back_paused(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN)
    admins = await consoles(fleet)
    await admins[0].execute("SET query_wait_timeout = 60")
    await admins[0].execute("PAUSE")
    await fleet.kill(LAST)
    await fleet.until_served()
    states = [
        (row["worker"], row["key"]) for row in await admins[0].fetch("SHOW STATE BY WORKER") if row["value"] == "yes"
    ]
    assert states == [(index, "paused") for index in range(WORKERS)]
    assert await values(admins[0], "query_wait_timeout") == {"60"}
    sessions = [asyncio.create_task(fleet.connect()) for _ in range(WORKERS)]
    await asyncio.sleep(0.2)
    assert not any(each.done() for each in sessions)
    await admins[0].execute("RESUME")
    for each in sessions:
        assert await (await asyncio.wait_for(each, 30)).fetchval("SELECT 1") == 1


async def test_reloads_sets_and_deaths_at_once_leave_all_workers_alike(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(**PLAIN, default_pool_size=4)
    admins = await consoles(fleet)

    async def change(number: int) -> None:
        admin = admins[number % 2]
        for round_ in range(5):
            size = 10 * number + round_ + 1
            # Whose worker dies has no answer.
            with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await admin.execute(f"SET default_pool_size = {size}" if number else "RELOAD")

    killing = asyncio.create_task(fleet.kill(LAST))
    await asyncio.gather(change(0), change(1))
    await killing
    await fleet.until_served()
    expected = fleet.supervisor.loaded.config.default_pool_size
    assert await values(admins[0], "default_pool_size") == {str(expected)}


def test_signals_reach_all(site: Site) -> None:
    with fleet_process(site, **PLAIN, default_pool_size=4) as fleet:
        with fleet.connect("unix", user="pgbouncer", dbname="pgbouncer") as admin:
            fleet.ini.write_text(fleet.ini.read_text().replace("default_pool_size = 4", "default_pool_size = 5"))
            fleet.send(signal.SIGHUP)

            def sizes() -> set[str]:
                rows = admin.execute("SHOW CONFIG BY WORKER").fetchall()
                return {row[1] for row in rows if row[0] == "default_pool_size"}

            until_blocking(lambda: sizes() == {"5"})
            fleet.send(signal.SIGUSR1)
            until_blocking(lambda: ("paused", "yes") in admin.execute("SHOW STATE").fetchall())
            admin.execute("RESUME")
            assert ("active", "yes") in admin.execute("SHOW STATE").fetchall()
        assert fleet.stop() == 0
        assert sum("default_pool_size: 4 -> 5" in line for line in fleet.log) == 1
        assert sum("got SIGHUP" in line for line in fleet.log) == 1


def test_the_log_has_statistics_of_the_fleet_as_a_whole(site: Site) -> None:
    with fleet_process(site, **PLAIN, stats_period=1) as fleet:
        with fleet.connect() as one, fleet.connect() as other:
            until_blocking(
                lambda: _query(one, other) and any(not line.startswith("0 xacts/s") for _, line in _stats(fleet.said))
            )
        assert fleet.stop() == 0
        assert {pid for pid, _ in _stats(fleet.said)} == {fleet.process.pid}


def _query(*sessions: psycopg.Connection[Any]) -> bool:
    for session in sessions:
        session.execute("SELECT 1")
    return True


def _stats(said: str) -> list[tuple[int, str]]:
    """Who has logged what."""
    return [(int(pid), line) for pid, line in re.findall(r"\[(\d+)\] LOG stats: (.*)", said)]
