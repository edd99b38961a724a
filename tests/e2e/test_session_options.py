"""What a client asks for when it connects, whatever the setting: it has it on every backend, and nobody else has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest

from helpers.flights import counted
from helpers.raw_session import RawSession
from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

OPTIONS = {
    "lock_timeout": "5s",
    "statement_timeout": "7s",
    "idle_in_transaction_session_timeout": "9min",
    "work_mem": "1234kB",
    "extra_float_digits": "2",
    "search_path": "pg_catalog, public",
    "temp_tablespaces": "",
    "default_transaction_isolation": "repeatable read",
    "app.tenant": "it's \\ 7",
}


async def unset(gateway: LocalGateway, names: tuple[str, ...] = tuple(OPTIONS)) -> dict[str, str | None]:
    """What a session has that asked for nothing."""
    async with await psycopg.AsyncConnection.connect(**gateway.conninfo("direct")) as direct:
        row = await (await direct.execute(_showing(names).encode())).fetchone()
        assert row is not None
        return dict(zip(names, row, strict=True))


def _showing(names: tuple[str, ...]) -> str:
    return "SELECT " + ", ".join(f"nullif(current_setting('{name}', true), '')" for name in names)


async def test_they_follow_their_session_and_no_other(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    none = await unset(gateway)
    names = tuple(OPTIONS)
    first = await gateway.connect(pooled, server_settings=OPTIONS)
    other = await gateway.connect(pooled, server_settings={**OPTIONS, "work_mem": "2345kB"})
    plain = await gateway.connect(pooled)
    for _ in range(3):
        for session, expected in (
            (first, {**OPTIONS, "temp_tablespaces": None}),
            (plain, none),
            (other, {**OPTIONS, "work_mem": "2345kB", "temp_tablespaces": None}),
        ):
            row = await session.fetchrow(_showing(names))
            assert row is not None
            assert dict(zip(names, row, strict=True)) == expected


async def test_libpqs_options(start: Start) -> None:
    gateway = await start(default_pool_size=1)
    options = "-c lock_timeout=5s --statement-timeout=7s -cDateStyle=German,\\ YMD -c app.user=a\\ b"
    async with await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", options=options)) as session:
        names = ("lock_timeout", "statement_timeout", "DateStyle", "app.user")
        row = await (await session.execute(_showing(names).encode())).fetchone()
        assert row == ("5s", "7s", "German, YMD", "a b")
        assert session.info.parameter_status("DateStyle") == "German, YMD"


async def test_they_cost_no_round_trip(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    first = await gateway.connect(pooled, server_settings=OPTIONS)
    second = await gateway.connect(pooled)
    for session in (first, second, first):
        await session.execute("SELECT 1")
    flights = counted(gateway)
    for _ in range(5):
        for session in (second, first):
            await session.execute("SELECT 1")
    assert len(flights.writes) == 10
    flights.writes.clear()
    third = await gateway.connect(pooled, server_settings=OPTIONS)
    for session in (first, third, first, third):
        await session.execute("SELECT 1")
    assert flights.writes == [frontend.query(b"SELECT 1")] * 4


async def test_a_lock_timeout_is_the_sessions_own(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2)
    impatient = await gateway.connect(pooled, server_settings={"lock_timeout": "10ms"})
    holder = await gateway.connect(pooled)
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(7)")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await impatient.execute("SELECT pg_advisory_xact_lock(7)")
    await impatient.execute("SELECT pg_advisory_xact_lock(7)")


async def test_a_statement_timeout_is_the_sessions_own(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    impatient = await gateway.connect(pooled, server_settings={"statement_timeout": "100ms"})
    patient = await gateway.connect(pooled)
    for _ in range(2):
        with pytest.raises(asyncpg.QueryCanceledError, match="statement timeout"):
            await impatient.execute("SELECT pg_sleep(60)")
        assert await patient.fetchval("SELECT 1 FROM pg_sleep(0.2)") == 1


@pytest.mark.parametrize(
    ("settings", "sqlstate", "words"),
    [
        ({"lock_timeout": "soon"}, "22023", 'invalid value for parameter "lock_timeout": "soon"'),
        ({"work_memory": "1MB"}, "42704", 'unrecognized configuration parameter "work_memory"'),
        ({"max_connections": "5"}, "55P02", 'parameter "max_connections" cannot be changed'),
        ({"log_connections": "on"}, "55P02", 'parameter "log_connections" cannot be set after connection start'),
        ({"role": "nobody_at_all"}, "22023", 'role "nobody_at_all" does not exist'),
        ({"log_statement": "all"}, "42501", 'permission denied to set parameter "log_statement"'),
        ({"server_version": "9"}, "55P02", 'parameter "server_version" cannot be changed'),
    ],
)
async def test_what_postgres_refuses(
    start: Start, pooled: Way, settings: dict[str, str], sqlstate: str, words: str
) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    gateway.site.admin.execute("CREATE TABLE refused (a int)")
    gateway.site.admin.execute("ALTER TABLE refused OWNER TO app")
    try:
        session = await RawSession.start(gateway, pooled, statement_timeout="7s", **settings)
        session.send(frontend.query(b"INSERT INTO refused VALUES (1)"))
        *_, last = await session.until_lost()
        assert (last.kind, last.error.severity, last.error.sqlstate) == ("E", "FATAL", sqlstate)
        assert words in last.error.message
        assert gateway.site.admin.value("SELECT count(*) FROM refused") == 0
        plain = await gateway.connect(pooled)
        assert await plain.fetchval("SHOW statement_timeout") == "0"
        assert gateway.counts(backends=1)
    finally:
        gateway.site.admin.execute("DROP TABLE refused")


async def test_what_cannot_be_undone_any_more_stays_with_nobody(start: Start, pooled: Way) -> None:
    """An extension that is loaded takes the names that begin with its own: neither SET nor RESET are possible then."""
    gateway = await start(default_pool_size=1)
    gateway.site.admin.execute("CREATE ROLE lent")
    gateway.site.admin.execute("GRANT lent TO app")
    try:
        async with await psycopg.AsyncConnection.connect(**gateway.conninfo("direct")) as direct:
            row = await (await direct.execute("SELECT current_user")).fetchone()
            assert row == (USER,)
        plain = await gateway.connect(pooled)
        borrower = await gateway.connect(pooled, server_settings={"role": "lent", "plpgsql.own": "1"})
        assert await borrower.fetchval("SELECT current_user") == "lent"
        await borrower.execute("DO $$ BEGIN NULL; END $$")
        with pytest.raises(asyncpg.PostgresError, match="current transaction is aborted"):
            await plain.fetchval("SELECT current_user")
        for _ in range(2):
            plain = await gateway.connect(pooled)
            assert await plain.fetchval("SELECT current_user") == USER
    finally:
        gateway.site.admin.execute("DROP ROLE lent")


@pytest.mark.parametrize("name", ["transaction_isolation", "transaction_read_only", "transaction_deferrable"])
async def test_what_is_of_a_transaction_means_nothing_as_in_postgres(start: Start, name: str) -> None:
    gateway = await start(default_pool_size=1)
    value = "serializable" if name == "transaction_isolation" else "on"
    options = f"-c {name}={value}"
    async with await psycopg.AsyncConnection.connect(**gateway.conninfo("direct", options=options)) as direct:
        expected = await (await direct.execute(f"SHOW {name}")).fetchone()
    for asked in (options, ""):
        async with await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", options=asked)) as session:
            assert await (await session.execute(f"SHOW {name}")).fetchone() == expected
    with pytest.raises(psycopg.OperationalError, match='parameter "seed" cannot follow a session'):
        await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", options="-c seed=0.5"))


@pytest.mark.parametrize("options", ["-d 5", "-c lock_timeout", "--lock_timeout"])
async def test_options_that_set_nothing(start: Start, options: str) -> None:
    gateway = await start()
    with pytest.raises(psycopg.OperationalError, match="only '-c config=val' and '--config=val' are allowed"):
        await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", options=options))


async def test_ignored_ones_are_not_set(start: Start) -> None:
    gateway = await start(ignore_startup_parameters="extra_float_digits, options")
    options = "-c work_mem=1234kB -c timezone=Asia/Tokyo"
    login = {**gateway.address("tcp"), "user": USER, "password": PASSWORD, "database": DATABASE, "ssl": False}
    session = await asyncpg.connect(**login, server_settings={"options": options, "extra_float_digits": "3"})
    try:
        expected = await unset(gateway, ("work_mem", "extra_float_digits"))
        assert dict(await session.fetchrow("SELECT current_setting('work_mem') AS work_mem")) == {
            "work_mem": expected["work_mem"]
        }
        assert await session.fetchval("SHOW extra_float_digits") == expected["extra_float_digits"]
        assert await session.fetchval("SHOW TimeZone") == "Asia/Tokyo"
    finally:
        await session.close()


async def test_asyncpgs_own_pool_resets_a_session_to_what_it_began_with(start: Start) -> None:
    """It sends RESET ALL whenever a connection comes back."""
    gateway = await start(default_pool_size=1)
    settings = {"lock_timeout": "5s", "TimeZone": "Asia/Tokyo", "application_name": "shop"}
    login = {**gateway.address("tcp"), "user": USER, "password": PASSWORD, "database": DATABASE, "ssl": False}
    plain = await gateway.connect("tcp")
    async with asyncpg.create_pool(**login, min_size=1, max_size=1, server_settings=settings) as pool:
        for _ in range(3):
            async with pool.acquire() as session:
                for name, value in settings.items():
                    assert await session.fetchval(f"SHOW {name}") == value
                assert session.get_settings().TimeZone == "Asia/Tokyo"
                await session.execute("SET lock_timeout = '1s'; SET TimeZone = 'GMT'")
            assert await plain.fetchval("SHOW lock_timeout") == "0"


async def test_a_transaction_timeout_of_postgres(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    if int(gateway.site.admin.value("SHOW server_version_num")) < 170000:
        return  # It has none.
    session = await gateway.connect(pooled, server_settings={"transaction_timeout": "200ms"})
    await session.execute("BEGIN")
    with pytest.raises(asyncpg.PostgresError, match="transaction timeout"):
        await session.execute("SELECT pg_sleep(60)")
    plain = await gateway.connect(pooled)
    assert await plain.fetchval("SHOW transaction_timeout") == "0"


async def test_a_reset_in_session_mode_brings_back_what_the_session_began_with(start: Start) -> None:
    gateway = await start(default_pool_size=1, pool_mode="session")
    settings = {"lock_timeout": "5s", "TimeZone": "Asia/Tokyo", "app.tenant": "seven"}
    login = {**gateway.address("tcp"), "user": USER, "password": PASSWORD, "database": DATABASE, "ssl": False}
    async with asyncpg.create_pool(**login, min_size=1, max_size=1, server_settings=settings) as pool:
        for _ in range(3):
            async with pool.acquire() as session:
                for name, value in settings.items():
                    assert await session.fetchval(f"SHOW {name}") == value
                await session.execute("SET lock_timeout = '1s'; SET TimeZone = 'GMT'")
                assert await session.fetchval("SHOW lock_timeout") == "1s"


async def test_a_role_survives_another_sessions_authorization(start: Start, pooled: Way) -> None:
    """What names the same user changes no right, but undoes the role."""
    gateway = await start(default_pool_size=1)
    gateway.site.admin.execute("CREATE ROLE lent")
    gateway.site.admin.execute("GRANT lent TO app")
    try:
        both = await gateway.connect(pooled, server_settings={"role": "lent", "session_authorization": USER})
        one = await gateway.connect(pooled, server_settings={"role": "lent"})
        plain = await gateway.connect(pooled)
        for _ in range(2):
            for session, user in ((both, "lent"), (one, "lent"), (both, "lent"), (plain, USER)):
                assert await session.fetchval("SELECT current_user") == user
    finally:
        gateway.site.admin.execute("DROP ROLE lent")
