"""Who overrides whom: user > database > global."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.config import Config, DatabaseConfig, PoolKey, UserConfig

UNSET = None


def config(user: UserConfig | None = None, **main: float) -> Config:
    return Config(users={} if user is None else {user.name: user}, **main)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "database", "expected"),
    [(UNSET, UNSET, 20), (UNSET, 5, 5), (3, UNSET, 3), (3, 5, 3), (0, 5, 0), (UNSET, 0, 0)],
)
def test_pool_size(user: int | None, database: int | None, expected: int) -> None:
    settings = config(UserConfig(name="app", pool_size=user), default_pool_size=20)
    assert settings.resolve_pool_size(DatabaseConfig(name="shop", pool_size=database), "app") == expected
    assert settings.resolve_pool_size(DatabaseConfig(name="shop"), "other") == 20


@pytest.mark.parametrize(
    ("database", "size", "expected"), [(UNSET, 20, 2), (4, 20, 4), (0, 20, 0), (9, 5, 5), (9, 0, 9), (UNSET, 1, 1)]
)
def test_min_pool_size_is_never_above_the_size(database: int | None, size: int, expected: int) -> None:
    settings = config(min_pool_size=2)
    entry = DatabaseConfig(name="shop", min_pool_size=database, pool_size=size)
    assert settings.resolve_min_pool_size(entry, "app") == expected


@pytest.mark.parametrize(("database", "expected"), [(UNSET, 3600.0), (60.0, 60.0)])
def test_server_lifetime(database: float | None, expected: float) -> None:
    entry = DatabaseConfig(name="shop", server_lifetime=database)
    assert config().resolve_server_lifetime(entry) == expected


@pytest.mark.parametrize(
    ("user", "database", "expected"),
    [(UNSET, UNSET, 120.0), (UNSET, 9.0, 9.0), (4.0, UNSET, 4.0), (4.0, 9.0, 4.0), (0.0, 9.0, 0.0), (UNSET, 0.0, 0.0)],
)
def test_query_wait_timeout(user: float | None, database: float | None, expected: float) -> None:
    settings = config(UserConfig(name="app", query_wait_timeout=user))
    entry = DatabaseConfig(name="shop", query_wait_timeout=database)
    assert settings.resolve_query_wait_timeout(entry, "app") == expected


@pytest.mark.parametrize(("user", "expected"), [(UNSET, 7.0), (2.0, 2.0)])
def test_idle_transaction_timeout(user: float | None, expected: float) -> None:
    settings = config(UserConfig(name="app", idle_transaction_timeout=user), idle_transaction_timeout=7.0)
    assert settings.resolve_idle_transaction_timeout("app") == expected


def test_a_pool_is_for_one_entry_and_one_server_user() -> None:
    free, forced = DatabaseConfig(name="shop"), DatabaseConfig(name="shop", user="owner")
    assert Config().pool_key(free, "app") == PoolKey("shop", "app")
    assert Config().pool_key(forced, "app") == Config().pool_key(forced, "other") == PoolKey("shop", "owner")
    assert str(Config().pool_key(forced, "app")) == "shop/owner"


def test_any_database_stands_for_those_without_an_entry() -> None:
    shop = DatabaseConfig(name="shop", dbname="shop_2", host="a")
    settings = Config(databases={"shop": shop}, any_database=DatabaseConfig(name="*", host="b"))
    assert settings.database("shop") is shop
    other = settings.database("other")
    assert other is not None
    assert (other.name, other.server_dbname, other.host) == ("other", "other", "b")
    assert Config(databases={"shop": shop}).database("other") is None


def test_any_database_may_lead_to_one_database() -> None:
    other = Config(any_database=DatabaseConfig(name="*", dbname="all")).database("other")
    assert other is not None
    assert (other.name, other.server_dbname) == ("other", "all")


def test_passwords_do_not_show() -> None:
    assert "secret" not in repr(Config(databases={"shop": DatabaseConfig(name="shop", password="secret")}))
