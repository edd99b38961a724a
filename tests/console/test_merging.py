"""What a fleet answers, out of what its workers answer: each show has a rule for each of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.consoles import Room, rows
from pgtrunk_gateway.console.calls import Look, read
from pgtrunk_gateway.console.merging import WORKER, longest, merge_rows, most, total, weighted
from pgtrunk_gateway.console.registry import SHOWS

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row

EACH: Final = {
    "CLIENTS", "PINS", "SERVERS", "SOCKETS", "ACTIVE_SOCKETS", "MEM", "CONNECTIONS", "STREAMS", "FDS", "HOSTS",
}  # fmt: skip
"""Shows whose rows belong to one worker."""
ALIKE: Final = {"CONFIG", "VERSION", "PEERS", "DNS_HOSTS", "DNS_ZONES"}


def names(show: str) -> list[str]:
    return [column.name for column in SHOWS[show].columns]


def merged(
    show: str, *tables: Sequence[Row], config: Any = None, **also: Sequence[Sequence[Row]]
) -> list[dict[str, Any]]:
    """The fleet's rows, by column."""
    merge = SHOWS[show].merge
    assert merge is not None
    view: Any = SimpleNamespace(config=config)
    rows = list(merge(view, {show: list(tables), **also}))
    return [dict(zip(names(show), row, strict=True)) for row in rows]


def row(show: str, **values: Any) -> Row:
    """A row with these values, and 0 or "" everywhere else."""
    assert set(values) <= set(names(show))
    blank = {column.name: "" if column.kind.name == "TEXT" else 0 for column in SHOWS[show].columns}
    return list((blank | values).values())


def test_each_show_is_of_one_kind() -> None:
    assert {name for name, show in SHOWS.items() if show.by_worker} == EACH
    assert {name for name, show in SHOWS.items() if show.alike} == ALIKE
    assert {name for name, show in SHOWS.items() if show.merge is not None} == set(SHOWS) - EACH - ALIKE


# -- rules -------------------------------------------------------------------------------------------------------------


def test_rows_of_one_key_become_one_and_others_stay() -> None:
    rows = [("a", 1, 5, "x"), ("b", 2, 6, "y"), ("a", 3, 4, "x")]
    assert merge_rows(["key", "sum", "most", "same"], rows, ["key"], {"sum": total, "most": most}) == [
        ("a", 4, 5, "x"),
        ("b", 2, 6, "y"),
    ]
    assert merge_rows(["key"], [], ["key"], {}) == []


def test_what_is_missing_counts_as_nothing() -> None:
    assert merge_rows(["key", "sum"], [("a", None), ("a", 3)], ["key"], {"sum": total}) == [("a", 3)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(1, 900_000), (2, 5)], (2, 5)),
        ([(2, 5), (2, 900_000)], (2, 900_000)),
        ([(0, 0), (0, 0)], (0, 0)),
    ],
)
def test_a_time_in_two_columns_is_of_one_row(times: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    rule = longest("s", "us")
    (only,) = merge_rows(["k", "s", "us"], [("k", *time) for time in times], ["k"], {"s": rule, "us": rule})
    assert tuple(only[1:]) == expected


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ([(100, 10), (400, 30)], 325),
        ([(100, 0), (400, 0)], 250),
        ([(0, 0), (400, 0)], 400),
        ([(0, 0), (0, 0)], 0),
        ([(50, 10), (0, 0)], 50),
    ],
)
def test_averages_are_weighted(counted: list[tuple[int, int]], expected: int) -> None:
    rules = {"time": weighted("count"), "count": total}
    (only,) = merge_rows(["k", "time", "count"], [("k", *each) for each in counted], ["k"], rules)
    assert only[1] == expected


# -- shows -------------------------------------------------------------------------------------------------------------


def test_pools() -> None:
    one = row("POOLS", database="shop", user="bob", cl_active=2, sv_idle=1, maxwait=1, maxwait_us=9, pool_size=5)
    two = row("POOLS", database="shop", user="bob", cl_active=3, sv_login=1, maxwait=2, maxwait_us=1, pool_size=5)
    more = row("POOLS", database="shop", user="eve", cl_waiting=1, pool_size=7)
    bob, eve = merged("POOLS", [one], [two, more])
    assert (bob["cl_active"], bob["sv_idle"], bob["sv_login"], bob["maxwait"], bob["maxwait_us"]) == (5, 1, 1, 2, 1)
    assert (bob["pool_size"], eve["pool_size"], eve["cl_waiting"]) == (5, 7, 1)


def test_databases_and_users() -> None:
    of_one = row("DATABASES", name="shop", max_connections=9, current_connections=2, current_client_connections=3)
    of_two = row("DATABASES", name="shop", max_connections=9, current_connections=1, paused=1)
    (shop,) = merged("DATABASES", [of_one], [of_two])
    assert (shop["max_connections"], shop["current_connections"], shop["current_client_connections"]) == (9, 3, 3)
    assert (shop["paused"], shop["disabled"]) == (1, 0)
    (bob,) = merged("USERS", *[[row("USERS", name="bob", max_user_connections=4, current_connections=1)]] * 3)
    assert (bob["max_user_connections"], bob["current_connections"]) == (4, 3)


def test_a_fleet_is_active_where_all_of_it_is_and_paused_where_any_of_it_is() -> None:
    active = [("active", "yes"), ("paused", "no"), ("suspended", "no")]
    paused = [("active", "no"), ("paused", "yes"), ("suspended", "no")]
    for tables, expected in (((active, active), "yes no no"), ((active, paused), "no yes no")):
        assert [each["value"] for each in merged("STATE", *tables)] == expected.split()


