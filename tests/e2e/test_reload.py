"""RELOAD, SIGHUP and SET on a gateway that is in use: all of the new configuration, or nothing of it."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import pytest

from helpers.gateways import POOLED
from helpers.load import Load
from helpers.processes import gateway_process
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until, until_blocking
from pgtrunk_gateway.errors import ConfigError, GatewayError

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start
    from helpers.site import Site
    from pgtrunk_gateway.auth import Derivation, ScramKeys

PID: Final = "SELECT pg_backend_pid()"


async def reload(gateway: LocalGateway, **settings: Any) -> None:
    gateway.site.write_ini(gateway.place, **settings)
    await gateway.gateway.operations.reload()


# -- under load


async def test_a_reload_under_load_costs_nobody_a_query(start: Start, site: Site) -> None:
    gateway = await start(default_pool_size=3)
    async with Load(gateway, POOLED) as load:
        for settings in (
            {"default_pool_size": 1, "server_lifetime": 0, "max_prepared_statements": 0},
            {"default_pool_size": 6, "query_timeout": 60, "idle_transaction_timeout": 60},
            {"databases": {DATABASE: site.target("application_name=moved")}, "server_idle_timeout": 1},
            {"databases": {"*": site.target()}, "pool_mode": "transaction", "server_reset_query_always": 1},
            {},
        ):
            await reload(gateway, **settings)
            await load.progress()
            await gateway.gateway.operations.reload()
            await load.progress()
        config = gateway.gateway.config
        assert (config.default_pool_size, config.server_lifetime) == (20, 3600.0)


async def test_set_under_load(start: Start) -> None:
    gateway = await start(default_pool_size=2)
    async with Load(gateway, POOLED) as load:
        for size in (1, 4, 1, 2):
            gateway.gateway.operations.set("default_pool_size", str(size))
            await load.progress()
            await until(lambda size=size: gateway.counters()["backends"] <= size)  # type: ignore[misc]


# -- what it changes


async def test_a_larger_pool_serves_those_who_wait_already(start: Start) -> None:
    gateway = await start(default_pool_size=1)
    sessions = [await gateway.connect("tcp") for _ in range(3)]
    async with sessions[0].transaction():
        await sessions[0].execute("SELECT 1")
        asking = [asyncio.create_task(session.fetchval(PID)) for session in sessions[1:]]
        await until(lambda: gateway.counts(waiting=2))
        gateway.gateway.operations.set("default_pool_size", "3")
        assert len(set(await asyncio.gather(*asking))) >= 1


async def test_what_is_set_counts_until_a_reload(start: Start) -> None:
    gateway = await start(query_wait_timeout=7)
    operations = gateway.gateway.operations
    operations.set("query_wait_timeout", "1.5")
    operations.set("max_client_conn", "50")
    config = gateway.gateway.config
    assert (config.query_wait_timeout, config.max_client_conn) == (1.5, 50)
    await operations.reload()
    config = gateway.gateway.config
    assert (config.query_wait_timeout, config.max_client_conn) == (7.0, 100)
    for key, value, detail in (
        ("listen_port", "1", "listen_port can only be changed in the file, and by a restart"),
        ("max_client_conn", "many", 'max_client_conn: bad value "many": expected a whole number from 0 to 2147483647'),
        ("nonsense", "1", 'unknown key "nonsense"'),
    ):
        with pytest.raises(GatewayError) as caught:
            operations.set(key, value)
        assert (caught.value.message, caught.value.severity, caught.value.detail) == ("SET failed", "ERROR", detail)
    assert gateway.gateway.config == config


async def test_timeouts_reach_sessions_that_are_there(start: Start) -> None:
    gateway = await start()
    session = await gateway.connect("tcp")
    await session.execute("SELECT 1")
    gateway.gateway.operations.set("idle_transaction_timeout", "0.1")
    transaction = session.transaction()
    await transaction.start()
    await session.execute("SELECT 1")
    await until(lambda: gateway.counts(sessions=0))


async def test_a_database_that_is_gone_ends_its_sessions_and_no_others(start: Start, site: Site) -> None:
    both = {DATABASE: site.target(), "other": site.target(f"dbname={DATABASE}")}
    gateway = await start(databases=both)
    victim = await gateway.connect("tcp", database="other")
    running = asyncio.create_task(victim.execute("SELECT pg_sleep(600)"))
    await until(lambda: site.admin.running("pg_sleep"))
    async with Load(gateway, ("tcp",)):
        await reload(gateway)
        with pytest.raises((asyncpg.AdminShutdownError, asyncpg.PostgresConnectionError), match="database removed"):
            await running
        await until(lambda: not site.admin.running("pg_sleep"))
        with pytest.raises(asyncpg.InvalidCatalogNameError, match="no such database: other"):
            await gateway.connect("tcp", database="other")
        await reload(gateway, databases=both)
        await gateway.connect("tcp", database="other")


async def test_a_database_that_goes_while_somebody_logs_in(start: Start, site: Site) -> None:
    gateway = await start(databases={DATABASE: site.target(), "other": site.target(f"dbname={DATABASE}")})
    context, reloaded = gateway.gateway.context, asyncio.Event()
    derive = context.derive

    async def derive_later(derivation: Derivation) -> ScramKeys:
        await reloaded.wait()
        return await derive(derivation)

    context.derive = derive_later
    late = asyncio.create_task(gateway.connect("tcp", database="other"))
    await until(lambda: gateway.counts(sessions=1))
    await reload(gateway)
    reloaded.set()
    with pytest.raises(asyncpg.InvalidCatalogNameError, match="no such database: other"):
        await late


async def test_a_database_that_moved_gets_other_backends(start: Start, site: Site) -> None:
    gateway = await start(databases={"shop": site.target(f"dbname={DATABASE}")})
    session = await gateway.connect("tcp", database="shop")
    assert await session.fetchval("SELECT current_database()") == DATABASE
    await reload(gateway, databases={"shop": site.target("dbname=postgres")})
    assert await session.fetchval("SELECT current_database()") == "postgres"
    await reload(gateway, databases={"shop": site.target(f"dbname={DATABASE}")})
    assert await session.fetchval("SELECT current_database()") == DATABASE


async def test_another_forced_user_is_for_another_session(start: Start, site: Site) -> None:
    password = PASSWORD.replace("'", "''")
    gateway = await start()
    session = await gateway.connect("tcp")
    superuser = site.admin.value("SELECT current_user")
    await reload(gateway, databases={DATABASE: site.target(f"user={superuser}")})
    await until(lambda: gateway.counts(sessions=0))
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await session.execute("SELECT 1")
    await reload(gateway, databases={DATABASE: site.target(f"user={USER} password='{password}'")})
    assert await (await gateway.connect("tcp")).fetchval("SELECT current_user") == USER


# -- what it does not change


def test_a_faulty_reload_changes_nothing(site: Site) -> None:
    with gateway_process(site, query_wait_timeout=7, admin_users=USER) as gateway, gateway.connect() as session:
        good = gateway.ini.read_text()
        gateway.ini.write_text(f"{good}query_wait_timeout = 8\ndefault_pool_size = many\nlisten_prot = 1\n")
        gateway.send(signal.SIGHUP)
        gateway.until_logged("RELOAD failed, all is as it was")
        lines = good.count("\n")
        gateway.until_logged(f'ERROR {gateway.ini}:{lines + 2}: default_pool_size: bad value "many"')
        gateway.until_logged(f'ERROR {gateway.ini}:{lines + 3}: unknown key "listen_prot"')
        with gateway.connect(dbname="pgbouncer") as console:
            assert console.execute("SHOW CONFIG").fetchall()
            with pytest.raises(psycopg.errors.ConfigFileError, match="RELOAD failed, see logs"):
                console.execute("RELOAD")
            shown = {row[0]: row[1] for row in console.execute("SHOW CONFIG").fetchall()}
            assert shown["query_wait_timeout"] == "7"
            gateway.ini.write_text(f"{good}query_wait_timeout = 8\nlisten_backlog = 5\n")
            console.execute("RELOAD")
            shown = {row[0]: row[1] for row in console.execute("SHOW CONFIG").fetchall()}
            assert (shown["query_wait_timeout"], shown["listen_backlog"]) == ("8", "128")
        gateway.until_logged("WARNING listen_backlog: 128 -> 5 needs a restart")
        gateway.until_logged("LOG query_wait_timeout: 7 -> 8")
        assert session.execute("SELECT 1").fetchone() == (1,)


async def test_options_of_tcp_count_for_the_next_client(start: Start) -> None:
    gateway = await start(tcp_keepalive=1)
    for value in (True, False, True):
        gateway.gateway.operations.set("tcp_keepalive", str(int(value)))
        session = await gateway.connect("tcp")
        (front_end,) = gateway.gateway.context.sessions
        sock = front_end.transport.get_extra_info("socket")
        assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is value
        await session.close()
        await until(lambda: not gateway.gateway.context.sessions)


@pytest.mark.parametrize(
    "fault",
    [
        {"auth_file": "nowhere.txt"},
        {"quic_key_file": "gateway.ini"},
        {"client_tls_sslmode": "require"},
        {"tcp_keepcnt": 100000},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_faults_that_show_outside_of_the_file_are_faults_too(site: Site, fault: dict[str, Any]) -> None:
    with gateway_process(site) as gateway:
        gateway.port()
        site.write_ini(gateway.place, **fault, query_wait_timeout=8)
        gateway.send(signal.SIGHUP)
        gateway.until_logged("RELOAD failed, all is as it was")
        gateway.until_logged(f"ERROR {gateway.ini}:")
        with gateway.connect() as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
        assert not any("query_wait_timeout" in line for line in gateway.log)


# -- files


def write_password(place: Path, password: str) -> None:
    (place / "userlist.txt").write_text('"{}" "{}"\n"other" "{}"\n'.format(USER, PASSWORD.replace('"', '""'), password))


def test_a_new_password_counts_from_sighup_on(site: Site) -> None:
    entry = {DATABASE: site.target("user={} password='{}'".format(USER, PASSWORD.replace("'", "''")))}
    with gateway_process(site, databases=entry) as gateway:
        gateway.port()
        write_password(gateway.place, "old")
        gateway.send(signal.SIGHUP)
        until_blocking(lambda: _may_log_in(gateway.conninfo(user="other", password="old")))
        write_password(gateway.place, "new")
        assert _may_log_in(gateway.conninfo(user="other", password="old"))
        gateway.send(signal.SIGHUP)
        until_blocking(lambda: _may_log_in(gateway.conninfo(user="other", password="new")))
        assert not _may_log_in(gateway.conninfo(user="other", password="old"))
        # A list that is half written leaves the one that was.
        (gateway.place / "userlist.txt").write_text('"other" "new')
        gateway.send(signal.SIGHUP)
        gateway.until_logged("userlist.txt:1: ")
        assert _may_log_in(gateway.conninfo(user="other", password="new"))


def _may_log_in(conninfo: dict[str, Any]) -> bool:
    try:
        psycopg.connect(**conninfo).close()
    except psycopg.OperationalError:
        return False
    return True


def test_the_log_goes_on_in_a_new_file(site: Site) -> None:
    place = site.place()
    log, rotated = place / "log", place / "log.1"
    with gateway_process(site, "-q", place=place, logfile=log) as gateway:
        until_blocking(lambda: log.exists() and "listening on unix" in log.read_text())
        log.rename(rotated)
        gateway.send(signal.SIGHUP)
        until_blocking(log.exists)
        gateway.send(signal.SIGHUP)
        until_blocking(lambda: "got SIGHUP, re-reading config" in log.read_text())
        assert rotated.read_text().count("got SIGHUP") == 1
        # One that cannot be opened leaves the log where it is.
        site.write_ini(place, logfile="/nowhere/log")
        gateway.send(signal.SIGHUP)
        until_blocking(lambda: "RELOAD failed, all is as it was" in log.read_text())
        assert gateway.stop() == 0
        assert "fast exit" in log.read_text() or "shutting down" in log.read_text()


async def test_a_reload_that_fails_says_where(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    gateway = await start()
    gateway.ini.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"gateway.ini:1: expected key = value"):
        await gateway.gateway.operations.reload()
    caplog.clear()


async def test_quic_connections_that_come_later_have_other_limits(start: Start) -> None:
    gateway = await start(quic_max_streams=2, quic_idle_timeout=11)
    login = {"user": USER, "password": PASSWORD, "database": DATABASE}
    before = await gateway.trunk(connections=1)
    gateway.connections.append(await before.connect(**login))
    await reload(gateway, quic_max_streams=3, quic_idle_timeout=12, quic_retry="always", quic_memory_budget="64MB")
    after = await gateway.trunk(connections=1)
    gateway.connections.append(await after.connect(**login))
    limits = [driver.quic.limits for driver in gateway.quic.drivers]
    assert sorted((each.max_streams, each.idle_timeout) for each in limits) == [(2, 11.0), (3, 12.0)]
    assert gateway.quic.budget.limit == 64 << 20
    for session in gateway.connections:
        assert await session.fetchval("SELECT 1") == 1
