"""A client that replicates through a worker has a place of the fleet's limits, for as long as it stays."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.postgres import create_database, create_user
from helpers.site import DATABASE, PASSWORD, USER, Admin, Site
from helpers.waiting import until
from pgtrunk.certs import create_certificates
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

    from helpers.fleets import LocalFleet, StartFleet


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """As that of the other tests, but before a PostgreSQL that can be replicated from, by a user who may."""
    with EmbeddedPostgres(max_connections=50, settings={"wal_level": "logical", "max_wal_senders": "4"}) as postgres:
        asyncio.run(create_user(postgres, USER, PASSWORD, "REPLICATION"))
        asyncio.run(create_database(postgres, DATABASE, owner=USER))
        folder = Path(tempfile.mkdtemp(prefix="fleet-"))
        admin = Admin(postgres)
        try:
            yield Site(postgres, create_certificates(folder / "certs"), folder, admin)
        finally:
            admin.close()
            shutil.rmtree(folder)


def held(fleet: LocalFleet) -> int:
    account = fleet.supervisor.teller.bank.accounts.get(("pool", DATABASE, USER))
    return 0 if account is None else account.total


async def replicate(fleet: LocalFleet) -> asyncpg.Connection:
    connection = await fleet.connect(server_settings={"replication": "database"})
    await connection.execute("IDENTIFY_SYSTEM")
    return connection


async def test_it_takes_what_is_idle_wherever_that_is_and_gives_it_back(site: Site, start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2, default_pool_size=2, query_wait_timeout=40)
    sessions = [await fleet.connect() for _ in range(2)]
    await asyncio.gather(*(each.execute("SELECT pg_sleep(0.1)") for each in sessions))
    assert held(fleet) == 2
    walsender = await replicate(fleet)
    kinds = dict(site.admin.rows("SELECT pid, backend_type FROM pg_stat_activity WHERE usename = %s", USER))
    assert sorted(kinds.values()) == ["client backend", "walsender"]
    # One place is left, and whoever needs it gets it.
    for session in sessions * 2:
        assert await session.fetchval("SELECT 1") == 1
        assert held(fleet) == 2
    walsender.terminate()
    await until(lambda: held(fleet) == 1)
