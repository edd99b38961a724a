"""The limits of a fleet on a Postgres that is spoken to in TLS: the ends of connections, and cancels."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.debian_postgres import DebianPostgres, debian
from helpers.postgres import create_database, create_user
from helpers.site import DATABASE, PASSWORD, USER, Admin, Site
from helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.fleets import LocalFleet, StartFleet

__all__ = ["debian"]


@pytest.fixture(scope="session")
def site(debian: DebianPostgres) -> Iterator[Site]:
    """As that of the other tests, but before a PostgreSQL with TLS."""
    asyncio.run(create_user(debian, USER, PASSWORD))
    asyncio.run(create_database(debian, DATABASE, owner=USER))
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    admin = Admin(debian)
    try:
        yield Site(debian, debian.certificates, folder, admin)
    finally:
        admin.close()
        shutil.rmtree(folder)


async def two(fleet: LocalFleet) -> list[asyncpg.Connection]:
    """A session on each worker."""
    connections = []
    for index in (0, 1):
        while True:
            before = fleet.spread()
            connection = await fleet.connect()
            if fleet.spread()[index] > before[index]:
                connections.append(connection)
                break
    return connections


async def test_places_move_and_return_where_postgres_is_spoken_to_in_tls(site: Site, start_fleet: StartFleet) -> None:
    fleet = await start_fleet(
        workers=2,
        default_pool_size=1,
        server_tls_sslmode="verify-full",
        server_tls_ca_file=site.certificates.ca_cert,
        query_wait_timeout=40,
    )
    one, other = await two(fleet)
    for connection in (one, other, one):
        assert await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert len(site.admin.backends()) == 1
    # Behind Terminate Postgres hangs up; nobody waits until that takes too long.
    assert "has not closed a connection" not in fleet.log
    task = asyncio.create_task(one.execute("SELECT pg_sleep(60)"))
    await until(lambda: site.admin.running("pg_sleep(60)"))
    waiting = asyncio.create_task(other.fetchval("SELECT 1"))
    await fleet.kill(0)
    assert await waiting == 1
    assert not site.admin.running("pg_sleep(60)")
    assert "cancelled what a worker has left in the server: 1 of 1 connections" in fleet.log
    with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
        await task
    await fleet.until_served()
