"""Replication through the gateway: PostgreSQL's programs and subscriptions, and what becomes of such connections."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from helpers.postgres import create_database, create_user, execute, literal
from helpers.proxies import gate
from helpers.raw_session import RawSession
from helpers.sidecars import ENVIRONMENT, sidecar_process
from helpers.site import DATABASE, PASSWORD, USER, Admin, Site
from helpers.waiting import until
from pgtrunk.certs import create_certificates
from pgtrunk.wire import frontend
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

COPY: Final = "copies"
"""The database of the subscribers."""
SETTINGS: Final[dict[str, str | int | bool]] = {
    "wal_level": "logical",
    "max_wal_senders": 30,
    "max_replication_slots": 30,
    "wal_keep_size": 512,
}
OWNER: Final = {"user": "pgtrunk", "password": None, "dbname": "pgbouncer"}
SLEEP: Final = frontend.query(b"SELECT pg_sleep(60)")
IDENTIFY: Final = frontend.query(b"IDENTIFY_SYSTEM")


class Watcher(Admin):
    """Sees walsenders too, which need not be in any database."""

    def backends(self) -> dict[int, str]:
        query: LiteralString = (
            "SELECT pid, state FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND"
            " (backend_type = 'walsender' OR (backend_type = 'client backend' AND datname = %s))"
        )
        return {pid: state or "starting" for pid, state in self.rows(query, DATABASE)}

    def walsenders(self) -> list[int]:
        return [pid for (pid,) in self.rows("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender'")]

    def forget_slot(self, name: str) -> None:
        self.execute("SELECT pg_drop_replication_slot(%s)", name)

    def is_active(self, slot: str) -> bool:
        return bool(self.rows("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", slot))


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """As that of the other tests, but before a PostgreSQL that can be replicated from, by a user who may."""
    with EmbeddedPostgres(max_connections=100, settings=SETTINGS) as postgres:
        asyncio.run(create_user(postgres, USER, PASSWORD, "REPLICATION"))
        asyncio.run(create_database(postgres, DATABASE, owner=USER))
        asyncio.run(create_database(postgres, COPY))
        folder = Path(tempfile.mkdtemp(prefix="e2e-"))
        admin = Watcher(postgres, DATABASE)
        try:
            yield Site(postgres, create_certificates(folder / "certs"), folder, admin)
        finally:
            admin.close()
            shutil.rmtree(folder)


@pytest.fixture
def admin(site: Site) -> Watcher:
    assert isinstance(site.admin, Watcher)
    return site.admin


@pytest.fixture(params=["tcp", "sidecar"])
def through(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@asynccontextmanager
async def conninfo(gateway: LocalGateway, through: str) -> AsyncIterator[str]:
    """How libpq gets there over TCP: to the gateway, or to a sidecar that is before it."""
    login = gateway.conninfo("tcp")
    if through == "tcp":
        yield make_conninfo(**login)
        return
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        yield make_conninfo(**{**login, "port": sidecar.port})


async def started(program: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        EmbeddedPostgres.binary(program),
        *map(str, arguments),
        env=ENVIRONMENT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process, how: signal.Signals | None = None) -> str:
    """Waits for its end, which is to be a good one -> what it said."""
    try:
        if how is not None:
            process.send_signal(how)
        async with asyncio.timeout(50):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode() + err.decode()


async def replicating(gateway: LocalGateway, way: Way, replication: str = "database", **parameters: str) -> RawSession:
    """A session of a client whose password nobody asks for; the gateway knows it."""
    return await RawSession.start(gateway, way, replication=replication, **parameters)


async def ask(gateway: LocalGateway, sql: LiteralString) -> list[dict[str, Any]]:
    """One command at the console."""
    connection = await psycopg.AsyncConnection.connect(**gateway.conninfo("unix", **OWNER), autocommit=True)
    async with connection:
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(sql)
        return await cursor.fetchall() if cursor.description else []


# -- PostgreSQL's programs


async def test_pg_basebackup(start: Start, tmp_path: Path, through: str) -> None:
    """Two connections: one for the files, one for the WAL meanwhile. A manifest says what each file has to be."""
    gateway = await start(default_pool_size=2)
    copy = tmp_path / "copy"
    # It passes two Pythons, and on a busy machine they would take too long for all of it.
    packed = ["--compress=server-gzip:1"] if through == "sidecar" else []
    async with conninfo(gateway, through) as where:
        arguments = "-d", where, "-D", copy, "--checkpoint=fast", "--no-sync", *packed
        await ended(await started("pg_basebackup", *arguments))
    assert "successfully verified" in await ended(await started("pg_verifybackup", copy))
    octets = sum(file.stat().st_size for file in (copy / "base").rglob("*") if file.is_file())
    (pool,) = gateway.gateway.pools
    assert octets / (20 if packed else 1) < pool.stats.sent < 3 * octets
    assert 0 < pool.stats.received < 100_000


async def test_pg_receivewal(start: Start, site: Site, admin: Watcher, tmp_path: Path, through: str) -> None:
    gateway = await start()
    slot = f"received_{through}"
    async with conninfo(gateway, through) as where:
        whose = "-d", where, "--slot", slot
        await ended(await started("pg_receivewal", *whose, "--create-slot"))
        process = await started("pg_receivewal", *whose, "-D", tmp_path, "--no-loop", "--synchronous")
        await until(lambda: admin.is_active(slot))
        name = admin.value("SELECT pg_walfile_name(pg_current_wal_lsn())")
        admin.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 10000)), pg_switch_wal()")
        await until((tmp_path / name).exists)
        await ended(process, signal.SIGINT)
    assert (tmp_path / name).read_bytes() == (site.postgres.socket_dir / "data" / "pg_wal" / name).read_bytes()
    await until(lambda: not admin.is_active(slot))
    admin.forget_slot(slot)


async def test_pg_recvlogical(start: Start, admin: Watcher, through: str) -> None:
    gateway = await start()
    slot, table = f"decoded_{through}", f"decoded_{through}"
    await execute(gateway.site.postgres, f"CREATE TABLE {table} (n int)", database=DATABASE)
    async with conninfo(gateway, through) as where:
        whose = "-d", where, "--slot", slot
        await ended(await started("pg_recvlogical", *whose, "--create-slot", "--plugin=test_decoding"))
        process = await started("pg_recvlogical", *whose, "--start", "--file=-", "--no-loop")
        await execute(gateway.site.postgres, f"INSERT INTO {table} VALUES (7)", database=DATABASE)
        assert process.stdout is not None
        async with asyncio.timeout(30):
            lines = [(await process.stdout.readline()).decode() for _ in range(3)]
        await ended(process, signal.SIGINT)
    assert re.fullmatch(rf"BEGIN \d+\ntable public\.{table}: INSERT: n\[integer\]:7\nCOMMIT \d+\n", "".join(lines))
    await until(lambda: not admin.is_active(slot))
    admin.forget_slot(slot)


async def test_a_subscription(start: Start, site: Site, admin: Watcher, through: str) -> None:
    """The publisher is behind the gateway. What there is comes first, by connections of its own, then what follows."""
    gateway = await start()
    name = f"published_{through}"
    await execute(
        site.postgres,
        f"CREATE TABLE {name} (n int)",
        f"INSERT INTO {name} SELECT generate_series(1, 1000)",
        f"GRANT SELECT ON {name} TO {USER}",
        f"CREATE PUBLICATION {name} FOR TABLE {name}",
        f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
        database=DATABASE,
    )
    await execute(site.postgres, f"CREATE TABLE {name} (n int)", database=COPY)
    copy = Admin(site.postgres, COPY)
    async with conninfo(gateway, through) as where:
        await execute(
            site.postgres,
            f"CREATE SUBSCRIPTION {name} CONNECTION {literal(where)} PUBLICATION {name}"
            f" WITH (slot_name = {name}, create_slot = false)",
            database=COPY,
        )
        try:
            rows = f"SELECT count(*), sum(n) FROM {name}"
            await until(lambda: copy.rows(rows) == [(1000, 500_500)])
            await execute(site.postgres, f"INSERT INTO {name} VALUES (-500500)", database=DATABASE)
            await until(lambda: copy.rows(rows) == [(1001, 0)])
            (session,) = [row for row in await ask(gateway, "SHOW CLIENTS") if row["application_name"] == name]
            assert (session["replication"], session["state"]) == ("logical", "active")
        finally:
            for what in ("DISABLE", "SET (slot_name = NONE)"):
                await execute(site.postgres, f"ALTER SUBSCRIPTION {name} {what}", database=COPY)
            await execute(site.postgres, f"DROP SUBSCRIPTION {name}", database=COPY)
            copy.close()
    await until(lambda: not admin.is_active(name))
    admin.forget_slot(name)


# -- what a client can do with one


@pytest.mark.both_loops
async def test_a_logical_connection(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust", pool_mode="statement")
    session = await replicating(gateway, pooled, application_name="abc", options="-c enable_seqscan=off")
    assert session.parameters["application_name"] == "abc"
    assert await session.ask(IDENTIFY) == "TDCZI"
    assert await session.ask(frontend.query(b"BEGIN; SELECT 1")) == "CTDCZT"
    session.send(frontend.query(b"SHOW enable_seqscan"))
    assert [message.body[6:] for message in await session.until_ready() if message.kind == "D"] == [b"off"]
    assert gateway.counts(sessions=1, admitted=1, walsenders=1, backends=1, leased=1)
    # An ordinary one is served beside it, and by another backend.
    ordinary = await RawSession.start(gateway, pooled)
    assert await ordinary.ask(frontend.query(b"SHOW enable_seqscan")) == "TDCZI"
    assert gateway.counts(sessions=2, walsenders=1, backends=2)


async def test_a_physical_connection(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled, "true")
    assert await session.ask(IDENTIFY) == "TDCZI"
    session.send(frontend.query(b"SELECT 1"))
    error = (await session.until_ready())[0].error
    assert (error.sqlstate, error.message[:27]) == ("0A000", "cannot execute SQL commands")


@pytest.mark.both_loops
async def test_wal_and_feedback_at_once(start: Start, admin: Watcher, pooled: Way) -> None:
    """Each side goes on whatever the other does; the end of the stream is the client's, and the session goes on."""
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled, "true")
    lsn = admin.value("SELECT pg_current_wal_lsn()::text")
    session.send(frontend.query(b"START_REPLICATION PHYSICAL " + lsn.encode()))
    await session.until("W")
    for _ in range(20):
        admin.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 100000), true)")
        session.send(frontend.copy_data(b"r" + bytes(33)))
    octets = 0
    while octets < 2_000_000:
        octets += sum(len(message.body) for message in await session.until("d"))
    session.send(frontend.COPY_DONE_MESSAGE)
    assert RawSession.kinds(await session.until_ready()).lstrip("d") == "cCCZI"
    assert await session.ask(IDENTIFY) == "TDCZI"


