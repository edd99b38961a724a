"""Replication from a server that is spoken to in TLS, and by programs that name no database: Debian's PostgreSQL 15."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from helpers.debian_postgres import CERTIFIED, HBA, DebianPostgres, debian_program
from helpers.postgres import create_database, create_user
from helpers.raw_session import RawSession
from helpers.sidecars import ENVIRONMENT
from helpers.site import DATABASE, PASSWORD, USER, Admin, Site
from helpers.waiting import until
from pgtrunk.certs import create_certificates
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import Start, Way


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """As that of the other tests, but before a PostgreSQL with TLS, where users replicate in TLS only."""
    debian_program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    certificates = create_certificates(folder / "certs", client_name=CERTIFIED)
    server = DebianPostgres(certificates, (*HBA, "hostssl replication all 127.0.0.1/32 scram-sha-256"))
    server.settings |= {"wal_level": "logical", "max_wal_senders": "10"}
    with server:
        asyncio.run(create_user(server, USER, PASSWORD, "REPLICATION"))
        asyncio.run(create_database(server, DATABASE, owner=USER))
        admin = Admin(server)
        try:
            yield Site(server, certificates, folder, admin)
        finally:
            admin.close()
            shutil.rmtree(folder)


async def test_pg_basebackup(start: Start, site: Site, tmp_path: Path) -> None:
    """Before PostgreSQL 17 it always asks for a database `replication`, which so has to be in [databases]."""
    gateway = await start(databases={"replication": site.target()}, server_tls_sslmode="require")
    copy = tmp_path / "copy"
    arguments = ["-d", make_conninfo(**gateway.conninfo("tcp")), "-D", str(copy), "--checkpoint=fast", "--no-sync"]
    process = await asyncio.create_subprocess_exec(
        debian_program("pg_basebackup"), *arguments, env=ENVIRONMENT, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(50):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    assert (copy / "PG_VERSION").read_text() == "15\n"


@pytest.mark.parametrize("replication", ["true", "database"])
async def test_replication_and_cancel_in_tls(start: Start, site: Site, pooled: Way, replication: str) -> None:
    gateway = await start(auth_type="trust", server_tls_sslmode="require")
    session = await RawSession.start(gateway, pooled, replication=replication)
    assert await session.ask(frontend.query(b"IDENTIFY_SYSTEM")) == "TDCZI"
    query = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE backend_type = 'walsender'"
    assert site.admin.rows(query) == [(True,)]
    if replication == "database":
        session.send(frontend.query(b"SELECT pg_sleep(60)"))
        await until(lambda: site.admin.running("pg_sleep"))
        canceller = await RawSession.open(gateway, pooled)
        canceller.send(session.cancel_request())
        (error,) = [message.error for message in await session.until_ready() if message.kind == "E"]
        assert error.sqlstate == "57014"
    session.close()
    await until(lambda: not site.admin.rows(query))
