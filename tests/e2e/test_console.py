"""The console of a running gateway: every driver reads it, over every front, and it tells what is so."""

from __future__ import annotations

import asyncio
import socket
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from helpers.processes import run_program
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk_gateway.console.registry import SHOWS

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

OWNER: Final = {"user": "pgtrunk", "password": None, "dbname": "pgbouncer"}
ADMIN: Final = {"user": USER, "password": PASSWORD, "dbname": "pgbouncer"}
SETTINGS: Final[dict[str, Any]] = {"admin_users": USER, "default_pool_size": 2}


async def ask(
    gateway: LocalGateway, sql: str, way: Way = "unix", *, prepare: bool | None = None, binary: bool = False
) -> list[dict[str, Any]]:
    """One command, as PgBouncer's own tests give it."""

    def run() -> list[dict[str, Any]]:
        login = OWNER if way == "unix" else ADMIN
        with psycopg.connect(**gateway.conninfo(way, **login), autocommit=True) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            cursor.execute(sql.encode(), prepare=prepare, binary=binary)
            return cursor.fetchall() if cursor.description else []

    return await asyncio.to_thread(run)


async def console(gateway: LocalGateway, way: Way) -> asyncpg.Connection:
    if way == "unix":
        return await gateway.connect(way, user="pgbouncer", password=None, database="gateway")
    return await gateway.connect(way, database="gateway")


# -- drivers -----------------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_psql(start: Start) -> None:
    gateway = await start(**SETTINGS)
    script = "SHOW VERSION;\nSHOW HELP;\nSHOW POOLS \\; SHOW STATE;\nSHOW LISTS \\bind \\g\nnonsense;\nSHOW VERSION;\n"
    done = await asyncio.to_thread(
        run_program, "psql", gateway.conninfo("unix", **OWNER), "-X", "-A", "-t", stdin=script
    )
    assert done.stdout.count("pgtrunk-gateway ") == 2
    for words in ("statement", "suspended|no", "used_clients|"):
        assert words in done.stdout
    for words in ("Console usage", "invalid command 'nonsense;', use SHOW HELP;"):
        assert words in done.stderr


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", ["POOLS", "STATS", "CLIENTS"])
async def test_psycopg(start: Start, name: str, prepare: bool, binary: bool) -> None:
    gateway = await start(**SETTINGS)
    (row,) = await ask(gateway, f"SHOW {name}", prepare=prepare, binary=binary)
    assert list(row) == [column.name for column in SHOWS[name].columns]
    assert row["database"] == "pgbouncer"
    if name == "STATS":
        assert row["total_xact_count"] == Decimal(1)
    if name == "POOLS":
        assert row["cl_active"] == 1


async def test_psycopg_in_a_pipeline(start: Start) -> None:
    gateway = await start(**SETTINGS)

    def run() -> list[Any]:
        with psycopg.connect(**gateway.conninfo("unix", **OWNER), autocommit=True) as connection, connection.pipeline():
            return [connection.execute(f"SHOW {name}") for name in ("VERSION", "STATE", "LISTS")]

    version, state, lists = await asyncio.to_thread(run)
    assert len(version.fetchall()) == 1 and len(state.fetchall()) == 3 and len(lists.fetchall()) > 10


@pytest.mark.both_loops
async def test_asyncpg_over_every_front(start: Start, pooled: Way) -> None:
    gateway = await start(**SETTINGS)
    connection = await console(gateway, pooled)
    for name in SHOWS.keys() - {"FDS"}:
        columns = [column.name for column in SHOWS[name].columns]
        assert all(list(row.keys()) == columns for row in await connection.fetch(f"SHOW {name}"))
        statement = await connection.prepare(f"SHOW {name}")
        assert [attribute.name for attribute in statement.get_attributes()] == columns
        assert await connection.execute(f"SHOW {name}") == "SHOW"


async def test_asyncpg_is_told_clearly_what_is_no_command(start: Start) -> None:
    gateway = await start(**SETTINGS)
    connection = await console(gateway, "unix")
    with pytest.raises(asyncpg.PostgresSyntaxError, match="invalid command 'SELECT 1', use SHOW HELP"):
        await connection.fetchval("SELECT 1")
    # Its introspection of types asks a catalogue that is not there.
    with pytest.raises(asyncpg.PostgresSyntaxError, match="invalid command"):
        await connection.set_builtin_type_codec("hstore", codec_name="pg_contrib.hstore")
    assert len(await connection.fetch("SHOW STATE")) == 3


