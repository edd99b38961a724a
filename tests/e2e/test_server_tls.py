"""TLS to Postgres, which is Debian's here: each sslmode, certificates of both sides, cancels on the wire, reloads."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import asyncpg
import psycopg
import pytest

from helpers.certificates import authority
from helpers.debian_postgres import CERTIFIED, DebianPostgres, debian
from helpers.postgres import create_database, create_user
from helpers.recording import CANCEL, SSL, Recorder, recorder
from helpers.site import DATABASE, PASSWORD, USER, Admin, Site
from helpers.waiting import until
from pgtrunk_gateway.config.settings import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.gateways import LocalGateway, Start, Way

__all__ = ["debian"]

HOW = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
LARGE = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100000) n"
"""3.2 MB in one row."""


class EveryUsers(Admin):
    """Gateways log in as several users here."""

    def backends(self) -> dict[int, str]:
        query: LiteralString = "SELECT pid, state FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        return {pid: state or "starting" for pid, state in self.rows(query, DATABASE)}


@pytest.fixture(scope="session")
def site(debian: DebianPostgres) -> Iterator[Site]:
    """As that of the other tests, but before a PostgreSQL with TLS."""
    for user in (USER, "tls_only", "clear_only", CERTIFIED):
        asyncio.run(create_user(debian, user, PASSWORD))
    asyncio.run(create_database(debian, DATABASE, owner=USER))
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    admin = EveryUsers(debian)
    try:
        yield Site(debian, debian.certificates, folder, admin)
    finally:
        admin.close()
        shutil.rmtree(folder)


def verifying(site: Site, mode: str = "verify-full", /, **settings: Any) -> dict[str, Any]:
    return {"server_tls_sslmode": mode, "server_tls_ca_file": site.certificates.ca_cert, **settings}


async def how(connection: asyncpg.Connection) -> str | None:
    """The version of TLS that the backend is spoken to in; None: in clear."""
    ssl, version = await connection.fetchrow(HOW)
    assert ssl == (version is not None)
    return version  # type: ignore[no-any-return]


@pytest.mark.both_loops
@pytest.mark.parametrize("mode", MODES)
async def test_each_mode(start: Start, site: Site, mode: str) -> None:
    gateway = await start(**verifying(site, mode))
    connection = await gateway.connect("tcp")
    assert await how(connection) == (None if mode in ("disable", "allow") else "TLSv1.3")
    assert len(await connection.fetchval(LARGE)) == 100_000 * 32


async def test_the_default_is_tls_where_it_is_offered(start: Start) -> None:
    assert Config().server_tls_sslmode == "prefer"
    gateway = await start()
    assert await how(await gateway.connect("tcp")) == "TLSv1.3"


@pytest.mark.parametrize("mode", ["require", "verify-full"])
async def test_a_unix_socket_has_none(start: Start, site: Site, mode: str) -> None:
    target = f"host={site.postgres.socket_dir} port={site.postgres.port}"
    gateway = await start(databases={DATABASE: target}, **verifying(site, mode))
    assert await how(await gateway.connect("tcp")) is None


async def test_versions(start: Start, site: Site) -> None:
    gateway = await start(**verifying(site, server_tls_protocols="tlsv1.2"))
    assert await how(await gateway.connect("tcp")) == "TLSv1.2"


async def test_each_database_its_own(start: Start, site: Site) -> None:
    ca = site.certificates.ca_cert
    databases = {
        DATABASE: site.target(f"dbname={DATABASE} server_tls_sslmode=verify-full server_tls_ca_file={ca}"),
        "clear": site.target(f"dbname={DATABASE}"),
    }
    gateway = await start(databases=databases, server_tls_sslmode="disable")
    assert await how(await gateway.connect("tcp")) == "TLSv1.3"
    assert await how(await gateway.connect("tcp", database="clear")) is None


# -- what pg_hba.conf wants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "mode", "version"),
    [
        ("tls_only", "allow", "TLSv1.3"),
        ("tls_only", "prefer", "TLSv1.3"),
        ("clear_only", "allow", None),
        ("clear_only", "prefer", None),
    ],
)
async def test_the_other_way_is_found(start: Start, site: Site, user: str, mode: str, version: str | None) -> None:
    databases = {DATABASE: site.target(f"user={user} password='{_quoted(PASSWORD)}'")}
    gateway = await start(databases=databases, **verifying(site, mode))
    assert await how(await gateway.connect("tcp")) == version


@pytest.mark.parametrize(("user", "mode"), [("tls_only", "disable"), ("clear_only", "require")])
async def test_and_where_it_must_not_be_tried(start: Start, site: Site, user: str, mode: str) -> None:
    databases = {DATABASE: site.target(f"user={user} password='{_quoted(PASSWORD)}'")}
    gateway = await start(databases=databases, **verifying(site, mode))
    with pytest.raises(asyncpg.PostgresError, match=r"pg_hba\.conf rejects connection"):
        await gateway.connect("tcp")


def _quoted(password: str) -> str:
    return password.replace("'", "''")


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
async def test_a_server_that_nobody_vouches_for(
    start: Start, site: Site, tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(authority("another").pem)
    gateway = await start(**verifying(site, mode, server_tls_ca_file=wrong, query_wait_timeout=1))
    with pytest.raises(asyncpg.PostgresError):
        await gateway.connect("tcp")
    assert "certificate verify failed" in caplog.text


async def test_a_login_by_certificate(start: Start, site: Site) -> None:
    """pg_hba.conf: hostssl, cert. Postgres asks for no password, so none is needed."""
    own = {
        "server_tls_cert_file": site.certificates.client_cert,
        "server_tls_key_file": site.certificates.client_key,
    }
    gateway = await start(databases={DATABASE: site.target(f"user={CERTIFIED}")}, **verifying(site, **own))
    connection = await gateway.connect("tcp")
    assert await connection.fetchval("SELECT current_user") == CERTIFIED
    assert await how(connection) == "TLSv1.3"


async def test_a_login_by_certificate_without_one(start: Start, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    gateway = await start(databases={DATABASE: site.target(f"user={CERTIFIED}")}, **verifying(site))
    with pytest.raises(asyncpg.PostgresError, match="connection requires a valid client certificate"):
        await gateway.connect("tcp")


# -- what goes through -------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_both_legs_with_copy_and_a_slow_client(start: Start, site: Site) -> None:
    gateway = await start(
        **verifying(site),
        client_tls_sslmode="require",
        client_tls_cert_file=site.certificates.server_cert,
        client_tls_key_file=site.certificates.server_key,
    )
    rows = "".join(f"{n}\t{'x' * 500}\n" for n in range(20000)).encode()  # 10 MB
    options = gateway.conninfo("tcp", sslmode="verify-full", sslrootcert=site.certificates.ca_cert)
    async with await psycopg.AsyncConnection.connect(**options) as connection:
        await connection.execute("CREATE TEMP TABLE copied (n int, filling text) ON COMMIT DROP")
        cursor = connection.cursor()
        async with cursor.copy("COPY copied FROM STDIN") as copy:
            for at in range(0, len(rows), 100_000):
                await copy.write(rows[at : at + 100_000])
        received = bytearray()
        async with cursor.copy("COPY copied TO STDOUT") as copy:
            (session,) = gateway.gateway.context.sessions
            await until(lambda: session.transport.get_write_buffer_size() > 0)
            while data := await copy.read():
                received += data
        assert bytes(received) == rows


async def test_many_sessions_at_once(start: Start, site: Site) -> None:
    gateway = await start(**verifying(site), default_pool_size=5)
    connections = await asyncio.gather(*(gateway.connect("tcp") for _ in range(20)))
    answers = await asyncio.gather(*(each.fetchval("SELECT $1::int", n) for n, each in enumerate(connections)))
    assert answers == list(range(20))


async def test_the_console_in_tls_shows_who_is_in_tls(start: Start, site: Site) -> None:
    gateway = await start(
        **verifying(site),
        client_tls_sslmode="require",
        client_tls_cert_file=site.certificates.server_cert,
        client_tls_key_file=site.certificates.server_key,
        admin_users=USER,
    )
    tls = {"sslmode": "verify-full", "sslrootcert": site.certificates.ca_cert}
    session = gateway.conninfo("tcp", **tls)
    console = gateway.conninfo("tcp", **{**tls, "dbname": "pgbouncer"})
    async with (
        await psycopg.AsyncConnection.connect(**session, autocommit=True) as connection,
        await psycopg.AsyncConnection.connect(**console, autocommit=True) as admin,
    ):
        await connection.execute("SELECT 1")
        for show in ("SHOW CLIENTS", "SHOW SERVERS"):
            cursor = admin.cursor(row_factory=psycopg.rows.dict_row)
            rows = await (await cursor.execute(show)).fetchall()
            assert rows
            assert all(row["tls"].startswith("TLSv1.3/TLS_") for row in rows)


# -- on the wire -------------------------------------------------------------------------------------------------------


async def cancelled(gateway: LocalGateway, site: Site, way: Way = "tcp") -> None:
    connection = await gateway.connect(way)
    running = asyncio.ensure_future(connection.execute("SELECT pg_sleep(30), 'on the wire'"))
    await until(lambda: site.admin.running("on the wire"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not site.admin.running("on the wire"))
    assert await connection.fetchval("SELECT 1") == 1


def through(site: Site, proxy: Recorder) -> dict[str, str]:
    return {DATABASE: f"host={site.postgres.host} port={proxy.port}"}


@pytest.mark.parametrize("mode", ["prefer", "require", "verify-full"])
@pytest.mark.parametrize("way", ["tcp", "quic"])
async def test_a_cancel_is_encrypted_where_its_backend_is(start: Start, site: Site, mode: str, way: Way) -> None:
    async with recorder(site.postgres.host, site.postgres.port) as proxy:
        gateway = await start(databases=through(site, proxy), **verifying(site, mode))
        await cancelled(gateway, site, way)
        assert gateway.gateway.cancels.sent >= 1
        assert len(proxy.begun) >= 2
        assert set(proxy.begun) == {SSL}
        assert CANCEL not in proxy.sent
        assert b"on the wire" not in proxy.sent
        assert DATABASE.encode() not in proxy.sent


async def test_a_cancel_goes_in_clear_where_its_backend_does(start: Start, site: Site) -> None:
    async with recorder(site.postgres.host, site.postgres.port) as proxy:
        gateway = await start(databases=through(site, proxy), **verifying(site, "disable"))
        await cancelled(gateway, site)
        assert proxy.begun.count(CANCEL) >= 1
        assert SSL not in proxy.begun


async def test_what_a_dead_client_runs_is_cancelled_in_tls(start: Start, site: Site) -> None:
    async with recorder(site.postgres.host, site.postgres.port) as proxy:
        gateway = await start(databases=through(site, proxy), **verifying(site))
        connection = await gateway.connect("tcp")
        running = asyncio.ensure_future(connection.execute("SELECT pg_sleep(30), 'dead client'"))
        await until(lambda: site.admin.running("dead client"))
        connection._transport.abort()
        with pytest.raises((OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
            await running
        await until(lambda: not site.admin.running("dead client"))
        assert set(proxy.begun) == {SSL}


# -- ends --------------------------------------------------------------------------------------------------------------


async def test_a_backend_that_is_terminated(start: Start, site: Site) -> None:
    gateway = await start(**verifying(site))
    connection = await gateway.connect("tcp")
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await until(lambda: pid not in gateway.backend_pids)
    assert await connection.fetchval("SELECT pg_backend_pid()") != pid


# -- reloads -----------------------------------------------------------------------------------------------------------


async def test_changed_settings_replace_backends_and_no_session_notices(
    start: Start, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(**verifying(site, "disable"))
    connection = await gateway.connect("tcp")
    assert await how(connection) is None
    before = gateway.backend_pids
    async with connection.transaction():
        assert await how(connection) is None
        gateway.gateway.operations.set("server_tls_sslmode", "verify-full")
        # The transaction keeps its backend.
        assert await how(connection) is None
    await until(lambda: not before & gateway.backend_pids)
    assert await how(connection) == "TLSv1.3"
    assert "database configuration changed" in caplog.text


async def test_a_reload_without_a_change_replaces_none(start: Start, site: Site) -> None:
    gateway = await start(**verifying(site))
    connection = await gateway.connect("tcp")
    await how(connection)
    before = gateway.backend_pids
    await gateway.gateway.operations.reload()
    await how(connection)
    assert gateway.backend_pids == before


async def test_a_cancel_after_a_reload_goes_as_its_backend_went(start: Start, site: Site) -> None:
    async with recorder(site.postgres.host, site.postgres.port) as proxy:
        gateway = await start(databases=through(site, proxy), **verifying(site))
        connection = await gateway.connect("tcp")
        running = asyncio.ensure_future(connection.execute("SELECT pg_sleep(30), 'after a reload'"))
        await until(lambda: site.admin.running("after a reload"))
        gateway.gateway.operations.set("server_tls_sslmode", "disable")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not site.admin.running("after a reload"))
        assert CANCEL not in proxy.begun
