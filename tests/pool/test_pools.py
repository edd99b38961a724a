"""All pools of a gateway: what they share, what a reload does, and when one is forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from helpers.pools import NoteTaker, Server
from helpers.waiting import until
from pgtrunk_gateway.auth import Plain, Userlist
from pgtrunk_gateway.config.settings import Config, DatabaseConfig, UserConfig
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.pool.databases import DatabaseState
from pgtrunk_gateway.pool.pools import Pools

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool

USERS = Userlist({"app": Plain("secret")})
SHOP = DatabaseConfig(name="shop", host="127.0.0.1", port=5432)
OTHER = DatabaseConfig(name="other", host="127.0.0.1", port=5432)
ANY = DatabaseConfig(name="*", host="127.0.0.1", port=5432)


class Gateway:
    """Its pools, and what they connect to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *databases: DatabaseConfig, **config: Any) -> None:
        self.server = Server(monkeypatch)
        self.config = Config(databases={each.name: each for each in databases or (SHOP, OTHER)}, **config)
        self.pools = Pools(self.config, USERS, derive=_derive, tune=lambda _: None)

    def pool(self, database: str = "shop", user: str = "app") -> Pool:
        entry = self.config.database(database)
        assert entry is not None
        return self.pools.get(entry, user)

    async def open(self, *pools: Pool) -> list[NoteTaker]:
        """A session with a backend in each of the pools."""
        takers = [NoteTaker(pool) for pool in pools]
        for taker in takers:
            if not taker.take():
                taker.wait()
        await self.server.answer()
        assert all(taker.backend is not None for taker in takers)
        return takers

    def reload(self, *databases: DatabaseConfig, **changes: Any) -> None:
        if databases:
            changes["databases"] = {each.name: each for each in databases}
        self.config = replace(self.config, **changes)
        self.pools.reconfigure(self.config, USERS)

    async def close(self) -> None:
        await self.pools.close(ShuttingDown())
        await self.server.pool.close(ShuttingDown())


async def _derive(_: object) -> Any:
    raise AssertionError("no test of a pool logs in")


# -- what they share ---------------------------------------------------------------------------------------------------


async def test_pools_of_one_server_share_what_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    far = DatabaseConfig(name="far", host="192.0.2.1", port=5432)
    gateway = Gateway(monkeypatch, SHOP, OTHER, far)
    shop, other, elsewhere = (gateway.pool(name) for name in ("shop", "other", "far"))
    assert shop.host is other.host
    assert shop.host is not elsewhere.host
    await gateway.close()


async def test_limits_are_per_database_and_per_user_with_their_own_values_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = replace(SHOP, max_db_connections=3)
    users = {"app": UserConfig(name="app", max_user_connections=2)}
    gateway = Gateway(monkeypatch, shop, OTHER, users=users, max_db_connections=7, max_user_connections=8)
    for database, user in (("shop", "app"), ("shop", "two"), ("other", "app")):
        gateway.pool(database, user)
    assert {name: account.limit for name, account in gateway.pools.database_accounts.items()} == {
        "shop": 3,
        "other": 7,
    }
    assert {name: account.limit for name, account in gateway.pools.user_accounts.items()} == {"app": 2, "two": 8}
    await gateway.close()


async def test_the_settings_of_a_database_are_in_the_startup_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(SHOP, application_name="shop", client_encoding="LATIN1", datestyle="German", timezone="UTC")
    gateway = Gateway(monkeypatch, entry)
    assert dict(gateway.pool().target.settings) == {
        "application_name": "shop",
        "client_encoding": "LATIN1",
        "datestyle": "German",
        "timezone": "UTC",
    }
    await gateway.close()


@pytest.mark.parametrize(
    ("configured", "query"),
    [("<empty>", ""), ("", None), (None, None), ("select 1", "select 1")],
)
async def test_the_check_query(monkeypatch: pytest.MonkeyPatch, configured: str | None, query: str | None) -> None:
    gateway = Gateway(monkeypatch, server_check_query=configured)
    assert gateway.pool().limits.check_query == query
    await gateway.close()


# -- the verbs ---------------------------------------------------------------------------------------------------------