@pytest.mark.both_loops
async def test_in_tls(start: Start, site: Site) -> None:
    gateway = await start(
        client_tls_sslmode="require",
        client_tls_cert_file=site.certificates.server_cert,
        client_tls_key_file=site.certificates.server_key,
        **SETTINGS,
    )
    login = gateway.conninfo("tcp", **ADMIN) | {"sslmode": "require"}
    async with await psycopg.AsyncConnection.connect(**login, autocommit=True) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        (client,) = await (await cursor.execute("SHOW CLIENTS")).fetchall()
        assert client["tls"].startswith("TLSv1.3/TLS_")
        assert len(await (await cursor.execute("SHOW CONFIG")).fetchall()) > 100
    (client,) = await ask(gateway, "SHOW CLIENTS")
    assert client["tls"] == ""


# -- what it tells -----------------------------------------------------------------------------------------------------


async def test_sessions_and_backends(start: Start, pooled: Way) -> None:
    gateway = await start(**SETTINGS)
    session = await gateway.connect(pooled, server_settings={"application_name": "shop"})
    pid = await session.fetchval("SELECT pg_backend_pid()")
    clients = {row["database"]: row for row in await ask(gateway, "SHOW CLIENTS")}
    assert (clients[DATABASE]["state"], clients[DATABASE]["application_name"]) == ("idle", "shop")
    assert clients[DATABASE]["front"] == pooled
    assert clients["pgbouncer"]["remote_pid"] > 0
    (server,) = await ask(gateway, "SHOW SERVERS")
    assert (server["state"], server["remote_pid"], server["database"]) == ("idle", pid, DATABASE)
    async with session.transaction():
        await session.execute("SELECT 1")
        clients = {row["database"]: row for row in await ask(gateway, "SHOW CLIENTS")}
        (server,) = await ask(gateway, "SHOW SERVERS")
        assert clients[DATABASE]["state"] == server["state"] == "active"
        assert (clients[DATABASE]["link"], server["link"]) == (server["ptr"], clients[DATABASE]["ptr"])
        pools = {row["database"]: row for row in await ask(gateway, "SHOW POOLS")}
        assert (pools[DATABASE]["cl_active"], pools[DATABASE]["sv_active"], pools[DATABASE]["sv_idle"]) == (1, 1, 0)
    sockets = [row["state"] for row in await ask(gateway, "SHOW SOCKETS")]
    assert sorted(sockets) == ["cl_active", "cl_active", "sv_idle"]
    databases = {row["name"]: row for row in await ask(gateway, "SHOW DATABASES")}
    assert databases[DATABASE]["current_connections"] == databases[DATABASE]["current_client_connections"] == 1
    users = {row["name"]: row for row in await ask(gateway, "SHOW USERS")}
    assert users[USER]["current_connections"] == users[USER]["current_client_connections"] == 1


async def test_who_waits_and_how_long(start: Start) -> None:
    gateway = await start(admin_users=USER, default_pool_size=1)
    first, second = await gateway.connect("tcp"), await gateway.connect("tcp")
    async with first.transaction():
        await first.execute("SELECT 1")
        query = asyncio.create_task(second.fetchval("SELECT 1"))
        await until(lambda: gateway.counts(waiting=1))
        clients = [row for row in await ask(gateway, "SHOW CLIENTS") if row["database"] == DATABASE]
        assert sorted(row["state"] for row in clients) == ["active", "waiting"]
        pools = {row["database"]: row for row in await ask(gateway, "SHOW POOLS")}
        pool = pools[DATABASE]
        assert (pool["cl_active"], pool["cl_waiting"], pool["sv_active"]) == (1, 1, 1)
        assert pool["maxwait"] + pool["maxwait_us"] > 0
    assert await query == 1


