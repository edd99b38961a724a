"""The settings of sessions that share one backend: each has its own, at the price of no round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest

from helpers.flights import counted
from helpers.raw_session import RawSession
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import Start, Way

BERLIN = {
    "application_name": 'first\'s \\ "app"',
    "TimeZone": "Europe/Berlin",
    "search_path": '"$user", pg_catalog',
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "default_transaction_read_only": "on",
    "standard_conforming_strings": "off",
}
TOKYO = {
    "application_name": "second",
    "TimeZone": "Asia/Tokyo",
    "search_path": "information_schema",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "default_transaction_read_only": "off",
    "standard_conforming_strings": "on",
}


async def test_sessions_on_one_backend_keep_their_settings(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    sessions = {
        name: (await gateway.connect(pooled, server_settings=wanted), wanted)
        for name, wanted in (("berlin", BERLIN), ("tokyo", TOKYO))
    }
    for _ in range(3):
        for session, wanted in sessions.values():
            told = session.get_settings()
            for setting, value in wanted.items():
                assert await session.fetchval(f"SHOW {setting}") == value
                assert getattr(told, setting, value) == value
            async with session.transaction():
                assert await session.fetchval("SELECT current_setting('TimeZone')") == wanted["TimeZone"]


async def test_settings_cost_no_round_trip(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    first = await gateway.connect(pooled, server_settings=BERLIN)
    second = await gateway.connect(pooled, server_settings=TOKYO)
    for session in (first, second):
        await session.execute("SELECT 1")
    backend = counted(gateway)
    for _ in range(5):
        for session in (first, second):
            await session.execute("SELECT 1")
    assert len(backend.writes) == 10
    # Nothing is set again for a session that comes back to a backend which nobody has used since.
    backend.writes.clear()
    for _ in range(5):
        await second.execute("SELECT 1")
    assert backend.writes == [frontend.query(b"SELECT 1")] * 5


@pytest.mark.parametrize(
    "settings",
    [
        {"DateStyle": "german"},
        {"TimeZone": "europe/berlin"},
        {"client_encoding": "unicode"},
        {"client_encoding": "latin1"},
        {"application_name": "naïve"},
        {"application_name": "x" * 100},
        {"search_path": "a,b"},
        {"search_path": ""},
        {"standard_conforming_strings": "1"},
    ],
    ids=str,
)
async def test_settings_that_postgres_spells_otherwise_are_made_once(
    start: Start, pooled: Way, settings: dict[str, str]
) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    session = await RawSession.start(gateway, pooled, **settings)
    await session.ask(frontend.query(b"SELECT 1"))
    backend = counted(gateway)
    assert await session.ask(frontend.query(b"SELECT 1")) == "TDCZI"
    assert backend.writes == [frontend.query(b"SELECT 1")]
    ((name, _),) = settings.items()
    async with await psycopg.AsyncConnection.connect(**gateway.conninfo("direct")) as direct:
        await direct.execute("SELECT set_config(%s, %s, false)", (name, settings[name]))
        assert session.parameters[name] == direct.info.parameter_status(name)


async def test_what_set_changes_follows_the_session(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=1)
    first, second = await gateway.connect(pooled), await gateway.connect(pooled)
    await first.execute("SET TimeZone = 'Europe/Berlin'; SET search_path = pg_catalog; SET application_name = 'me'")
    assert await second.fetchval("SHOW TimeZone") != "Europe/Berlin"
    assert await second.fetchval("SHOW application_name") == ""
    assert await first.fetchval("SHOW TimeZone") == "Europe/Berlin"
    assert first.get_settings().TimeZone == "Europe/Berlin"
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with first.transaction():
            await first.execute("SET TimeZone = 'Asia/Tokyo'")
            await first.execute("SELECT 1/0")
    async with first.transaction():
        await first.execute("SET LOCAL TimeZone = 'Asia/Tokyo'")
        assert await first.fetchval("SHOW TimeZone") == "Asia/Tokyo"
    assert await second.fetchval("SHOW search_path") == '"$user", public'
    assert await first.fetchval("SHOW TimeZone") == "Europe/Berlin"
    assert await first.fetchval("SHOW search_path") == "pg_catalog"
    assert await first.fetchval("SHOW application_name") == "me"


async def test_encodings(start: Start) -> None:
    gateway = await start(default_pool_size=1)
    latin = await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", client_encoding="LATIN1"), autocommit=True)
    utf8 = await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp"), autocommit=True)
    try:
        for _ in range(3):
            for session, encoding in ((latin, "iso8859-1"), (utf8, "utf-8")):
                assert session.info.encoding == encoding
                row = await (await session.execute("SELECT 'größe', length('größe'), %s", ["größe"])).fetchone()
                assert row == ("größe", 5, "größe")
    finally:
        await latin.close()
        await utf8.close()


async def test_a_schema_whose_name_is_not_utf8(start: Start, pooled: Way) -> None:
    """A value that is reported in the client's encoding travels to other backends and back all the same."""
    gateway = await start(default_pool_size=1, auth_type="trust")
    latin = await RawSession.start(gateway, pooled, client_encoding="LATIN1")
    other = await RawSession.start(gateway, pooled)
    query = frontend.query("SET search_path = 'schlüssel'".encode("latin1"))
    assert await latin.ask(query) == "CZI"
    for _ in range(2):
        assert await other.ask(frontend.query(b"SHOW search_path")) == "TDCZI"
        latin.send(frontend.query(b"SHOW search_path"))
        answers = await latin.until_ready()
        assert ["schlüssel".encode("latin1") in answer.body for answer in answers if answer.kind == "D"] == [True]


