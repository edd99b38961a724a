"""How many sessions there may be: in all, in a database, of a user; and that who leaves leaves once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pgtrunk_gateway.config.settings import Config, DatabaseConfig, UserConfig
from pgtrunk_gateway.errors import TooManyConnections
from pgtrunk_gateway.relay.tally import Place, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHOP = DatabaseConfig(name="shop")


def settled(tally: Tally, user: str = "app", *, database: DatabaseConfig = SHOP, **config: Any) -> Place:
    place = tally.enter(100)
    place.settle(Config(**config), database, user)
    return place


def test_max_client_conn_counts_who_logs_in_too() -> None:
    tally = Tally()
    first = tally.enter(2)
    settled(tally)
    with pytest.raises(TooManyConnections) as caught:
        tally.enter(2)
    assert caught.value.message == "no more connections allowed (max_client_conn)"
    assert (caught.value.sqlstate, caught.value.detail) == ("53300", "max_client_conn = 2.")
    first.leave()
    tally.enter(2)


@pytest.mark.parametrize("key", ["max_db_client_connections", "max_user_client_connections"])
def test_as_many_as_the_limit_and_not_one_more(key: str) -> None:
    tally = Tally()
    limits: dict[str, Any] = {key: 2}
    settled(tally, **limits)
    settled(tally, **limits)
    with pytest.raises(TooManyConnections) as caught:
        settled(tally, **limits)
    assert caught.value.message == f"client connections exceeded ({key})"
    assert (caught.value.sqlstate, caught.value.detail) == ("53300", f"{key} = 2.")
    assert (tally.databases, tally.users) == ({"shop": 2}, {"app": 2})


def test_the_limit_of_a_database_is_for_all_its_users_and_goes_before_the_global_one() -> None:
    tally, shop = Tally(), DatabaseConfig(name="shop", max_db_client_connections=1)
    settled(tally, "one", database=shop, max_db_client_connections=100)
    with pytest.raises(TooManyConnections):
        settled(tally, "two", database=shop, max_db_client_connections=100)
    settled(tally, "two", database=DatabaseConfig(name="other"), max_db_client_connections=100)


def test_the_limit_of_a_user_is_for_all_databases_and_goes_before_the_global_one() -> None:
    tally, users = Tally(), {"app": UserConfig(name="app", max_user_client_connections=1)}
    settled(tally, users=users, max_user_client_connections=100)
    with pytest.raises(TooManyConnections):
        settled(tally, database=DatabaseConfig(name="other"), users=users, max_user_client_connections=100)
    settled(tally, "other", users=users, max_user_client_connections=100)


def test_an_entry_can_switch_a_global_limit_off() -> None:
    tally = Tally()
    for _ in range(3):
        settled(tally, database=DatabaseConfig(name="shop", max_db_client_connections=0), max_db_client_connections=1)


def test_the_console_does_not_count_against_max_client_conn_and_administrators_against_nothing() -> None:
    tally, console = Tally(), DatabaseConfig(name="pgbouncer")
    config = Config(max_db_client_connections=1, max_user_client_connections=1)
    tally.visit().settle(config, console, "admin", exempt=True)
    tally.visit().settle(config, console, "admin", exempt=True)
    assert (tally.total, tally.databases, tally.users) == (0, {"pgbouncer": 2}, {"admin": 2})
    with pytest.raises(TooManyConnections):
        tally.visit().settle(config, console, "looker")


def test_who_leaves_leaves_once_and_nothing_of_it_remains() -> None:
    tally = Tally()
    place, unsettled = settled(tally), tally.enter(100)
    for _ in range(3):
        place.leave()
        unsettled.leave()
    assert (tally.total, tally.databases, tally.users) == (0, {}, {})


def test_who_is_refused_counts_as_before_until_it_leaves() -> None:
    tally = Tally()
    first = settled(tally, max_user_client_connections=1)
    second = tally.enter(100)
    with pytest.raises(TooManyConnections):
        second.settle(Config(max_user_client_connections=1), SHOP, "app")
    assert (tally.total, tally.users) == (2, {"app": 1})
    second.leave()
    first.leave()
    assert (tally.total, tally.databases, tally.users) == (0, {}, {})


class Gate:
    """A turnstile that says what the test wants, and notes what it hears."""

    def __init__(self, *, admits: bool = True, reached: int | None = None) -> None:
        self.admits = admits
        self.reached = reached
        self.said: list[object] = []

    async def enter(self, limit: int) -> bool:
        self.said.append(("enter", limit))
        return self.admits

    def left(self) -> None:
        self.said.append("left")

    def empty(self) -> None: ...

    async def settle(self, limits: Sequence[tuple[tuple[str, ...], int]]) -> int | None:
        self.said.append(("settle", *limits))
        return self.reached

    def unsettle(self, names: Iterable[tuple[str, ...]]) -> None:
        self.said.append(("unsettle", *names))

    async def close(self) -> None: ...


def gated(gate: Gate) -> Tally:
    tally = Tally()
    tally.turnstile = gate
    return tally


async def test_without_a_fleet_nobody_else_is_asked() -> None:
    tally = Tally()
    place = await tally.admit(1)
    await place.prove(Config(), SHOP, "app")
    with pytest.raises(TooManyConnections):
        await tally.admit(1)
    assert (tally.total, tally.databases, tally.users) == (1, {"shop": 1}, {"app": 1})


async def test_in_a_fleet_its_turnstile_says_whether_there_may_be_one_more() -> None:
    gate = Gate()
    tally = gated(gate)
    place = await tally.admit(5)
    config = Config(max_db_client_connections=3, max_user_client_connections=2)
    await place.prove(config, SHOP, "app")
    assert (tally.total, tally.databases, tally.users) == (1, {"shop": 1}, {"app": 1})
    for _ in range(2):
        place.leave()
    names = ("database", "shop"), ("user", "app")
    assert gate.said == [
        ("enter", 5), ("settle", (names[0], 3), (names[1], 2)), "left", ("unsettle", *names),
    ]  # fmt: skip
    assert (tally.total, tally.databases, tally.users) == (0, {}, {})


async def test_what_the_turnstile_refuses_counts_as_before() -> None:
    gate = Gate(admits=False)
    tally = gated(gate)
    with pytest.raises(TooManyConnections, match=r"no more connections allowed \(max_client_conn\)"):
        await tally.admit(5)
    gate.admits, gate.reached = True, 1
    place = await tally.admit(5)
    with pytest.raises(TooManyConnections, match="max_user_client_connections"):
        await place.prove(Config(max_user_client_connections=7), SHOP, "app")
    assert (tally.total, tally.users) == (1, {})
    place.leave()
    assert gate.said[-1] == "left"


async def test_a_limit_that_has_become_smaller_meanwhile_holds_here_too() -> None:
    gate = Gate()
    tally = gated(gate)
    await tally.admit(5)
    with pytest.raises(TooManyConnections):
        await tally.admit(1)
    assert gate.said == [("enter", 5), ("enter", 1), "left"]


async def test_administrators_of_the_console_count_in_a_fleet_too_and_have_no_limit() -> None:
    gate = Gate()
    tally = gated(gate)
    place = tally.visit()
    await place.prove(Config(max_user_client_connections=1), DatabaseConfig(name="pgbouncer"), "boss", exempt=True)
    place.leave()
    names = ("database", "pgbouncer"), ("user", "boss")
    assert gate.said == [("settle", (names[0], 0), (names[1], 0)), ("unsettle", *names)]