async def test_pause_and_resume_of_one_database(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    shop, other = gateway.pool(), gateway.pool("other")
    gateway.pools.pause("shop")
    assert (shop.paused, gateway.pool(user="late").paused, other.paused) == (True, True, False)
    assert gateway.pools.databases["shop"] == DatabaseState(paused=True)
    gateway.pools.resume("shop")
    assert not any(pool.paused for pool in gateway.pools)
    await gateway.close()


async def test_pause_and_resume_of_all_leave_alone_what_was_paused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    shop, other = gateway.pool(), gateway.pool("other")
    gateway.pools.pause("shop")
    gateway.pools.pause()
    assert (shop.paused, other.paused, gateway.pool("other", "late").paused) == (True, True, True)
    gateway.pools.resume()
    assert (shop.paused, other.paused) == (True, False)
    await gateway.close()


async def test_pause_is_complete_when_the_last_lease_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    one, two = await gateway.open(gateway.pool(), gateway.pool("other"))
    gateway.pools.pause()
    idle = asyncio.ensure_future(gateway.pools.wait_idle())
    one.give_back()
    await gateway.server.settle()
    assert not idle.done()
    two.give_back()
    await asyncio.wait_for(idle, 10)
    await gateway.close()


async def test_kill_pauses_and_ends_all_of_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    one, two = await gateway.open(gateway.pool(), gateway.pool("other"))
    gateway.pools.kill(ShuttingDown("database removed"), "shop")
    assert one.lost is not None
    assert two.lost is None
    assert gateway.pools.databases["shop"].paused
    await gateway.close()


async def test_reconnect_of_one_database(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    one, two = await gateway.open(gateway.pool(), gateway.pool("other"))
    gateway.pools.reconnect("shop")
    await gateway.pools.wait_closed("other")
    closed = asyncio.ensure_future(gateway.pools.wait_closed("shop"))
    await gateway.server.settle()
    assert not closed.done()
    one.give_back()
    two.give_back()
    await asyncio.wait_for(closed, 10)
    assert (gateway.pool().count, gateway.pool("other").count) == (0, 1)
    await gateway.close()


# -- a reload ----------------------------------------------------------------------------------------------------------


async def test_a_reload_without_changes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    (holder,) = await gateway.open(gateway.pool())
    gateway.reload()
    holder.give_back()
    assert len(gateway.pool().idle) == 1
    await gateway.close()


async def test_a_pool_size_that_is_set_holds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, default_pool_size=1)
    await gateway.open(gateway.pool())
    waiter = NoteTaker(gateway.pool())
    waiter.wait()
    gateway.reload(default_pool_size=2)
    await gateway.server.answer()
    assert waiter.backend is not None
    await gateway.close()


async def test_a_database_that_moves_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    pool = gateway.pool()
    (holder,) = await gateway.open(pool)
    before = pool.host
    gateway.reload(replace(SHOP, port=5433), OTHER)
    assert gateway.pool() is pool
    assert pool.host is not before
    holder.give_back()
    assert not pool.backends
    await gateway.open(pool)
    assert gateway.server.targets[-1].port == 5433
    await gateway.close()


async def test_a_database_that_is_removed_takes_its_pools_along(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gateway = Gateway(monkeypatch)
    pool = gateway.pool()
    (holder,) = await gateway.open(pool)
    waiter = NoteTaker(pool)
    waiter.wait()
    gateway.reload(OTHER)
    assert holder.lost is not None
    assert waiter.refused is not None
    assert waiter.refused.message == "database removed"
    assert "closing because: database removed" in caplog.text
    assert (list(gateway.pools), list(gateway.pools.databases)) == ([], ["other"])
    assert (gateway.pools.database_accounts, gateway.pools.hosts) == ({}, {})
    await gateway.server.settle()
    await gateway.close()


async def test_limits_over_pools_change_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, max_db_connections=1)
    await gateway.open(gateway.pool())
    waiter = NoteTaker(gateway.pool(user="two"))
    waiter.wait()
    await gateway.server.settle()
    assert not gateway.server.logins
    gateway.reload(max_db_connections=2)
    await gateway.server.answer()
    assert waiter.backend is not None
    await gateway.close()


async def test_a_minimum_that_is_new_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    forced = replace(SHOP, user="app")
    gateway = Gateway(monkeypatch, forced)
    gateway.pools.start()
    assert len(gateway.pools) == 0
    gateway.reload(replace(forced, min_pool_size=2))
    await gateway.server.answer()
    assert len(gateway.pool().idle) == 2
    await gateway.close()


async def test_what_was_paused_or_disabled_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    gateway.pools.pause("shop")
    gateway.pools.databases["other"].disabled = True
    gateway.reload(default_pool_size=3)
    assert gateway.pools.databases == {"shop": DatabaseState(paused=True), "other": DatabaseState(disabled=True)}
    await gateway.close()


# -- what nobody uses --------------------------------------------------------------------------------------------------


async def test_a_minimum_without_a_forced_user_is_for_pools_with_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, min_pool_size=2)
    pool = gateway.pool()
    pool.maintain()
    await gateway.server.settle()
    assert not gateway.server.logins
    pool.enter()
    await gateway.server.answer()
    assert len(pool.idle) == 2
    pool.exit()
    assert len(pool.idle) == 2
    await gateway.close()


