"""The tables: PgBouncer's columns first, to the letter, and rows that fit them."""

from __future__ import annotations

from typing import Final

import pytest

from helpers.consoles import Room, error, kinds, rows
from pgtrunk_gateway.config.keys import MAIN
from pgtrunk_gateway.config.settings import DatabaseConfig, PeerConfig, UserConfig
from pgtrunk_gateway.console.columns import Kind
from pgtrunk_gateway.console.registry import SHOWS, VERBS, usage
from pgtrunk_gateway.errors import NotSupported

SOCKET: Final = (
    "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us"
    " close_needed ptr link remote_pid tls application_name prepared_statements id"
)
SOCKET_TYPES: Final = "ssssssisissiiississii"

COLUMNS: Final = {
    "VERSION": ("version", "s"),
    "POOLS": (
        (
            "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active sv_active_cancel"
            " sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us pool_mode load_balance_hosts"
        ),
        "ssiiiiiiiiiiiiiss",
    ),
    "CLIENTS": (SOCKET, SOCKET_TYPES),
    "SERVERS": (SOCKET, SOCKET_TYPES),
    "SOCKETS": (
        SOCKET + " recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail",
        SOCKET_TYPES + "iiiiiii",
    ),
    "DATABASES": (
        (
            "name host port database force_user pool_size min_pool_size reserve_pool_size server_lifetime pool_mode"
            " load_balance_hosts max_connections current_connections max_client_connections current_client_connections"
            " paused disabled"
        ),
        "ssissiiiissiiiiii",
    ),
    "USERS": (
        (
            "name pool_size reserve_pool_size pool_mode max_user_connections current_connections"
            " max_user_client_connections current_client_connections"
        ),
        "ssssiiii",
    ),
    "LISTS": ("list items", "si"),
    "STATS": (
        (
            "database total_server_assignment_count total_xact_count total_query_count total_received total_sent"
            " total_xact_time total_query_time total_wait_time total_client_parse_count total_server_parse_count"
            " total_bind_count total_client_login_count avg_server_assignment_count avg_xact_count avg_query_count"
            " avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time avg_client_parse_count"
            " avg_server_parse_count avg_bind_count avg_client_login_count"
        ),
        "s" + "n" * 24,
    ),
    "STATS_TOTALS": (
        (
            "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time"
            " wait_time client_parse_count server_parse_count bind_count client_login_count"
        ),
        "s" + "n" * 12,
    ),
    "STATS_AVERAGES": (
        (
            "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time"
            " wait_time avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count"
        ),
        "s" + "n" * 12,
    ),
    "TOTALS": ("name value", "sn"),
    "CONFIG": ("key value default changeable", "ssss"),
    "STATE": ("key value", "ss"),
    "MEM": ("name size used free memtotal", "siiii"),
    "PEERS": ("peer_id host port pool_size", "isii"),
    "PEER_POOLS": ("peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login", "iiiii"),
    "DNS_HOSTS": ("hostname ttl addrs", "sqs"),
    "DNS_ZONES": ("zonename serial count", "sqi"),
    "FDS": (
        (
            "fd task user database addr port cancel link client_encoding std_strings datestyle timezone password"
            " scram_client_key scram_server_key"
        ),
        None,
    ),
}
"""PgBouncer's, with i for int4, q for int8, n for numeric and s for text."""
COLUMNS["ACTIVE_SOCKETS"] = COLUMNS["SOCKETS"]
OURS: Final = {"CONNECTIONS", "FLEET", "HOSTS", "PINS", "STREAMS"}
LETTERS: Final = {Kind.INT4: "i", Kind.INT8: "q", Kind.NUMERIC: "n", Kind.TEXT: "s"}


def test_there_is_each_show_of_pgbouncer() -> None:
    assert set(SHOWS) == set(COLUMNS) | OURS


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_begin_with_pgbouncers(name: str) -> None:
    names, types = COLUMNS[name]
    columns = SHOWS[name].columns[: len(names.split())]
    assert [column.name for column in columns] == names.split()
    if types is not None:
        assert "".join(LETTERS[column.kind] for column in columns) == types


ENTRIES: Final = {
    "databases": {
        "shop": DatabaseConfig(name="shop", host="10.0.0.1", port=5433, dbname="shop_1", user="bob", pool_size=3),
        "plain": DatabaseConfig(name="plain"),
    },
    "users": {
        "test1": UserConfig(name="test1", pool_size=1, reserve_pool_size=1),
        "test2": UserConfig(name="test2"),
    },
    "peers": {3: PeerConfig(peer_id=3, host="/tmp", port=5)},
}


@pytest.mark.parametrize("name", [name for name in SHOWS if name != "FDS"])
async def test_rows_have_what_their_columns_say(name: str) -> None:
    here = Room(entries=ENTRIES)
    await here.enter()
    show = SHOWS[name]
    for row in show.rows(here.console.view):
        assert len(row) == len(show.columns)
        for column, value in zip(show.columns, row, strict=True):
            assert value is None or isinstance(value, str if column.kind is Kind.TEXT else int), column
    await here.end()


