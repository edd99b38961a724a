"""auth_query: who is looked up in Postgres, and what nobody may learn by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from helpers.roles import ASKER, ASKERS_PASSWORD, Roles, begin, log_in, refused
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

FOUND = "found"
ALL_WHO_DO_NOT = ("unknown", "without", "expired", "nologin")


@pytest.fixture
def roles(site: Site) -> Iterator[Roles]:
    roles = Roles(site)
    try:
        roles.make(FOUND, "secret")
        roles.make("without", None)
        roles.make("expired", "secret", "LOGIN VALID UNTIL '1999-01-01'")
        roles.make("nologin", "secret", "NOLOGIN")
        yield roles
    finally:
        roles.close()


async def login(gateway: LocalGateway, user: str = FOUND, password: str = "secret", **more: Any) -> str:
    """Who is logged in."""
    return await log_in(gateway, user, password, **more)


async def refusal(gateway: LocalGateway, user: str = FOUND, password: str = "secret", **more: Any) -> tuple[str, str]:
    """SQLSTATE and message."""
    return await refused(gateway, user, password, **more)


# -- who gets in


@pytest.mark.parametrize("auth_type", ["scram-sha-256", "md5", "plain", "trust"])
async def test_a_user_who_is_found(roles: Roles, start: Start, auth_type: str) -> None:
    gateway = await begin(start, roles, auth_type=auth_type)
    if auth_type == "trust":
        # The client has proved nothing, so the gateway has nothing to prove to Postgres.
        sqlstate, words = await refusal(gateway)
        assert (sqlstate, words) == ("28P01", "server login failed: wrong password type")
        return
    assert await login(gateway) == FOUND
    assert await refusal(gateway, password="wrong") in (
        ("28P01", "SASL authentication failed"),
        ("28P01", "password authentication failed"),
    )


@pytest.mark.both_loops
async def test_by_every_way_in(roles: Roles, start: Start, pooled: Way) -> None:
    gateway = await begin(start, roles)
    assert await login(gateway, way=pooled) == FOUND
    assert len(gateway.gateway.lookups) == 1


@pytest.mark.parametrize("auth_type", ["scram-sha-256", "md5", "plain"])
async def test_those_who_do_not_get_in_cannot_be_told_apart(roles: Roles, start: Start, auth_type: str) -> None:
    """CVE-2025-2291: VALID UNTIL counts; and who has no password, or may not log in, is as one who does not exist."""
    gateway = await begin(start, roles, auth_type=auth_type, login_failure_limit=0)
    told = {await refusal(gateway, user) for user in ALL_WHO_DO_NOT}
    told |= {await refusal(gateway, user, "wrong") for user in (*ALL_WHO_DO_NOT, FOUND)}
    told |= {await refusal(gateway, user, database="nowhere") for user in (*ALL_WHO_DO_NOT, FOUND)}
    assert len(told) == 1


async def test_valid_until(roles: Roles, start: Start) -> None:
    gateway = await begin(start, roles)
    roles.execute("ALTER ROLE {} VALID UNTIL '2999-01-01'", FOUND)
    assert await login(gateway) == FOUND
    roles.execute("ALTER ROLE {} VALID UNTIL '1999-01-01'", FOUND)
    assert (await refusal(gateway))[0] == "28P01"
    roles.execute("ALTER ROLE {} VALID UNTIL 'infinity'", FOUND)
    assert await login(gateway) == FOUND


async def test_a_password_that_is_changed_counts_at_once(roles: Roles, start: Start) -> None:
    gateway = await begin(start, roles)
    assert await login(gateway) == FOUND
    roles.change(FOUND, "newer")
    assert (await refusal(gateway))[1] == "SASL authentication failed"
    assert await login(gateway, password="newer") == FOUND
    # And it is the new one that logs in at Postgres.
    for pool in gateway.gateway.pools.of(DATABASE):
        pool.reconnect()
    assert await login(gateway, password="newer") == FOUND


@pytest.mark.parametrize("auth_type", ["md5", "plain"])
async def test_an_md5_secret(roles: Roles, start: Start, auth_type: str) -> None:
    roles.make("old_found", "secret", encryption="md5")
    gateway = await begin(start, roles, auth_type=auth_type)
    with roles.asked_for(old_found="md5"):
        assert await login(gateway, "old_found") == "old_found"
    assert (await refusal(gateway, "old_found", "wrong"))[1] == "password authentication failed"


async def test_auth_file_comes_first(roles: Roles, start: Start) -> None:
    users = roles.userlist(**{ASKER: ASKERS_PASSWORD, FOUND: "of the file"})
    gateway = await begin(start, roles, auth_file=users)
    assert (await refusal(gateway))[1] == "SASL authentication failed"
    assert len(gateway.gateway.lookups) == 0


async def test_the_asker_may_log_in_too(roles: Roles, start: Start) -> None:
    gateway = await begin(start, roles)
    assert await login(gateway, ASKER, ASKERS_PASSWORD) == ASKER


async def test_the_user_is_who_the_query_says(roles: Roles, start: Start) -> None:
    query = "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = lower($1)"
    gateway = await begin(start, roles, auth_query=query)
    assert await login(gateway, FOUND.upper()) == FOUND
    assert [pool.key.user for pool in gateway.gateway.pools] == [FOUND]


@pytest.mark.parametrize("name", ["it's", 'a"b', "ünï", "x" * 63, "; DROP ROLE found; --", "$1"])
async def test_odd_names(roles: Roles, start: Start, name: str) -> None:
    roles.make(name, "secret")
    gateway = await begin(start, roles)
    assert await login(gateway, name) == name


# -- where it is asked


async def test_the_database_that_is_asked(roles: Roles, start: Start, site: Site) -> None:
    databases = {
        DATABASE: site.target("auth_dbname=authdb"),
        "other": site.target(f"dbname={DATABASE} auth_query='SELECT 1'"),
        "authdb": site.target(f"dbname={DATABASE}"),
    }
    gateway = await begin(start, roles, databases=databases, auth_dbname="nowhere", auth_user=None)
    assert (await refusal(gateway))[1] == "SASL authentication failed"
    gateway = await begin(start, roles, databases=databases, auth_dbname="nowhere")
    assert await login(gateway) == FOUND
    assert await refusal(gateway, database="other") == ("F0000", "bouncer config error")
    assert [line[0] for line in gateway.gateway.lookups._lines] == ["authdb"]


async def test_a_user_of_its_own_asks_for_a_database(roles: Roles, start: Start, site: Site) -> None:
    databases = {DATABASE: site.target(f"auth_user={ASKER}")}
    gateway = await begin(start, roles, databases=databases, auth_user="nobody")
    assert await login(gateway) == FOUND


@pytest.mark.parametrize(
    ("settings", "log"),
    [
        ({"auth_dbname": "nowhere"}, 'authentication database "nowhere" is not configured'),
        ({"auth_query": "SELECT $1::text"}, "expected 2 columns from auth_query, not 1"),
        ({"auth_query": "SELECT $1::text, 'y', 'z'"}, "expected 2 columns from auth_query, not 3"),
        ({"auth_query": "SELECT 'x', 'y'"}, "error response from auth_query"),
        ({"auth_query": "SELECT $1::text, 'y', 'z' WHERE false"}, "expected 2 columns from auth_query, not 3"),
        ({"auth_query": "SELECT NULL, $1::text"}, "auth_query response contained null user name"),
        (
            {"auth_query": "SELECT usename, passwd FROM not_pg_shadow WHERE usename = $1"},
            '"not_pg_shadow" does not exist',
        ),
        ({"auth_query": "VACUUM pg_authid"}, "error response from auth_query"),
        ({"auth_user": "somebody"}, "no password for user 'somebody'"),
    ],
)
async def test_what_is_wrong_with_it_is_in_the_log(
    roles: Roles, start: Start, caplog: pytest.LogCaptureFixture, settings: dict[str, str], log: str
) -> None:
    gateway = await begin(start, roles, **settings)
    assert await refusal(gateway) == ("F0000", "bouncer config error")
    assert log in caplog.text


async def test_a_database_that_postgres_does_not_have(
    roles: Roles, start: Start, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients name it, where "*" serves any name: which of them exist is for users to know."""
    gateway = await begin(start, roles, databases={"*": site.target()})
    assert await login(gateway) == FOUND
    assert await refusal(gateway, database="nowhere") == ("28P01", "SASL authentication failed")
    assert "auth_query in 'nowhere' as 'asker': database \"nowhere\" does not exist" in caplog.text
    # One that is in [databases] is the fault of who wrote it there.
    gateway = await begin(start, roles, databases={DATABASE: site.target("dbname=nowhere")})
    assert await refusal(gateway) == ("F0000", "bouncer config error")


