"""Which databases share what is known of servers, and what a reload makes of that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from helpers.cluster import PRIMARY, STANDBY, FakeCluster, where
from helpers.pools import NoteTaker
from helpers.waiting import until
from pgtrunk_gateway.config.entries import Place
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.pool.hosts import Hosts
from pgtrunk_gateway.pool.pools import Pools
from pgtrunk_gateway.pool.primary import HostList

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool

SHOP = DatabaseConfig(
    name="shop", host="a", others=(Place("b", 5432), Place("c", 5432)), target_session_attrs="read-write"
)
REPORTS = replace(SHOP, name="reports", target_session_attrs="standby")
PLAIN = DatabaseConfig(name="plain", host="a")


async def test_databases_that_want_the_same_share_it() -> None:
    hosts = Hosts(Config)
    assert hosts.of(SHOP) is hosts.of(replace(SHOP, name="other", dbname="shop"))
    assert hosts.of(SHOP) is not hosts.of(REPORTS)
    assert not isinstance(hosts.of(PLAIN), HostList)
    # With one server there is nothing to balance; but it may have to be something.
    assert hosts.of(PLAIN) is hosts.of(replace(PLAIN, load_balance_hosts="disable"))
    assert isinstance(hosts.of(replace(PLAIN, target_session_attrs="primary")), HostList)
    await hosts.close()


async def test_a_reload_takes_backends_to_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(monkeypatch, PRIMARY, STANDBY, STANDBY)
    gateway = Gateway(SHOP)
    pool = gateway.pool("shop")
    await ask(pool)
    assert where(pool) == "a"
    gateway.reload(replace(SHOP, target_session_attrs="standby", load_balance_hosts="disable"))
    assert not pool.backends
    await ask(pool)
    assert where(pool) == "b"
    # As it was: nothing happens.
    cluster.asked()
    gateway.reload(replace(SHOP, target_session_attrs="standby", load_balance_hosts="disable", pool_size=7))
    await ask(pool)
    assert (where(pool), cluster.asked()) == ("b", "")
    # What is known of lists that nobody wants any more is forgotten.
    assert len(gateway.pools.hosts) == 1
    await gateway.close()
    assert not gateway.pools.hosts


class Gateway:
    """Its pools."""

    def __init__(self, *databases: DatabaseConfig) -> None:
        self.config = Config(databases={each.name: each for each in databases}, server_login_retry=0.01)
        self.pools = Pools(self.config, None, derive=_derive, tune=lambda _: None)

    def pool(self, database: str) -> Pool:
        entry = self.config.database(database)
        assert entry is not None
        return self.pools.get(entry, "app")

    def reload(self, *databases: DatabaseConfig) -> None:
        self.config = replace(self.config, databases={each.name: each for each in databases})
        self.pools.reconfigure(self.config, None)

    async def close(self) -> None:
        await self.pools.close(ShuttingDown())


async def ask(pool: Pool) -> None:
    """A session has a backend for a moment."""
    taker = NoteTaker(pool)
    if not taker.take():
        taker.wait()
    await until(lambda: taker.backend)
    taker.give_back()


async def _derive(_: object) -> Any:
    raise AssertionError("no test of a pool logs in")