async def test_databases() -> None:
    here = Room(entries=ENTRIES, max_db_connections=7, max_db_client_connections=9, reserve_pool_size=2)
    visitor = await here.enter()
    here.pools.databases["shop"].paused = True
    shop, plain, pgbouncer = rows(await visitor.query("SHOW DATABASES"))
    assert (shop["name"], shop["host"], shop["port"], shop["database"]) == ("shop", "10.0.0.1", "5433", "shop_1")
    assert (shop["force_user"], shop["pool_size"], shop["paused"], shop["disabled"]) == ("bob", "3", "1", "0")
    assert (plain["pool_size"], plain["reserve_pool_size"], plain["max_connections"]) == ("20", "2", "7")
    assert plain["force_user"] is None
    assert (pgbouncer["name"], pgbouncer["current_client_connections"]) == ("pgbouncer", "1")
    assert pgbouncer["max_client_connections"] == shop["max_client_connections"] == "9"
    await here.end()


async def test_databases_that_a_star_stands_for_are_listed_once_they_are_used() -> None:
    here = Room(entries={"any_database": DatabaseConfig(name="*", host="10.0.0.9")})
    visitor = await here.enter()
    here.pools.databases.find(here.context.config, "auto")
    names = {row["name"]: row["host"] for row in rows(await visitor.query("SHOW DATABASES"))}
    assert names["auto"] == "10.0.0.9" and "*" not in names
    await here.end()


async def test_users() -> None:
    here = Room(entries=ENTRIES)
    visitor = await here.enter()
    users = {row["name"]: row for row in rows(await visitor.query("SHOW USERS"))}
    assert list(users) == ["bob", "boss", "test1", "test2"]
    assert [(users["test1"][column] or "").strip() for column in ("pool_size", "reserve_pool_size")] == ["1", "1"]
    assert (users["test2"]["pool_size"], users["test2"]["pool_mode"]) == ("", None)
    assert users["boss"]["current_client_connections"] == "1"
    await here.end()


async def test_the_console_is_a_client_too() -> None:
    here = Room()
    visitor = await here.enter(sockname=("10.0.0.2", 6432))
    (client,) = rows(await visitor.query("SHOW CLIENTS"))
    assert (client["type"], client["user"], client["database"], client["state"]) == ("C", "boss", "pgbouncer", "idle")
    assert (client["addr"], client["port"]) == ("192.0.2.1", "40001")
    assert (client["local_addr"], client["local_port"]) == ("10.0.0.2", "6432")
    assert (client["id"], client["front"]) == (str(visitor.session.id), "tcp")
    sockets = rows(await visitor.query("SHOW SOCKETS"))
    assert [row["state"] for row in sockets] == ["cl_login", "cl_active"]
    (pool,) = rows(await visitor.query("SHOW POOLS"))
    assert (pool["database"], pool["cl_active"], pool["pool_mode"]) == ("pgbouncer", "1", "statement")
    await here.end()


async def test_config_has_every_key_as_it_is_now() -> None:
    here = Room(default_pool_size=7, server_lifetime=0.5)
    visitor = await here.enter()
    config = {row["key"]: row for row in rows(await visitor.query("SHOW CONFIG"))}
    assert list(config) == list(MAIN)
    pool_size = config["default_pool_size"]
    assert (pool_size["value"], pool_size["default"], pool_size["changeable"]) == ("7", "20", "yes")
    assert config["server_lifetime"]["value"] == "0.5"
    assert config["admin_users"]["value"] == "boss"
    assert config["listen_port"]["changeable"] == "no"
    assert config["conffile"]["value"] == "gateway.ini"
    await here.end()


@pytest.mark.parametrize("state", ["active", "paused", "suspended"])
async def test_state(state: str) -> None:
    here = Room()
    visitor = await here.enter()
    here.operations.state = state  # type: ignore[assignment]  # one of the three
    answer = {row["key"]: row["value"] for row in rows(await visitor.query("SHOW STATE"))}
    assert answer == {each: "yes" if each == state else "no" for each in ("active", "paused", "suspended")}
    here.operations.state = "active"
    await here.end()


async def test_fds_are_not_handed_over() -> None:
    here = Room()
    visitor = await here.enter()
    answer = await visitor.query("SHOW FDS")
    assert kinds(answer) == "EZ"
    assert (error(answer).sqlstate, error(answer).hint) == (NotSupported.sqlstate, error(answer).hint)
    await here.end()


async def test_settings_of_a_server_that_is_none() -> None:
    here = Room()
    visitor = await here.enter()
    assert rows(await visitor.query("SHOW TimeZone")) == [{"timezone": "GMT"}]
    await here.end()


def test_help_is_made_of_what_there_is() -> None:
    words = usage().replace("|", " ").split()
    assert set(SHOWS) <= set(words) and set(VERBS) <= set(words)
    assert max(map(len, usage().splitlines())) < 80
