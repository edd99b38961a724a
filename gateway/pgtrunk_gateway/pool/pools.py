"""All pools of a gateway, made when a session first needs one, with what they share: servers, limits, and the verbs.

A pool without sessions and backends is forgotten after pool_idle_timeout; a database made from "*", and its pools,
after autodb_idle_timeout. Timers are set when the last one has left, not polled for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.auth import Plain, Secret, Userlist
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.pool.accounts import Account
from pgtrunk_gateway.pool.databases import Databases
from pgtrunk_gateway.pool.hosts import Hosts, wish_of
from pgtrunk_gateway.pool.limits import PoolLimits
from pgtrunk_gateway.pool.pool import Pool
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig, PoolKey
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.allowance import Allowance, Purse
    from pgtrunk_gateway.pool.connect import Deriver, SocketTuner
    from pgtrunk_gateway.tls import ServerTls

__all__ = ["Pools"]

log = logging.getLogger(__name__)


_SETTINGS: Final = ("application_name", "client_encoding", "datestyle", "timezone")
"""Fields of an entry that are settings of its backends."""


class Pools:
    """The pools by (database, server user). ``database`` in the verbs is a name as clients use it; None: all."""

    def __init__(
        self,
        config: Config,
        userlist: Userlist | None,
        *,
        derive: Deriver,
        tune: SocketTuner,
        tls: Callable[[DatabaseConfig], ServerTls | None] = lambda _: None,
        purse: Purse | None = None,
    ) -> None:
        self._config = config
        self._userlist = userlist
        self._derive = derive
        self._tune = tune
        self.purse = purse
        """What the fleet has it know of limits that hold for all workers; None: there is no fleet."""
        self._tls = tls
        """How the server of a database is spoken to now; a reload may change that."""
        self._pools: dict[PoolKey, Pool] = {}
        self.databases = Databases(config)
        self.paused = False
        """Whether all of them are, by PAUSE without a name."""
        self.hosts = Hosts(lambda: self._config)
        self.database_accounts: dict[str, Account] = {}
        """Backends by database."""
        self.user_accounts: dict[str, Account] = {}
        """Backends by the user that they log in as."""
        self._farewells: dict[PoolKey, asyncio.TimerHandle] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def __len__(self) -> int:
        return len(self._pools)

    def get(self, database: DatabaseConfig, login_user: str) -> Pool:
        """The pool that serves ``login_user`` in ``database``."""
        key = self._config.pool_key(database, login_user)
        pool = self._pools.get(key)
        return self._make(key, database) if pool is None else pool

    def start(self) -> None:
        """Opens what min_pool_size asks for in databases with a forced user; others have no pool before a client."""
        for database in self._config.databases.values():
            if database.user is not None and self._config.resolve_min_pool_size(database, database.user):
                self.get(database, database.user).maintain()

    async def close(self, error: GatewayError) -> None:
        """Ends all backends; sessions that wait get ``error``."""
        for farewell in self._farewells.values():
            farewell.cancel()
        await asyncio.gather(*(pool.close(error) for pool in self._pools.values()))
        if self.purse is not None:
            await self.purse.close()
        await self.hosts.close()

    # -- the verbs -----------------------------------------------------------------------------------------------------

    def of(self, database: str | None = None) -> list[Pool]:
        """The pools of a database."""
        return [pool for key, pool in self._pools.items() if database in (None, key.database)]

    def pause(self, database: str | None = None) -> None:
        """No session gets a backend until :meth:`resume`; see :meth:`Pool.pause`. Pools to come are paused too."""
        if database is None:
            self.paused = True
        elif (state := self.databases.find(self._config, database)) is not None:
            state.paused = True
        for pool in self.of(database):
            pool.pause()

    def resume(self, database: str | None = None) -> None:
        """The end of :meth:`pause`. What was paused by its name is resumed by its name only, as in PgBouncer."""
        if database is None:
            self.paused = False
        elif (state := self.databases.get(database)) is not None:
            state.paused = False
        for pool in self.of(database):
            if not self._is_paused(pool.key.database):
                pool.resume()
                self._unused(pool)

    async def wait_idle(self, database: str | None = None) -> None:
        """Returns when no backend is leased. The caller sets the deadline."""
        await asyncio.gather(*(pool.wait_idle() for pool in self.of(database)))

    def reconnect(self, database: str | None = None) -> None:
        """Closes all backends, leased ones at the end of their lease; see :meth:`Pool.reconnect`."""
        for pool in self.of(database):
            pool.reconnect(fast=self._config.server_fast_close)

    async def wait_closed(self, database: str | None = None) -> None:
        """Returns when all are closed that :meth:`reconnect` or a reload has retired. The caller sets the deadline."""
        await asyncio.gather(*(pool.wait_closed() for pool in self.of(database)))

    def kill(self, error: GatewayError, database: str | None = None) -> None:
        """Closes all backends at once, refuses those who wait with ``error``, and pauses."""
        self.pause(database)
        for pool in self.of(database):
            pool.kill(error)

    # -- reload --------------------------------------------------------------------------------------------------------

    def reconfigure(self, config: Config, userlist: Userlist | None) -> None:
        """Other settings from now on; pools whose database is gone end (their sessions are the caller's)."""
        self._config, self._userlist = config, userlist
        self.databases.reconfigure(config)
        for key, pool in list(self._pools.items()):
            database = config.database(key.database)
            if database is None:
                self._remove(pool, "database removed")
            else:
                pool.reconfigure(
                    self.target(database, key.user),
                    self._limits(database, key.user),
                    host=self.hosts.of(database),
                    kept=database.user == key.user,
                )
                self._allowance(key, database)
                self._unused(pool)
        if self.purse is not None:
            self.purse.reconfigured()
        for name, account in self.database_accounts.items():
            if (database := config.database(name)) is not None:
                account.change(config.resolve_max_db_connections(database))
        for user, account in self.user_accounts.items():
            account.change(config.resolve_max_user_connections(user))
        self.hosts.tidy()
        self.start()

    def _make(self, key: PoolKey, database: DatabaseConfig) -> Pool:
        self.databases.find(self._config, key.database)
        pool = self._pools[key] = Pool(
            key,
            self.target(database, key.user),
            self._limits(database, key.user),
            derive=self._derive,
            tune=self._tune,
            host=self.hosts.of(database),
            accounts=(self._database_account(database), self._user_account(key.user)),
            allowance=self._allowance(key, database),
            kept=database.user == key.user,
        )
        pool.on_unused = partial(self._unused, pool)
        if self._is_paused(key.database):
            pool.pause()
        return pool

    def _is_paused(self, database: str) -> bool:
        state = self.databases.get(database)
        return self.paused or (state is not None and state.paused)

    # -- what nobody uses ----------------------------------------------------------------------------------------------

    def _unused(self, pool: Pool) -> None:
        if not pool.unused:
            return
        key = pool.key
        state = self.databases.get(key.database)
        timeouts = [self._config.pool_idle_timeout]
        if state is not None and state.auto:
            timeouts.append(self._config.autodb_idle_timeout)
        timeout = min((timeout for timeout in timeouts if timeout), default=0.0)
        if timeout and self._pools.get(key) is pool and not (pool.kept and pool.limits.minimum):
            if (before := self._farewells.pop(key, None)) is not None:
                before.cancel()
            self._farewells[key] = asyncio.get_running_loop().call_later(timeout, self._forget, pool)

    def _forget(self, pool: Pool) -> None:
        self._farewells.pop(pool.key, None)
        if not pool.unused or pool.paused:
            return
        log.info("%s: cleaning up idle pool because: pool idle timeout", pool.key)
        self._remove(pool, "pool idle timeout")
        state = self.databases.get(pool.key.database)
        if state is not None and state.auto and not state.disabled and not self.of(pool.key.database):
            del self.databases[pool.key.database]

    def _remove(self, pool: Pool, reason: str) -> None:
        if self._pools.get(pool.key) is not pool:
            return
        del self._pools[pool.key]
        if (farewell := self._farewells.pop(pool.key, None)) is not None:
            # Its database may come back, and have another pool by then.
            farewell.cancel()
        pool.shut(ShuttingDown(reason), reason, gently=True)
        for accounts, name in ((self.database_accounts, pool.key.database), (self.user_accounts, pool.key.user)):
            if not accounts[name].members:
                del accounts[name]
        self.hosts.tidy()

    # -- from the configuration ----------------------------------------------------------------------------------------

    def _allowance(self, key: PoolKey, database: DatabaseConfig) -> Allowance | None:
        """What its pool has of limits that hold for all workers, with what they are now."""
        if self.purse is None:
            return None
        config = self._config
        return self.purse.allowance(
            (key.database, key.user),
            size=config.resolve_pool_size(database, key.user),
            reserve=config.resolve_reserve_pool_size(database, key.user) if config.reserve_pool_timeout else 0,
            minimum=config.resolve_min_pool_size(database, key.user),
            in_database=config.resolve_max_db_connections(database),
            of_user=config.resolve_max_user_connections(key.user),
        )

    def _database_account(self, database: DatabaseConfig) -> Account:
        account = self.database_accounts.get(database.name)
        if account is None:
            limit = self._config.resolve_max_db_connections(database)
            account = self.database_accounts[database.name] = Account("max_db_connections", limit)
        return account

    def _user_account(self, user: str) -> Account:
        account = self.user_accounts.get(user)
        if account is None:
            limit = self._config.resolve_max_user_connections(user)
            account = self.user_accounts[user] = Account("max_user_connections", limit)
        return account

    def target(self, database: DatabaseConfig, user: str) -> Target:
        """Where ``database`` is, and what the configuration has to log in there as ``user``."""
        secret: Secret | None = None
        if database.password is not None and database.user == user:
            secret = Plain(database.password)
        elif self._userlist is not None:
            secret = self._userlist.get(user)
        settings = [(name, getattr(database, name)) for name in _SETTINGS]
        return Target(
            host=database.host,
            port=database.port,
            dbname=database.server_dbname,
            user=user,
            wish=None if (wish := wish_of(database)).is_simple else wish,
            secret=secret,
            tls=self._tls(database),
            settings=tuple((name, value) for name, value in settings if value),
        )

    def _limits(self, database: DatabaseConfig, user: str) -> PoolLimits:
        config = self._config
        check = config.server_check_query or None
        return PoolLimits(
            size=config.resolve_pool_size(database, user),
            minimum=config.resolve_min_pool_size(database, user),
            reserve=config.resolve_reserve_pool_size(database, user),
            reserve_timeout=config.reserve_pool_timeout,
            lifetime=config.resolve_server_lifetime(database),
            idle_timeout=config.server_idle_timeout,
            connect_timeout=config.server_connect_timeout,
            retry=config.server_login_retry,
            prepared=config.max_prepared_statements,
            round_robin=config.server_round_robin,
            connect_query=database.connect_query or None,
            check_query="" if check == "<empty>" else check,
            check_delay=config.server_check_delay,
            notify=config.query_wait_notify,
        )