async def test_a_login_that_waits_for_a_server_that_says_nothing(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        gateway = await start(databases={"mute": f"host=127.0.0.1 port={port}"}, **SETTINGS)
        login = asyncio.create_task(gateway.connect("tcp", database="mute"))
        await until(lambda: gateway.counts(connecting=1))
        pools = {row["database"]: row for row in await ask(gateway, "SHOW POOLS")}
        assert (pools["mute"]["cl_active"], pools["mute"]["cl_waiting"], pools["mute"]["sv_login"]) == (0, 1, 1)
        clients = {row["database"]: row for row in await ask(gateway, "SHOW CLIENTS")}
        assert (clients["mute"]["state"], clients["mute"]["user"]) == ("waiting", USER)
        assert {row["list"]: row["items"] for row in await ask(gateway, "SHOW LISTS")}["login_clients"] == 1
        login.cancel()
        with pytest.raises(asyncio.CancelledError):
            await login
        await ask(gateway, "KILL mute")


async def test_statistics(start: Start) -> None:
    gateway = await start(**SETTINGS)
    session = await gateway.connect("tcp")
    for _ in range(4):
        await session.execute("SELECT 1")
    async with session.transaction():
        await session.execute("SELECT 1")
        await session.execute("SELECT pg_sleep(0.01)")
    stats = {row["database"]: row for row in await ask(gateway, "SHOW STATS")}
    mine = stats[DATABASE]
    assert (mine["total_xact_count"], mine["total_query_count"]) == (5, 8)
    assert (mine["total_client_login_count"], mine["total_server_assignment_count"]) == (1, 5)
    assert mine["total_received"] > 0 and mine["total_sent"] > 0
    assert mine["total_xact_time"] >= mine["total_query_time"] >= 10_000  # under uvloop, in whole milliseconds
    totals = {row["name"]: row["value"] for row in await ask(gateway, "SHOW TOTALS")}
    assert totals["total_query_count"] == 8 + 2
    assert totals["total_client_login_count"] == 1 + 2


async def test_quic_connections_and_streams(start: Start) -> None:
    gateway = await start(**SETTINGS)
    first, second = await gateway.connect("quic"), await gateway.connect("quic")
    await first.fetchval("SELECT repeat('x', 100000)")
    (connection,) = await ask(gateway, "SHOW CONNECTIONS")
    assert connection["streams"] == 2 and connection["peer"].startswith("127.0.0.1")
    assert connection["rtt_us"] > 0 and connection["cwnd"] > 0
    assert connection["bytes_sent"] > 100_000 and connection["bytes_received"] > 0
    assert connection["packets_sent"] > 80 and connection["packets_lost"] >= 0
    streams = await ask(gateway, "SHOW STREAMS")
    clients = {row["id"] for row in await ask(gateway, "SHOW CLIENTS") if row["front"] == "quic"}
    assert {row["session"] for row in streams} == clients
    assert {row["connection"] for row in streams} == {connection["id"]}
    assert {row["state"] for row in streams} == {"open"}
    await second.close()
    await until(lambda: gateway.counts(quic_streams=1))


# -- rights ------------------------------------------------------------------------------------------------------------


async def test_a_user_without_rights_is_refused_after_its_login(start: Start) -> None:
    gateway = await start()
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="not allowed"):
        await gateway.connect("tcp", database="pgbouncer")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await gateway.connect("tcp", database="pgbouncer", password="wrong")
    await until(lambda: gateway.counts(sessions=0, admitted=0))


async def test_it_is_open_where_no_more_clients_are_let_in(start: Start) -> None:
    gateway = await start(max_client_conn=1, **SETTINGS)
    await gateway.connect("tcp")
    with pytest.raises(asyncpg.TooManyConnectionsError):
        await gateway.connect("tcp")
    assert (await ask(gateway, "SHOW LISTS", "tcp"))[5] == {"list": "free_clients", "items": 0}


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_cancel_by_libpq_ends_a_pause(start: Start) -> None:
    gateway = await start(**SETTINGS)
    session = await gateway.connect("tcp")
    async with session.transaction():
        await session.execute("SELECT 1")
        admin = await psycopg.AsyncConnection.connect(**gateway.conninfo("unix", **OWNER), autocommit=True)
        pause = asyncio.create_task(admin.execute("PAUSE"))
        await until(lambda: gateway.gateway.operations.state == "paused")
        await admin.cancel_safe(timeout=20)
        with pytest.raises(psycopg.errors.QueryCanceled):
            await pause
        assert gateway.gateway.operations.state == "active"
        await admin.close()
    assert await session.fetchval("SELECT 2") == 2
