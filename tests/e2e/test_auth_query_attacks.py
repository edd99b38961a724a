"""auth_query, and what nobody may do to it: what clients and owners of databases leave in its way has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from helpers.postgres import execute
from helpers.roles import ASKER, ASKERS_PASSWORD, Roles, begin, log_in, refused
from helpers.site import DATABASE

if TYPE_CHECKING:
    from helpers.gateways import Start
    from helpers.site import Site


@pytest.fixture
def roles(site: Site) -> Iterator[Roles]:
    roles = Roles(site)
    try:
        roles.make("victim", "secret")
        yield roles
    finally:
        roles.close()


async def test_a_clients_search_path_has_no_effect(roles: Roles, start: Start, site: Site) -> None:
    """CVE-2025-12819: not even where search_path is a setting that follows clients."""
    site.admin.execute(
        "CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;"
        "CREATE VIEW evil.pg_authid AS SELECT 'victim'::name AS rolname, 'known'::text AS rolpassword,"
        " NULL::timestamptz AS rolvaliduntil, true AS rolcanlogin;"
        "GRANT SELECT ON evil.pg_authid TO PUBLIC"
    )
    try:
        gateway = await begin(
            start,
            roles,
            track_extra_parameters="search_path",
            ignore_startup_parameters="search_path",
            auth_type="plain",
        )
        wanted = {"search_path": "evil, pg_catalog"}
        for _ in range(2):
            assert (await refused(gateway, "victim", "known", server_settings=wanted))[0] == "28P01"
        # Nor what a client does that logs in as the one who asks.
        connection = await gateway.connect("tcp", user=ASKER, password=ASKERS_PASSWORD, server_settings=wanted)
        await connection.execute("SET search_path = evil, pg_catalog")
        await connection.execute("CREATE TEMP TABLE pg_authid AS SELECT * FROM evil.pg_authid")
        assert (await refused(gateway, "victim", "known"))[0] == "28P01"
        assert await log_in(gateway, "victim", "secret") == "victim"
    finally:
        site.admin.execute("DROP SCHEMA evil CASCADE")


async def test_the_owner_of_a_database_cannot_put_another_catalog_in_its_way(
    roles: Roles, start: Start, site: Site, database: str
) -> None:
    await execute(
        site.postgres,
        f"GRANT SELECT ON pg_catalog.pg_authid TO {ASKER}",
        "CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;"
        "CREATE VIEW evil.pg_authid AS SELECT 'victim'::name AS rolname, 'known'::text AS rolpassword,"
        " NULL::timestamptz AS rolvaliduntil, true AS rolcanlogin;"
        "GRANT SELECT ON evil.pg_authid TO PUBLIC;",
        f"ALTER DATABASE {database} SET search_path = evil, pg_catalog",
        database=database,
    )
    gateway = await begin(start, roles, databases={DATABASE: site.target(f"dbname={database}")}, auth_type="plain")
    assert (await refused(gateway, "victim", "known"))[0] == "28P01"
    assert await log_in(gateway, "victim", "secret") == "victim"