def test_averages_of_stats_are_weighted_by_rates_and_the_departed_count_in_totals() -> None:
    one = row("STATS", database="shop", total_xact_count=10, avg_xact_count=1, avg_xact_time=100, avg_recv=5)
    two = row("STATS", database="shop", total_xact_count=20, avg_xact_count=3, avg_xact_time=500, avg_recv=6)
    gone: Row = ["shop", 0, 7, *[0] * 10]
    (shop,) = merged("STATS", [one], [two], DEPARTED=[[gone]])
    assert (shop["total_xact_count"], shop["avg_xact_count"], shop["avg_xact_time"]) == (37, 4, 400)
    assert shop["avg_recv"] == 11


def test_totals_and_averages_each_by_itself() -> None:
    (totals,) = merged(
        "STATS_TOTALS", [row("STATS_TOTALS", database="shop", xact_count=1)], DEPARTED=[[["shop", *[2] * 12]]]
    )
    assert (totals["xact_count"], totals["wait_time"]) == (3, 2)
    tables = [
        [row("STATS_AVERAGES", database="shop", query_count=1, query_time=10)],
        [row("STATS_AVERAGES", database="shop", query_count=1, query_time=30)],
    ]
    (averages,) = merged("STATS_AVERAGES", *tables)
    assert (averages["query_count"], averages["query_time"]) == (2, 20)


def test_totals_by_name() -> None:
    def table(count: int, time: int) -> list[Row]:
        values = {"total_xact_count": count, "avg_xact_count": count, "avg_xact_time": time}
        return [
            (f"{kind}_{name}", values.get(f"{kind}_{name}", 0)) for kind in ("total", "avg") for name in NAMES.split()
        ]

    rows = merged("TOTALS", table(1, 100), table(3, 500), DEPARTED=[[["shop", 0, 5, *[0] * 10]]])
    found = {each["name"]: each["value"] for each in rows}
    assert list(found) == [f"{kind}_{name}" for kind in ("total", "avg") for name in NAMES.split()]
    assert (found["total_xact_count"], found["avg_xact_count"], found["avg_xact_time"]) == (9, 4, 400)


NAMES: Final = (
    "server_assignment_count xact_count query_count client_bytes server_bytes xact_time query_time wait_time"
    " ps_client_parse_count ps_server_parse_count ps_bind_count client_login_count"
)


def test_lists_count_what_is_on_several_workers_once() -> None:
    config = SimpleNamespace(max_client_conn=100, peers={})
    one = [("databases", 2), ("users", 1), ("pools", 1), ("peers", 0), ("free_clients", 90), ("used_clients", 10)]
    two = [("databases", 2), ("users", 2), ("pools", 2), ("peers", 0), ("free_clients", 95), ("used_clients", 5)]
    shop = row("POOLS", database="shop", user="bob")
    also: dict[str, list[list[Row]]] = {
        "DATABASES": [[row("DATABASES", name="shop"), row("DATABASES", name="pgbouncer")]] * 2,
        "USERS": [[row("USERS", name="bob")], [row("USERS", name="bob"), row("USERS", name="eve")]],
        "POOLS": [[shop], [shop, row("POOLS", database="shop", user="eve")]],
    }
    found = {each["list"]: each["items"] for each in merged("LISTS", one, two, config=config, **also)}
    assert found == {"databases": 2, "users": 2, "pools": 2, "peers": 0, "free_clients": 85, "used_clients": 15}


def test_fleet_has_those_too_that_do_not_answer() -> None:
    told: list[Row] = [(0, 11, "active", 3, 2, 0, 5, 0, 100)]
    roster: list[list[Row]] = [[(0, 11, "silent", 4, 60), (1, None, "starting", 2, 0)]]
    first, second = merged("FLEET", told, ROSTER=roster)
    assert (first["state"], first["sessions"], first["restarts"], first["uptime"]) == ("active", 3, 4, 60)
    assert (second["worker"], second["state"], second["restarts"], second["sessions"]) == (1, "starting", 2, None)


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "fleet", "has_worker"),
    [
        ("SHOW CLIENTS", False, False),
        ("SHOW CLIENTS", True, True),
        ("SHOW POOLS", True, False),
        ("SHOW POOLS BY WORKER", True, True),
        ("show pools by worker", False, True),
        ("SHOW CONFIG", True, False),
        ("SHOW CONFIG BY WORKER", True, True),
        ("SHOW FLEET BY WORKER", True, False),
    ],
)
def test_the_worker_has_a_column_behind_all_others(sql: str, fleet: bool, has_worker: bool) -> None:
    (call,) = read(sql, fleet=fleet)
    assert isinstance(call, Look)
    assert call.columns[: len(call.show.columns)] == tuple(call.show.columns)
    assert (call.columns[-1] == WORKER) is has_worker or call.show.name == "FLEET"
    assert len(call.columns) == len(call.show.columns) + has_worker


async def test_a_gateway_by_itself_is_worker_0() -> None:
    room = Room()
    visitor = await room.enter()
    (pool,) = rows(await visitor.query("SHOW POOLS BY WORKER"))
    assert pool["worker"] == "0"
    (only,) = rows(await visitor.query("SHOW FLEET"))
    assert (only["worker"], only["state"], only["restarts"]) == ("0", "active", "0")
    await room.end()