@pytest.mark.both_loops
async def test_a_client_that_does_not_read_the_wal(start: Start, admin: Watcher, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled, "true")
    lsn = admin.value("SELECT pg_current_wal_lsn()::text")
    session.send(frontend.query(b"START_REPLICATION PHYSICAL " + lsn.encode()))
    await session.until("W")
    session.transport.pause_reading()
    for _ in range(32):
        admin.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000), true)")
    (there,) = gateway.gateway.context.sessions
    assert there.backend is not None
    await until(lambda far=there.backend.transport: not far.is_reading())  # type: ignore[misc]
    assert admin.value("SELECT pg_current_wal_lsn() - sent_lsn FROM pg_stat_replication") > 1_000_000
    assert there.transport.get_write_buffer_size() < 4 << 20
    session.transport.resume_reading()
    octets = 0
    while octets < 32_000_000:
        octets += sum(len(message.body) for message in await session.until("d"))
    session.close()
    await until(lambda: not admin.walsenders())


async def test_cancel(start: Start, admin: Watcher, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session, other = [await replicating(gateway, pooled) for _ in range(2)]
    for each in (session, other):
        each.send(SLEEP)
    await until(lambda: len(admin.running("pg_sleep")) == 2)
    assert await cancelled(gateway, pooled, session) == "57014"
    assert await session.ask(IDENTIFY) == "TDCZI"
    assert len(admin.running("pg_sleep")) == 1
    assert await cancelled(gateway, pooled, other) == "57014"


async def cancelled(gateway: LocalGateway, way: Way, session: RawSession) -> str:
    """Has what ``session`` runs cancelled -> the SQLSTATE of what it was told."""
    canceller = await RawSession.open(gateway, way)
    canceller.send(session.cancel_request())
    await canceller.until_lost()
    (error,) = [message.error for message in await session.until_ready() if message.kind == "E"]
    return error.sqlstate


async def test_names_and_passwords_are_asked_for_as_ever(start: Start) -> None:
    gateway = await start()
    for change, words in (
        ({"password": "wrong"}, "SASL authentication failed"),
        ({"dbname": "nowhere"}, "no such database: nowhere"),
        ({"options": "-c no_such_setting=1"}, 'unrecognized configuration parameter "no_such_setting"'),
        ({"replication": "perhaps"}, 'invalid value for parameter "replication": "perhaps"'),
        ({"dbname": "pgbouncer"}, "replication connections are not served here"),
    ):
        login = gateway.conninfo("tcp", **{"replication": "database", **change})
        with pytest.raises(psycopg.OperationalError, match=words):
            await psycopg.AsyncConnection.connect(**login)
    assert gateway.counts(backends=0, connecting=0)


async def test_a_user_who_may_not(start: Start, site: Site) -> None:
    await create_user(site.postgres, "reader", PASSWORD)
    secret = PASSWORD.replace("'", "''")
    entry = f"{site.target(f'dbname={DATABASE}')} user=reader password='{secret}'"
    gateway = await start(auth_type="trust", databases={DATABASE: entry})
    with pytest.raises(psycopg.OperationalError, match="permission denied to start WAL sender"):
        await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", replication="true"))
    # Nobody else has to wait for it.
    session = await RawSession.start(gateway, "tcp")
    assert await session.ask(frontend.query(b"SELECT 1")) == "TDCZI"


# -- places


async def test_pool_size(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust", default_pool_size=1)
    ordinary = await RawSession.start(gateway, pooled)
    assert await ordinary.ask(frontend.query(b"SELECT 1")) == "TDCZI"
    # Its backend is idle, and makes room.
    first = await replicating(gateway, pooled)
    assert gateway.counts(backends=1, walsenders=1)
    waiting = [asyncio.create_task(replicating(gateway, pooled)) for _ in range(2)]
    await until(lambda: gateway.counts(waiting=2))
    (pool,) = [row for row in await ask(gateway, "SHOW POOLS") if row["database"] == DATABASE]
    assert (pool["cl_active"], pool["cl_waiting"], pool["sv_active"]) == (2, 2, 1)
    words = [(row["replication"], row["state"]) for row in await ask(gateway, "SHOW CLIENTS")]
    assert words.count(("logical", "waiting")) == 2
    first.send(frontend.TERMINATE_MESSAGE)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    ordinary.send(frontend.query(b"SELECT 2"))
    for task in asyncio.as_completed(waiting):
        (await task).abort()
    assert RawSession.kinds(await ordinary.until_ready()) == "TDCZI"


async def test_who_waits_too_long(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust", default_pool_size=1, query_wait_timeout=0.2)
    await replicating(gateway, pooled)
    late = await RawSession.open(gateway, pooled)
    late.startup({"replication": "database"})
    (error,) = [message.error for message in await late.until_lost()]
    assert (error.sqlstate, error.message) == ("57014", "query_wait_timeout")
    assert gateway.counts(waiting=0, sessions=1)


async def test_who_leaves_while_he_waits(start: Start, admin: Watcher, pooled: Way) -> None:
    gateway = await start(auth_type="trust", default_pool_size=1)
    first = await replicating(gateway, pooled)
    late = await RawSession.open(gateway, pooled)
    late.startup({"replication": "database"})
    await until(lambda: gateway.counts(waiting=1))
    late.abort()
    await until(lambda: gateway.counts(waiting=0, sessions=1))
    first.close()
    await until(lambda: not admin.walsenders())


# -- what ends it


@pytest.mark.both_loops
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("how", ["terminate", "close", "abort"])
async def test_a_client_that_leaves(start: Start, admin: Watcher, pooled: Way, how: str, busy: bool) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled)
    if busy:
        session.send(frontend.query(b"SELECT pg_sleep(1)"))
        await until(lambda: admin.running("pg_sleep"))
    if how == "terminate":
        session.send(frontend.TERMINATE_MESSAGE)
    else:
        getattr(session, how)()
    await until(lambda: gateway.counts(sessions=0, backends=0, walsenders=0))
    await until(lambda: not admin.walsenders())


async def test_postgres_ends_it(start: Start, admin: Watcher, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled)
    (pid,) = admin.walsenders()
    admin.execute("SELECT pg_terminate_backend(%s)", pid)
    (error,) = [message.error for message in await session.until_lost() if message.kind == "E"]
    assert (error.severity, error.sqlstate) == ("FATAL", "57P01")
    assert error.message.startswith("terminating connection due to administrator command")


async def test_a_connection_to_postgres_that_breaks(start: Start, site: Site, pooled: Way) -> None:
    async with gate(site.postgres.host, site.postgres.port) as proxy:
        secret = PASSWORD.replace("'", "''")
        entry = f"host=127.0.0.1 port={proxy.port} dbname={DATABASE} user={USER} password='{secret}'"
        gateway = await start(auth_type="trust", databases={DATABASE: entry})
        session = await replicating(gateway, pooled)
        proxy.cut()
        (error,) = [message.error for message in await session.until_lost()]
        assert (error.severity, error.sqlstate) == ("FATAL", "08006")
        await until(lambda: gateway.counts(sessions=0, backends=0))


async def test_pause(start: Start, pooled: Way) -> None:
    """It waits for those that are there, as for sessions in session mode; who comes meanwhile waits for RESUME."""
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled)
    pause = asyncio.create_task(ask(gateway, "PAUSE"))
    await until(lambda: gateway.gateway.pools.paused)
    late = asyncio.create_task(replicating(gateway, pooled))
    await until(lambda: gateway.counts(waiting=1))
    assert await session.ask(IDENTIFY) == "TDCZI"
    assert not pause.done()
    session.close()
    await pause
    assert gateway.counts(waiting=1, backends=0)
    await ask(gateway, "RESUME")
    assert await (await late).ask(IDENTIFY) == "TDCZI"


async def test_reconnect(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled)
    await ask(gateway, "RECONNECT")
    (error,) = [message.error for message in await session.until_lost()]
    assert (error.sqlstate, error.message) == ("57P01", "database configuration changed")
    await ask(gateway, "WAIT_CLOSE")


async def test_kill_client_and_what_the_console_shows(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled, "true", application_name="standby")
    (client,) = [row for row in await ask(gateway, "SHOW CLIENTS") if row["database"] == DATABASE]
    (server,) = await ask(gateway, "SHOW SERVERS")
    assert (client["replication"], client["state"], client["front"]) == ("physical", "active", pooled)
    assert (server["replication"], server["state"]) == ("physical", "active")
    assert client["application_name"] == server["application_name"] == "standby"
    assert (client["link"], server["link"]) == (server["ptr"], client["ptr"])
    connection = await psycopg.AsyncConnection.connect(**gateway.conninfo("unix", **OWNER), autocommit=True)
    async with connection:
        await connection.execute(f"KILL_CLIENT {client['id']}".encode())
    (error,) = [message.error for message in await session.until_lost()]
    assert (error.sqlstate, error.message) == ("57P01", "admin forced disconnect")


@pytest.mark.parametrize("verb", ["KILL", "DISABLE e2e", "SUSPEND"])
async def test_other_verbs(start: Start, pooled: Way, verb: LiteralString) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled)
    await ask(gateway, verb)
    match verb:
        case "KILL":
            assert [message.error.message for message in await session.until_lost()] == ["admin forced disconnect"]
            await ask(gateway, "RESUME")
        case _:
            # The end of the console's session is the end of SUSPEND.
            assert await session.ask(IDENTIFY) == "TDCZI"


