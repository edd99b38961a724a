"""What PgBouncer's CVEs of 2025 were, and that the gateway has none of them. Both are about auth_query: the gateway
looks up in Postgres, as auth_user, the secrets of users whom it does not know, before they have proved anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from helpers import postgres as pg
from helpers.site import DATABASE, PASSWORD, USER

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start
    from helpers.site import Site

LOOKER: Final = "cve_looker"
GUEST: Final = "cve_guest"


async def gateway_that_looks_up(start: Start, site: Site, **settings: object) -> LocalGateway:
    """A gateway with auth_user, and a guest that only Postgres knows."""
    await pg.create_user(site.postgres, LOOKER, "looks", "SUPERUSER")
    await pg.create_user(site.postgres, GUEST, "guest", "VALID UNTIL 'infinity'")
    users = site.place() / "users.txt"
    users.write_text('"{}" "{}"\n"{}" "looks"\n'.format(USER, PASSWORD.replace('"', '""'), LOOKER))
    # Backends are another user's: who logs in at the gateway is what counts here.
    databases = {DATABASE: site.target(f"user={USER}")}
    return await start(databases=databases, auth_file=users, auth_user=LOOKER, **settings)


async def guest(gateway: LocalGateway, **options: object) -> asyncpg.Connection:
    return await gateway.connect("tcp", user=GUEST, password="guest", **options)


async def test_cve_2025_2291_a_password_that_has_expired(start: Start, site: Site) -> None:
    """PgBouncer's auth_query did not look at VALID UNTIL, so an expired password went on opening the pooler, and by it
    the database, although Postgres itself refused it."""
    gateway = await gateway_that_looks_up(start, site)
    assert await (await guest(gateway)).fetchval("SELECT 1") == 1
    await pg.create_user(site.postgres, GUEST, "guest", "VALID UNTIL '2001-01-01'")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await guest(gateway)
    assert await (await gateway.connect("tcp")).fetchval("SELECT 1") == 1


@pytest.mark.parametrize("by_options", [False, True])
async def test_cve_2025_12819_a_search_path_in_the_startup_packet(start: Start, site: Site, by_options: bool) -> None:
    """Where search_path was followed, PgBouncer made the client's one before it ran auth_query, as auth_user and for a
    client that had not logged in: tables and operators of the client's choice took the place of pg_catalog's."""
    await pg.execute(
        site.postgres,
        "DROP SCHEMA IF EXISTS evil CASCADE",
        "CREATE SCHEMA evil",
        "CREATE TABLE evil.seen (who text)",
        f"CREATE VIEW evil.pg_shadow AS SELECT '{GUEST}'::name AS usename,"
        " 'mine'::text AS passwd, NULL::timestamptz AS valuntil",
        "CREATE VIEW evil.pg_authid AS SELECT 'x'::name AS rolname, 'mine'::text AS rolpassword",
        "CREATE FUNCTION evil.equal(name, text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO evil.seen VALUES (current_user); RETURN true; END $$",
        "CREATE OPERATOR evil.= (LEFTARG = name, RIGHTARG = text, FUNCTION = evil.equal)",
        "GRANT ALL ON SCHEMA evil TO public",
        "GRANT ALL ON ALL TABLES IN SCHEMA evil TO public",
        database=DATABASE,
    )
    path = "evil, pg_catalog"
    settings = {"options": f"-c search_path={path.replace(' ', '')}"} if by_options else {"search_path": path}
    gateway = await gateway_that_looks_up(start, site, track_extra_parameters="search_path")
    try:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await gateway.connect("tcp", user=GUEST, password="mine", server_settings=settings)
        assert caught.value.sqlstate in ("28P01", "0A000")
        session = await guest(gateway)
        assert await session.fetchval("SELECT 1") == 1
        assert site.admin.rows("SELECT who FROM evil.seen") == []
    finally:
        site.admin.execute("DROP SCHEMA evil CASCADE")