@pytest.mark.parametrize("name", ["pgbouncer", "pgtrunk", "gateway"])
async def test_the_console_is_no_database_to_ask(
    roles: Roles, start: Start, site: Site, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    gateway = await begin(start, roles, databases={DATABASE: site.target(f"auth_dbname={name}")})
    assert await refusal(gateway) == ("F0000", "bouncer config error")
    assert f'cannot use the reserved "{name}" database as an auth_dbname' in caplog.text


async def test_a_database_that_is_disabled_is_not_asked(roles: Roles, start: Start, site: Site) -> None:
    databases = {DATABASE: site.target("auth_dbname=authdb"), "authdb": site.target(f"dbname={DATABASE}")}
    gateway = await begin(start, roles, databases=databases)
    gateway.gateway.pools.databases["authdb"].disabled = True
    assert (await refusal(gateway))[1] == 'authentication database "authdb" is disabled'


async def test_a_server_that_is_not_there(roles: Roles, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    gateway = await begin(start, roles, databases={DATABASE: "host=127.0.0.1 port=1"})
    for _ in range(2):
        sqlstate, words = await refusal(gateway)
        assert (sqlstate, words) == ("08001", "users cannot be looked up just now")
    assert "127.0.0.1:1" in caplog.text


# -- what happens to the connection that asks


def pids(site: Site) -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE usename = %s"
    return [pid for (pid,) in site.admin.rows(query, ASKER)]


async def test_one_connection_serves_all_and_is_closed_with_the_gateway(roles: Roles, start: Start, site: Site) -> None:
    gateway = await begin(start, roles)
    for _ in range(3):
        await login(gateway)
    assert len(pids(site)) == 1
    await gateway.settle()
    await gateway.close()
    await until(lambda: not pids(site))


async def test_it_is_closed_when_it_is_idle(roles: Roles, start: Start, site: Site) -> None:
    gateway = await begin(start, roles, server_idle_timeout=0.05)
    await login(gateway)
    await until(lambda: not len(gateway.gateway.lookups) and not pids(site))
    await login(gateway)


async def test_it_is_closed_when_it_is_too_old(roles: Roles, start: Start, site: Site) -> None:
    gateway = await begin(start, roles, server_lifetime=0)
    await login(gateway)
    await until(lambda: not len(gateway.gateway.lookups) and not pids(site))


async def test_it_is_made_anew_when_it_is_lost(roles: Roles, start: Start, site: Site) -> None:
    gateway = await begin(start, roles)
    await login(gateway)
    (pid,) = pids(site)
    site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await login(gateway)
    (other,) = pids(site)
    assert other != pid


@pytest.fixture
def gate(roles: Roles, site: Site) -> Iterator[str]:
    """An auth_query that counts its calls in the table `asked`, and waits while the test has lock 77."""
    site.admin.execute("CREATE TABLE asked (name text)")
    roles.execute("GRANT INSERT ON asked TO {}", ASKER)
    site.admin.execute(
        "CREATE FUNCTION public.look(wanted text) RETURNS TABLE (name text, secret text) LANGUAGE sql AS"
        " 'INSERT INTO public.asked VALUES (wanted); SELECT pg_advisory_xact_lock(77);"
        " SELECT rolname::text, rolpassword FROM pg_authid WHERE rolname = wanted'"
    )
    try:
        yield "SELECT * FROM public.look($1)"
    finally:
        site.admin.execute("SELECT pg_advisory_unlock_all(); DROP FUNCTION public.look; DROP TABLE asked")


async def asked(gateway: LocalGateway) -> int:
    """Waits until something is asked -> the process that is asked."""
    lines = gateway.gateway.lookups._lines
    await until(lambda: any(line._asked and line.opened for line in lines.values()))
    return next(line.pid for line in lines.values() if line._asked)


async def test_it_is_made_anew_when_it_is_lost_with_a_question_on_it(
    roles: Roles, gate: str, start: Start, site: Site
) -> None:
    gateway = await begin(start, roles, auth_query=gate)
    await login(gateway)
    site.admin.execute("SELECT pg_advisory_lock(77)")
    waiting = asyncio.create_task(login(gateway))
    pid = await asked(gateway)
    site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await until(lambda: pid not in [line.pid for line in gateway.gateway.lookups._lines.values()])
    site.admin.execute("SELECT pg_advisory_unlock(77)")
    assert await waiting == FOUND


async def test_a_question_that_is_not_answered(roles: Roles, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    query = "SELECT $1::text, pg_sleep(100)::text"
    gateway = await begin(start, roles, auth_query=query, server_connect_timeout=0.3)
    assert await refusal(gateway) == ("08001", "users cannot be looked up just now")
    assert "longer than server_connect_timeout = 0.3 s" in caplog.text
    await until(lambda: not len(gateway.gateway.lookups))


async def test_a_client_does_not_wait_for_it_longer_than_for_its_login(roles: Roles, start: Start) -> None:
    query = "SELECT $1::text, pg_sleep(100)::text"
    gateway = await begin(start, roles, auth_query=query, client_login_timeout=0.3, server_connect_timeout=1)
    assert (await refusal(gateway))[0] == "57014"


async def test_clients_that_leave_while_they_are_looked_up(roles: Roles, gate: str, start: Start, site: Site) -> None:
    gateway = await begin(start, roles, auth_query=gate)
    site.admin.execute("SELECT pg_advisory_lock(77)")
    waiting = [asyncio.create_task(login(gateway)) for _ in range(5)]
    await asked(gateway)
    await until(lambda: gateway.counts(sessions=5))
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await until(lambda: gateway.counts(sessions=0))
    site.admin.execute("SELECT pg_advisory_unlock(77)")
    assert await login(gateway) == FOUND


async def test_logins_at_the_same_time_share_a_question(roles: Roles, gate: str, start: Start, site: Site) -> None:
    gateway = await begin(start, roles, auth_query=gate)
    site.admin.execute("SELECT pg_advisory_lock(77)")
    logins = [asyncio.create_task(login(gateway)) for _ in range(20)]
    await asked(gateway)
    await until(lambda: gateway.counts(sessions=20))
    await asyncio.sleep(0.1)  # for the last of them to have sent its startup packet; too short, and the count is higher
    site.admin.execute("SELECT pg_advisory_unlock(77)")
    assert set(await asyncio.gather(*logins)) == {FOUND}
    assert site.admin.value("SELECT count(*) FROM asked") == 1
    assert await login(gateway) == FOUND
    assert site.admin.value("SELECT count(*) FROM asked") == 2


async def test_the_tests_own_user_needs_no_auth_query(roles: Roles, start: Start) -> None:
    gateway = await start(auth_user=ASKER)
    assert await login(gateway, USER, PASSWORD) == USER