async def test_reload(start: Start, site: Site, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await replicating(gateway, pooled)
    site.write_ini(gateway.place, auth_type="trust", client_idle_timeout=1, default_pool_size=1, server_lifetime=1)
    await ask(gateway, "RELOAD")
    assert await session.ask(IDENTIFY) == "TDCZI"
    moved = {DATABASE: site.target(f"dbname={DATABASE} application_name=other")}
    site.write_ini(gateway.place, auth_type="trust", databases=moved)
    await ask(gateway, "RELOAD")
    (error,) = [message.error for message in await session.until_lost()]
    assert (error.sqlstate, error.message) == ("57P01", "database configuration changed")


async def test_the_end_of_the_gateway(start: Start, admin: Watcher, pooled: Way) -> None:
    gateway = await start(auth_type="trust", shutdown_timeout=0.2)
    session = await replicating(gateway, pooled)
    # There is no transaction whose end could be waited for.
    await gateway.gateway.wait_for_transactions()
    assert await session.ask(IDENTIFY) == "TDCZI"
    await gateway.gateway.close()
    (error,) = [message.error for message in await session.until_lost()]
    assert (error.sqlstate, error.message) == ("57P01", "pooler is shutting down")
    await until(lambda: not admin.walsenders())


async def test_timeouts_are_not_for_it(start: Start, pooled: Way) -> None:
    """All of them are shorter than what it does."""
    gateway = await start(
        auth_type="trust",
        client_idle_timeout=0.1,
        query_timeout=0.3,
        transaction_timeout=0.1,
        idle_transaction_timeout=0.1,
        server_lifetime=0.1,
        server_idle_timeout=0.1,
    )
    session = await replicating(gateway, pooled)
    assert await session.ask(frontend.query(b"BEGIN; SELECT pg_sleep(0.5)")) == "CTDCZT"
    await asyncio.sleep(0.3)
    assert await session.ask(frontend.query(b"COMMIT")) == "CZI"
