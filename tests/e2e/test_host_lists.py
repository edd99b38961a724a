"""Two servers behind a gateway, a primary and a standby: which of them each session is at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from helpers.site import DATABASE, Site
from helpers.standby import Pair, pair_of_servers, site_of
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

SETTINGS: Final[dict[str, Any]] = {"query_wait_timeout": 30, "default_pool_size": 4}
PORT: Final = "SELECT inet_server_port()"
"""Which of the servers answers."""
OWNER: Final = {"user": "pgtrunk", "password": None, "dbname": "pgbouncer"}


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    with pair_of_servers() as pair:
        yield pair


@pytest.fixture(scope="session")
def site(pair: Pair) -> Iterator[Site]:
    with site_of(pair) as site:
        yield site


async def port(gateway: LocalGateway, way: Way = "tcp") -> int:
    connection = await gateway.connect(way)
    try:
        found: int = await connection.fetchval(PORT)
    finally:
        await connection.close()
    return found


@pytest.mark.both_loops
@pytest.mark.parametrize("reverse", [False, True], ids=["first", "last"])
async def test_each_kind_of_session_gets_its_server(start: Start, pair: Pair, reverse: bool) -> None:
    first, second = pair.first.port, pair.second.port
    for attrs, expected in (
        ("primary", {first}),
        ("read-write", {first}),
        ("standby", {second}),
        ("read-only", {second}),
        ("prefer-standby", {second}),
    ):
        gateway = await start(databases=pair.entry(f"target_session_attrs={attrs}", reverse=reverse), **SETTINGS)
        assert {await port(gateway, way) for way in ("tcp", "quic")} == expected, attrs


async def test_a_single_host_has_to_be_it_too(start: Start, pair: Pair) -> None:
    entry = {DATABASE: f"host={pair.second.host} port={pair.second.port} target_session_attrs=primary"}
    gateway = await start(databases=entry, **SETTINGS | {"query_wait_timeout": 0.5})
    with pytest.raises(asyncpg.PostgresError, match=r"query_wait_timeout|no server of"):
        await gateway.connect("tcp")


async def test_a_list_is_taken_in_turns(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry(), **SETTINGS)
    connections = [await gateway.connect("tcp") for _ in range(2)]
    both = asyncio.gather(*(each.fetchval(f"{PORT} FROM pg_sleep(0.5)") for each in connections))
    assert set(await both) == {pair.first.port, pair.second.port}


async def test_a_list_is_taken_from_its_beginning(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry("load_balance_hosts=disable"), **SETTINGS)
    connections = [await gateway.connect("tcp") for _ in range(3)]
    all_of_them = asyncio.gather(*(each.fetchval(f"{PORT} FROM pg_sleep(0.2)") for each in connections))
    assert set(await all_of_them) == {pair.first.port}


@pytest.mark.parametrize("balance", ["round-robin", "disable"])
async def test_a_host_that_is_not_there_is_passed_over(start: Start, pair: Pair, balance: str) -> None:
    server = pair.second
    entry = f"host=no.such.host.invalid,127.0.0.1 port=5432,{server.port} load_balance_hosts={balance}"
    gateway = await start(databases={DATABASE: entry}, **SETTINGS)
    assert await port(gateway) == server.port


async def test_a_cancel_goes_to_the_server_of_its_session(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry("target_session_attrs=standby"), **SETTINGS)
    connection = await gateway.connect("tcp")
    with pytest.raises(asyncio.TimeoutError):
        await connection.execute("SELECT pg_sleep(60)", timeout=0.5)
    await until(lambda: set(gateway.site.admin.backends().values()) == {"idle"})
    assert await connection.fetchval(PORT) == pair.second.port


async def test_replication_finds_its_server(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry("target_session_attrs=primary", reverse=True), **SETTINGS)
    conninfo = gateway.conninfo("tcp", replication="database")
    async with await psycopg.AsyncConnection.connect(**conninfo, autocommit=True) as connection:
        cursor = await connection.execute("IDENTIFY_SYSTEM")
        assert await cursor.fetchone() is not None
        (walsender,) = [each for pool in gateway.gateway.pools for each in pool.backends.values() if each.lease]
        assert walsender.target.port == pair.first.port


async def test_auth_query_finds_its_server(start: Start, pair: Pair) -> None:
    """The user is in Postgres alone, and who asks for him is in auth_file."""
    options = "target_session_attrs=primary", f"auth_user={pair.first.user}"
    gateway = await start(databases=pair.entry(*options, reverse=True), **SETTINGS)
    password = pair.first.password
    (gateway.place / "userlist.txt").write_text(f'"{pair.first.user}" "{password}"\n')
    await ask(gateway, "RELOAD")
    assert await port(gateway) == pair.first.port


async def test_begin_with_modes_is_not_kept_back_where_the_server_may_be_a_standby(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry(), **SETTINGS)
    connections = [await gateway.connect("tcp") for _ in range(4)]
    told = []
    for connection in connections:
        try:
            await connection.execute("BEGIN READ WRITE")
        except asyncpg.FeatureNotSupportedError as error:
            told.append(error.sqlstate)
    assert set(told) == {"0A000"}
    for connection in connections:
        await connection.execute("ROLLBACK")


async def test_the_console_shows_them(start: Start, pair: Pair) -> None:
    gateway = await start(databases=pair.entry("target_session_attrs=primary", reverse=True), **SETTINGS)
    await port(gateway)
    first, second = await ask(gateway, "SHOW HOSTS")
    assert (first["port"], first["standing"], first["state"], first["current"]) == (
        pair.second.port,
        "a standby",
        "up",
        0,
    )
    assert (second["port"], second["standing"], second["backends"]) == (pair.first.port, "a primary", 1)
    (database,) = [row for row in await ask(gateway, "SHOW DATABASES") if row["name"] == DATABASE]
    assert (database["host"], database["load_balance_hosts"]) == ("127.0.0.1,127.0.0.1", "round-robin")


async def ask(gateway: LocalGateway, sql: Any) -> list[dict[str, Any]]:
    """One command at the console."""
    connection = await psycopg.AsyncConnection.connect(**gateway.conninfo("unix", **OWNER), autocommit=True)
    async with connection:
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(sql)
        return await cursor.fetchall() if cursor.description else []
