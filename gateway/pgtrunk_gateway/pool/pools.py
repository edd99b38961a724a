"""All pools of a gateway, made when a session first needs one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pgtrunk_gateway.auth import Plain, Userlist
from pgtrunk_gateway.pool.limits import PoolLimits
from pgtrunk_gateway.pool.pool import Pool
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig, PoolKey
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.connect import Deriver, SocketTuner

__all__ = ["Pools"]


class Pools:
    """The pools by (database, server user)."""

    def __init__(self, config: Config, userlist: Userlist | None, *, derive: Deriver, tune: SocketTuner) -> None:
        self._config = config
        self._userlist = userlist
        self._derive = derive
        self._tune = tune
        self._pools: dict[PoolKey, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def __len__(self) -> int:
        return len(self._pools)

    def get(self, database: DatabaseConfig, login_user: str) -> Pool:
        """The pool that serves ``login_user`` in ``database``."""
        key = self._config.pool_key(database, login_user)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(
                key,
                self._target(database, key.user),
                self._limits(database, key.user),
                derive=self._derive,
                tune=self._tune,
            )
        return pool

    def start(self) -> None:
        """Opens what min_pool_size asks for in databases with a forced user; others have no pool before a client."""
        for database in self._config.databases.values():
            if database.user is not None and self._config.resolve_min_pool_size(database, database.user):
                self.get(database, database.user).maintain()

    async def close(self, error: GatewayError) -> None:
        """Ends all backends; sessions that wait get ``error``."""
        await asyncio.gather(*(pool.close(error) for pool in self._pools.values()))

    def _target(self, database: DatabaseConfig, user: str) -> Target:
        password = database.password if database.user is not None else None
        if password is None and self._userlist is not None:
            secret = self._userlist.get(user)
            password = secret.password if isinstance(secret, Plain) else None
        return Target(
            host=database.host, port=database.port, dbname=database.server_dbname, user=user, password=password
        )

    def _limits(self, database: DatabaseConfig, user: str) -> PoolLimits:
        config = self._config
        return PoolLimits(
            size=config.resolve_pool_size(database, user),
            minimum=config.resolve_min_pool_size(database, user),
            lifetime=config.resolve_server_lifetime(database),
            idle_timeout=config.server_idle_timeout,
            connect_timeout=config.server_connect_timeout,
            retry=config.server_login_retry,
            prepared=config.max_prepared_statements,
        )