@pytest.mark.parametrize(
    "settings", [{"TimeZone": "Nowhere/Land"}, {"client_encoding": "klingon"}, {"client_encoding": "klingön"}], ids=str
)
async def test_a_setting_that_postgres_refuses(start: Start, pooled: Way, settings: dict[str, str]) -> None:
    gateway = await start(default_pool_size=1, auth_type="trust")
    session = await RawSession.start(gateway, pooled, **settings)
    session.send(frontend.query(b"SELECT 1"))
    answers = await session.until_lost()
    (error,) = (answer.error for answer in answers if answer.kind == "E")
    assert (error.severity, error.sqlstate) == ("FATAL", "22023")
    assert "A setting of this session failed" in error.detail
    other = await gateway.connect(pooled)
    assert await other.fetchval("SHOW client_encoding") == "UTF8"
    assert gateway.counters()["backends"] == 1


@pytest.mark.parametrize("setting", [{"TimeZone": "Mars/X"}, {"DateStyle": "Stardate"}, {"client_encoding": "EBCDIC"}])
async def test_nothing_runs_under_a_setting_that_postgres_refuses(
    start: Start, pooled: Way, setting: dict[str, str]
) -> None:
    gateway = await start(auth_type="trust", default_pool_size=1)
    gateway.site.admin.execute("CREATE TABLE refused (a int)")
    gateway.site.admin.execute("ALTER TABLE refused OWNER TO app")
    try:
        session = await RawSession.start(gateway, pooled, **setting)
        session.send(frontend.query(b"INSERT INTO refused VALUES (1)"))
        *_, last = await session.until_lost()
        assert (last.kind, last.error.severity, last.error.sqlstate) == ("E", "FATAL", "22023")
        assert "invalid value for parameter" in last.error.message
        assert gateway.site.admin.value("SELECT count(*) FROM refused") == 0
        # Nor has the backend anything of it.
        other = await gateway.connect(pooled)
        assert await other.fetchval("SHOW TimeZone") != "Mars/X"
    finally:
        gateway.site.admin.execute("DROP TABLE refused")


async def test_settings_are_proven_once_for_all_sessions_that_want_them(start: Start) -> None:
    gateway = await start(auth_type="trust", default_pool_size=1)
    first = await RawSession.start(gateway, "tcp", TimeZone="Asia/Tokyo")
    assert await first.ask(frontend.query(b"SELECT 1")) == "TDCZI"
    plain = await RawSession.start(gateway, "tcp")
    assert await plain.ask(frontend.query(b"SELECT 1")) == "TDCZI"
    flights = counted(gateway)
    second = await RawSession.start(gateway, "tcp", TimeZone="Asia/Tokyo")
    assert await second.ask(frontend.query(b"SELECT 1")) == "TDCZI"
    assert len(flights.writes) == 1


async def test_a_notification_reaches_nobody_else(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust", default_pool_size=1, session_state="ignore")
    listener = await RawSession.start(gateway, pooled)
    assert await listener.ask(frontend.query(b"LISTEN news")) == "CZI"
    other = await RawSession.start(gateway, pooled)
    gateway.site.admin.execute("NOTIFY news")
    for query in (b"SELECT 1", b"NOTIFY news"):
        other.send(frontend.query(query))
        assert "A" not in {message.kind for message in await other.until_ready()}
