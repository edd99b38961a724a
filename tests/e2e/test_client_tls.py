"""Clients in TLS: psycopg, asyncpg and psql, asked for or direct; certificates of both sides; and their reload."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from helpers.certificates import CLIENT_AUTH, SERVER_AUTH, authority
from helpers.debian_postgres import debian_program
from helpers.processes import gateway_process, run_program
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk.wire.startup import SSLRequest
from pgtrunk_gateway.errors import ConfigError, GatewayError

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start
    from helpers.site import Site

LARGE = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 40000) n"
"""1.3 MB in one row."""
DIRECT = psycopg.pq.version() >= 170000


def door(site: Site, mode: str = "require", **settings: Any) -> dict[str, Any]:
    """Settings of a gateway that lets clients come in over TLS."""
    return {
        "client_tls_sslmode": mode,
        "client_tls_cert_file": site.certificates.server_cert,
        "client_tls_key_file": site.certificates.server_key,
        "client_tls_ca_file": site.certificates.ca_cert,
        **settings,
    }


async def connect(gateway: LocalGateway, **options: Any) -> psycopg.AsyncConnection:
    """By libpq, over TCP and in TLS unless the options say otherwise."""
    tls = {"sslmode": "verify-full", "sslrootcert": gateway.site.certificates.ca_cert}
    return await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", **{**tls, **options}), autocommit=True)


def trusting(site: Site) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(site.certificates.ca_cert))


async def by_asyncpg(gateway: LocalGateway, context: ssl.SSLContext, **options: Any) -> asyncpg.Connection:
    login = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
    connection = await asyncpg.connect(**gateway.address("tcp"), **login, ssl=context, **options)
    gateway.connections.append(connection)
    return connection


async def value(connection: psycopg.AsyncConnection, query: Any) -> Any:
    row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return row[0]


# -- the ways in -------------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize("mode", ["allow", "prefer", "require"])
async def test_libpq(start: Start, site: Site, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    gateway = await start(**door(site, mode))
    async with await connect(gateway) as connection:
        assert connection.pgconn.ssl_in_use
        assert len(await value(connection, LARGE)) == 40000 * 32
        (session,) = gateway.gateway.context.sessions
        assert session.tls.startswith("TLSv1.3/TLS_AES")
    assert "tls=TLSv1.3/TLS_AES" in caplog.text


@pytest.mark.both_loops
@pytest.mark.skipif(not DIRECT, reason="libpq before 17 has no direct TLS")
async def test_libpq_in_direct_tls(start: Start, site: Site) -> None:
    gateway = await start(**door(site))
    async with await connect(gateway, sslnegotiation="direct") as connection:
        assert connection.pgconn.ssl_in_use
        assert await value(connection, "SELECT 1") == 1


@pytest.mark.both_loops
@pytest.mark.parametrize("direct", [False, True])
async def test_asyncpg(start: Start, site: Site, direct: bool) -> None:
    gateway = await start(**door(site))
    context = trusting(site)
    if direct:
        context.set_alpn_protocols(["postgresql"])
    connection = await by_asyncpg(gateway, context, direct_tls=direct)
    assert len(await connection.fetchval(LARGE)) == 40000 * 32
    await connection.close()


async def test_psql(start: Start, site: Site) -> None:
    gateway = await start(**door(site))
    conninfo = gateway.conninfo("tcp", sslmode="verify-full")
    arguments = [f"sslrootcert={site.certificates.ca_cert}", "-XAtc", r"\conninfo", "-c", "SELECT 6 * 7"]
    done = await asyncio.to_thread(_psql, conninfo, arguments)
    assert "SSL connection (protocol: TLSv1.3" in done
    assert done.splitlines()[-1] == "42"


def _psql(conninfo: dict[str, Any], arguments: list[str]) -> str:
    import helpers.processes as processes

    class Debian:
        binary = staticmethod(debian_program)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "EmbeddedPostgres", Debian)
        return run_program("psql", conninfo, *arguments).stdout


async def test_who_need_not_have_it(start: Start, site: Site) -> None:
    gateway = await start(**door(site, "prefer"))
    async with await connect(gateway, sslmode="disable") as connection:
        assert not connection.pgconn.ssl_in_use


async def test_who_must_have_it(start: Start, site: Site) -> None:
    gateway = await start(**door(site, "require"))
    with pytest.raises(psycopg.OperationalError, match="SSL required"):
        await connect(gateway, sslmode="disable")
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="SSL required") as refused:
        await gateway.connect("tcp")
    assert refused.value.detail == "client_tls_sslmode = require."


@pytest.mark.parametrize("way", ["unix", "quic"])
async def test_the_other_fronts_need_none(start: Start, site: Site, way: Any) -> None:
    gateway = await start(**door(site, "require"))
    connection = await gateway.connect(way)
    assert await connection.fetchval("SELECT 1") == 1


async def test_no_tls_on_the_unix_socket(start: Start, site: Site) -> None:
    gateway = await start(**door(site, "require"))
    # libpq does not even ask for it there.
    options = gateway.conninfo("unix", sslmode="require")
    async with await psycopg.AsyncConnection.connect(**options) as connection:
        assert not connection.pgconn.ssl_in_use


async def test_tls_that_is_off(start: Start, site: Site) -> None:
    gateway = await start(**door(site, "disable"))
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        await connect(gateway, sslmode="require")
    async with await connect(gateway, sslmode="prefer") as connection:
        assert not connection.pgconn.ssl_in_use


# -- certificates ------------------------------------------------------------------------------------------------------


async def test_a_client_that_does_not_know_the_gateway(
    start: Start, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(authority("another").pem)
    gateway = await start(**door(site))
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        await connect(gateway, sslrootcert=wrong)
    await until(lambda: "TLS handshake error: tlsv1 alert unknown ca" in caplog.text)


async def test_a_gateway_whose_certificate_is_out_of_date(
    start: Start, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = authority()
    old = ca.issue("localhost", usage=[SERVER_AUTH], names=["127.0.0.1"], days=(-9, -1))
    cert, key = old.save(tmp_path, "old")
    root = tmp_path / "ca.pem"
    root.write_bytes(ca.pem)
    gateway = await start(**door(site, client_tls_cert_file=cert, client_tls_key_file=key))
    assert "expired on" in caplog.text
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        await connect(gateway, sslrootcert=root)
    await until(lambda: "TLS handshake error: sslv3 alert certificate expired" in caplog.text)


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
async def test_clients_that_must_show_a_certificate(start: Start, site: Site, tmp_path: Path, mode: str) -> None:
    gateway = await start(**door(site, mode))
    own = {"sslcert": site.certificates.client_cert, "sslkey": site.certificates.client_key}
    async with await connect(gateway, **own) as connection:
        assert await value(connection, "SELECT 1") == 1
    with pytest.raises(psycopg.OperationalError, match="certificate required"):
        await connect(gateway)
    cert, key = authority("another").issue(USER, usage=[CLIENT_AUTH]).save(tmp_path, "wrong")
    (tmp_path / "wrong.key").chmod(0o600)
    with pytest.raises(psycopg.OperationalError, match=r"unknown ca|decrypt error"):
        await connect(gateway, sslcert=cert, sslkey=key)


# -- what goes through -------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_copy_both_ways_with_a_client_that_is_slow(start: Start, site: Site) -> None:
    gateway = await start(**door(site))
    rows = "".join(f"{n}\t{'x' * 500}\n" for n in range(20000)).encode()  # 10 MB
    async with await connect(gateway) as connection, connection.transaction():
        await connection.execute("CREATE TEMP TABLE copied (n int, filling text) ON COMMIT DROP")
        cursor = connection.cursor()
        async with cursor.copy("COPY copied FROM STDIN") as copy:
            for at in range(0, len(rows), 100_000):
                await copy.write(rows[at : at + 100_000])
        received = bytearray()
        async with cursor.copy("COPY copied TO STDOUT") as copy:
            # Nobody reads for a while: the gateway must stop reading Postgres, and hold no 10 MB.
            session = next(iter(gateway.gateway.context.sessions))
            await until(lambda: session.transport.get_write_buffer_size() > 0)
            while data := await copy.read():
                received += data
        assert bytes(received) == rows


async def test_a_cancel_in_tls(start: Start, site: Site) -> None:
    gateway = await start(**door(site))
    connection = await by_asyncpg(gateway, trusting(site))
    running = asyncio.ensure_future(connection.execute("SELECT pg_sleep(30), 'cancel in tls'"))
    await until(lambda: site.admin.running("cancel in tls"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not site.admin.running("cancel in tls"))
    assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.skipif(not DIRECT, reason="libpq before 17 cancels in clear")
async def test_a_cancel_of_libpqs_in_tls(start: Start, site: Site) -> None:
    gateway = await start(**door(site))
    async with await connect(gateway) as connection:
        running = asyncio.ensure_future(connection.execute("SELECT pg_sleep(30), 'libpq cancels'"))
        await until(lambda: site.admin.running("libpq cancels"))
        await connection.cancel_safe(timeout=20)
        with pytest.raises(psycopg.errors.QueryCanceled):
            await running


# -- reloads -----------------------------------------------------------------------------------------------------------


async def reload(gateway: LocalGateway, **settings: Any) -> None:
    """Writes the file anew, and has the gateway take it."""
    gateway.site.write_ini(gateway.place, **settings)
    await gateway.gateway.operations.reload()


async def test_a_new_certificate_under_a_running_session(start: Start, site: Site, tmp_path: Path) -> None:
    gateway = await start(**door(site))
    running = await connect(gateway)
    ca = authority("the next")
    own = ca.issue("localhost", usage=[SERVER_AUTH], names=["localhost", "127.0.0.1"])
    cert, key = own.save(tmp_path, "next")
    root = tmp_path / "next-ca.pem"
    root.write_bytes(ca.pem)
    await reload(gateway, **door(site, client_tls_cert_file=cert, client_tls_key_file=key))
    assert await value(running, "SELECT 'still there'") == "still there"
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        await connect(gateway)
    async with await connect(gateway, sslrootcert=root) as other:
        assert await value(other, "SELECT 1") == 1
    await running.close()


async def test_a_reload_that_cannot_be_changes_nothing(
    start: Start, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(**door(site))
    _, key = authority().save(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"TLS setup failed: client_tls_key_file: .* is not the key of"):
        await reload(gateway, **door(site, client_tls_key_file=key))
    async with await connect(gateway) as connection:
        assert await value(connection, "SELECT 1") == 1
    # That a reload has failed is logged as an error, as it is meant to be.
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "TLS setup failed" in faults[0].getMessage()
    caplog.clear()


async def test_tls_is_switched_off_and_on(start: Start, site: Site) -> None:
    gateway = await start(**door(site))
    running = await connect(gateway)
    await reload(gateway, **door(site, "disable"))
    async with await connect(gateway, sslmode="disable") as connection:
        assert await value(connection, "SELECT 1") == 1
    assert await value(running, "SELECT 1") == 1
    await reload(gateway, **door(site, "require"))
    async with await connect(gateway) as connection:
        assert connection.pgconn.ssl_in_use
    await running.close()


async def test_a_certificate_and_its_key_are_set_one_after_the_other(
    start: Start, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(**door(site))
    ca = authority("the next")
    cert, key = ca.issue("localhost", usage=[SERVER_AUTH], names=["127.0.0.1"]).save(tmp_path, "next")
    root = tmp_path / "ca.pem"
    root.write_bytes(ca.pem)
    set_key = gateway.gateway.operations.set
    set_key("client_tls_key_file", key)
    assert "TLS settings could not be applied, still using old configuration" in caplog.text
    async with await connect(gateway) as connection:
        assert await value(connection, "SELECT 1") == 1
    set_key("client_tls_cert_file", cert)
    async with await connect(gateway, sslrootcert=root) as connection:
        assert await value(connection, "SELECT 1") == 1


async def test_tls_that_lacks_something_is_not_set(start: Start, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    gateway = await start(**door(site, "disable", client_tls_key_file=None))
    with pytest.raises(GatewayError, match="SET failed") as refused:
        gateway.gateway.operations.set("client_tls_sslmode", "require")
    assert "client_tls_key_file" in str(refused.value.detail)
    caplog.clear()


async def test_sighup_takes_new_certificates(site: Site, tmp_path: Path) -> None:
    ca = authority("the next")
    cert, key = ca.issue("localhost", usage=[SERVER_AUTH], names=["127.0.0.1"]).save(tmp_path, "next")
    root = tmp_path / "ca.pem"
    root.write_bytes(ca.pem)
    with gateway_process(site, **door(site)) as process:
        tls: dict[str, Any] = {"sslmode": "verify-full", "sslrootcert": site.certificates.ca_cert}
        with process.connect("tcp", **tls) as running:
            site.write_ini(process.place, **door(site, client_tls_cert_file=cert, client_tls_key_file=key))
            process.send(signal.SIGHUP)
            process.until_logged("client_tls_cert_file: ")
            assert running.execute("SELECT 1").fetchone() == (1,)
            with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
                process.connect("tcp", **tls)
            with process.connect("tcp", **{**tls, "sslrootcert": root}) as later:
                assert later.execute("SELECT 1").fetchone() == (1,)
        process.stop()


# -- those who never arrive --------------------------------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize("politely", [False, True])
async def test_clients_that_leave_in_their_handshake_leave_nothing(start: Start, site: Site, politely: bool) -> None:
    gateway = await start(**door(site))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = trusting(site).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    octets = outgoing.read()

    async def visit(direct: bool, size: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        if not direct:
            writer.write(SSLRequest().encode())
            assert await reader.readexactly(1) == b"S"
        writer.write(octets[:size])
        if size == len(octets):
            # The gateway has answered, and waits for the client's half.
            assert (await reader.read(1))[:1] == b"\x16"
        if politely:
            writer.close()
        else:
            writer.transport.abort()

    sizes = [0, 1, 4, 5, 6, 100, len(octets) - 1, len(octets)]
    await asyncio.gather(*(visit(direct, size) for direct in (False, True) for size in sizes for _ in range(3)))
    await until(lambda: gateway.counts(sessions=0, admitted=0))
    async with await connect(gateway) as connection:
        assert await value(connection, "SELECT 1") == 1