async def test_a_pool_is_forgotten_when_nobody_has_used_it_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, pool_idle_timeout=0.02, server_idle_timeout=0.02)
    pool = gateway.pool()
    pool.enter()
    (holder,) = await gateway.open(pool)
    holder.give_back()
    await until(lambda: not pool.backends)
    await asyncio.sleep(0.05)
    assert list(gateway.pools) == [pool]
    pool.exit()
    await until(lambda: not len(gateway.pools))
    assert not gateway.pools.hosts
    assert "shop" in gateway.pools.databases
    await gateway.close()


async def test_a_pool_that_is_used_again_in_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, pool_idle_timeout=0.03)
    pool = gateway.pool()
    pool.enter()
    pool.exit()
    pool.enter()
    await asyncio.sleep(0.1)
    assert gateway.pool() is pool
    pool.exit()
    await until(lambda: not len(gateway.pools))
    await gateway.close()


async def test_a_database_that_comes_back_does_not_lose_its_new_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the timer of the pool that went with it before."""
    gateway = Gateway(monkeypatch, pool_idle_timeout=0.03)
    before = gateway.pool()
    before.enter()
    before.exit()
    gateway.reload(OTHER)
    gateway.reload(SHOP, OTHER)
    pool = gateway.pool()
    assert pool is not before
    pool.enter()
    await asyncio.sleep(0.1)
    assert gateway.pool() is pool
    pool.exit()
    await until(lambda: not len(gateway.pools))
    await gateway.close()


async def test_a_pool_that_keeps_a_minimum_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, replace(SHOP, user="app", min_pool_size=1), pool_idle_timeout=0.01)
    pool = gateway.pool()
    pool.enter()
    pool.exit()
    await asyncio.sleep(0.05)
    assert gateway.pool() is pool
    await gateway.close()


async def test_without_a_timeout_a_pool_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, pool_idle_timeout=0.0)
    pool = gateway.pool()
    pool.enter()
    pool.exit()
    await gateway.server.settle()
    assert gateway.pool() is pool
    await gateway.close()


async def test_a_database_made_for_a_client_is_forgotten_with_its_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, SHOP, any_database=ANY, autodb_idle_timeout=0.02)
    auto, named = gateway.pool("any"), gateway.pool()
    assert gateway.pools.databases["any"].auto
    for pool in (auto, named):
        pool.enter()
        pool.exit()
    await until(lambda: "any" not in gateway.pools.databases)
    assert list(gateway.pools) == [named]
    await gateway.close()


async def test_a_paused_database_made_for_a_client_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, SHOP, any_database=ANY, autodb_idle_timeout=0.02)
    auto = gateway.pool("any")
    gateway.pools.pause("any")
    auto.enter()
    auto.exit()
    await asyncio.sleep(0.05)
    assert gateway.pools.databases["any"].paused
    await gateway.close()


async def test_a_paused_database_is_forgotten_after_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, SHOP, any_database=ANY, autodb_idle_timeout=0.02)
    gateway.pool("any")
    gateway.pools.pause("any")
    await asyncio.sleep(0.05)
    gateway.pools.resume("any")
    await until(lambda: "any" not in gateway.pools.databases)
    await gateway.close()


async def test_a_timeout_that_is_set_later_holds_for_pools_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch)
    gateway.pool()
    gateway.reload(pool_idle_timeout=0.02)
    await until(lambda: not len(gateway.pools))
    await gateway.close()
