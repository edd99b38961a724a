"""Logins and how they fail, settings of a session, encodings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg
import psycopg
import pytest

from helpers.site import DATABASE, USER

Connect = Callable[..., Awaitable[asyncpg.Connection]]

SETTINGS: Final = {
    "application_name": 'the "first" app',
    "TimeZone": "Europe/Berlin",
    "search_path": '"$user", pg_catalog',
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
}
FAILURES: Final = {
    "a wrong password": ({"password": "wrong"}, "28P01"),
    "an unknown user": ({"user": "nobody"}, "28P01"),
    "an unknown database": ({"database": "nowhere"}, "3D000"),
}


async def test_who_is_there(session: asyncpg.Connection) -> None:
    assert await session.fetchrow("SELECT current_user, session_user, current_database()") == (USER, USER, DATABASE)
    assert session.get_server_version().major == 18
    told = session.get_settings()
    assert (told.server_encoding, told.client_encoding, told.integer_datetimes) == ("UTF8", "UTF8", "on")
    assert session.get_server_pid() > 0


@pytest.mark.parametrize("failure", FAILURES)
async def test_logins_that_fail(connect: Connect, failure: str) -> None:
    options, sqlstate = FAILURES[failure]
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connect(**options)
    assert caught.value.sqlstate == sqlstate
    assert caught.value.severity == "FATAL"
    assert await (await connect()).fetchval("SELECT 1") == 1


@pytest.mark.parametrize("failure", FAILURES)
async def test_logins_that_fail_by_psycopg(conninfo: dict[str, Any], failure: str) -> None:
    options, _ = FAILURES[failure]
    own = {"dbname" if name == "database" else name: value for name, value in options.items()}
    with pytest.raises(psycopg.OperationalError, match="FATAL: "):
        await psycopg.AsyncConnection.connect(**conninfo | own)


async def test_settings_from_the_start(connect: Connect) -> None:
    session, other = await connect(server_settings=SETTINGS), await connect()
    for _ in range(2):
        assert await other.fetchval("SHOW TimeZone") != SETTINGS["TimeZone"]
        for name, value in SETTINGS.items():
            assert await session.fetchval(f"SHOW {name}") == value
    assert session.get_settings().application_name == SETTINGS["application_name"]


async def test_settings_that_are_changed(connect: Connect) -> None:
    session, other = await connect(), await connect()
    for name, value in SETTINGS.items():
        await session.execute("SELECT set_config($1, $2, false)", name, value)
    assert await other.fetchval("SHOW TimeZone") != SETTINGS["TimeZone"]
    for name, value in SETTINGS.items():
        assert await session.fetchval(f"SHOW {name}") == value
    assert session.get_settings().TimeZone == "Europe/Berlin"
    async with session.transaction():
        await session.execute("SET LOCAL TimeZone = 'Asia/Tokyo'")
        assert session.get_settings().TimeZone == "Asia/Tokyo"
    assert await session.fetchval("SHOW TimeZone") == "Europe/Berlin"
    await session.execute("RESET TimeZone")
    assert await session.fetchval("SHOW TimeZone") == await other.fetchval("SHOW TimeZone")


async def test_settings_that_postgres_does_not_take(connect: Connect) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        session = await connect(server_settings={"TimeZone": "Nowhere/Land"})
        # The gateway lets it in, and asks the server with its first query.
        await session.fetchval("SELECT 1")
    error = caught.value if caught.value.sqlstate != "08003" else caught.value.__cause__
    assert isinstance(error, asyncpg.PostgresError) and error.sqlstate == "22023"


async def test_encodings(conninfo: dict[str, Any]) -> None:
    for encoding, octets in (("LATIN1", b"\xe4"), ("UTF8", b"\xc3\xa4"), ("LATIN1", b"\xe4")):
        async with await psycopg.AsyncConnection.connect(**conninfo, client_encoding=encoding) as connection:
            assert connection.info.encoding == {"LATIN1": "iso8859-1", "UTF8": "utf-8"}[encoding]
            answer = await connection.execute(b"SELECT '" + octets + b"'::text, chr(228)")
            assert await answer.fetchone() == ("ä", "ä")
            assert answer.pgresult is not None and answer.pgresult.get_value(0, 1) == octets


async def test_what_has_no_place_in_an_encoding(conninfo: dict[str, Any]) -> None:
    async with await psycopg.AsyncConnection.connect(**conninfo, client_encoding="LATIN1") as connection:
        with pytest.raises(psycopg.errors.UntranslatableCharacter):
            await connection.execute("SELECT chr(8364)")
        await connection.rollback()
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)


async def test_an_empty_startup_by_psycopg(conninfo: dict[str, Any]) -> None:
    async with await psycopg.AsyncConnection.connect(**conninfo, application_name="") as connection:
        assert connection.info.parameter_status("application_name") == ""
        assert connection.info.parameter_status("standard_conforming_strings") == "on"
        assert connection.info.backend_pid > 0
