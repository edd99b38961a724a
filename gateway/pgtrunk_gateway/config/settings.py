"""What the gateway was told, as frozen values.

The methods of `Config` are the only place that knows who overrides whom (user > database > global). It knows nothing of
files and grammar.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from .entries import DatabaseConfig, PeerConfig, PoolKey, PoolMode, SslMode, UserConfig
from .main_section import (
    AuthType,
    MainSection,
    QuicEarlyData,
    QuicPathMtu,
    QuicRedundancy,
    QuicRetry,
    SessionState,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AuthType",
    "Config",
    "DatabaseConfig",
    "PeerConfig",
    "PoolKey",
    "PoolMode",
    "QuicEarlyData",
    "QuicPathMtu",
    "QuicRedundancy",
    "QuicRetry",
    "SessionState",
    "SslMode",
    "UserConfig",
]

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(MainSection):
    """The main section, and the entries of the others."""

    databases: Mapping[str, DatabaseConfig] = field(default_factory=dict)
    """[databases] by name, without "*"."""
    any_database: DatabaseConfig | None = None
    """The entry "*"."""
    users: Mapping[str, UserConfig] = field(default_factory=dict)
    """[users] by name."""
    peers: Mapping[int, PeerConfig] = field(default_factory=dict)
    """[peers] by id."""

    def database(self, name: str) -> DatabaseConfig | None:
        """The entry that serves clients asking for `name`; `None`: no such database.

        Made from "*" where there is no entry of that name.
        """
        entry = self.databases.get(name)
        if entry is None and self.any_database is not None:
            return replace(self.any_database, name=name)
        return entry

    def user_entry(self, name: str) -> UserConfig:
        """The entry of [users], or one that sets nothing."""
        return self.users.get(name) or UserConfig(name=name)

    def pool_key(self, database: DatabaseConfig, login_user: str) -> PoolKey:
        """The pool that serves `login_user` in `database`: a forced user makes it one for all."""
        return PoolKey(database.name, login_user if database.user is None else database.user)

    def resolve_pool_size(self, database: DatabaseConfig, server_user: str) -> int:
        """Backends of the pool (database, server user): user > database > global; 0 = no limit."""
        return _first(self.user_entry(server_user).pool_size, database.pool_size, self.default_pool_size)

    def resolve_min_pool_size(self, database: DatabaseConfig, server_user: str) -> int:
        """Backends to keep open in that pool: database > global, never above its size."""
        minimum = _first(database.min_pool_size, self.min_pool_size)
        size = self.resolve_pool_size(database, server_user)
        return min(minimum, size) if size else minimum

    def resolve_server_lifetime(self, database: DatabaseConfig) -> float:
        """Seconds after which an idle backend is closed: database > global."""
        return _first(database.server_lifetime, self.server_lifetime)

    def resolve_query_wait_timeout(self, database: DatabaseConfig, login_user: str) -> float:
        """Seconds a session may wait for a backend: user > database > global; 0 = no limit."""
        return _first(
            self.user_entry(login_user).query_wait_timeout, database.query_wait_timeout, self.query_wait_timeout
        )

    def resolve_idle_transaction_timeout(self, login_user: str) -> float:
        """Seconds a session may be idle in a transaction: user > global; 0 = no limit."""
        return _first(self.user_entry(login_user).idle_transaction_timeout, self.idle_transaction_timeout)

    def resolve_transaction_timeout(self, login_user: str) -> float:
        """Seconds a transaction may take: user > global; 0 = no limit."""
        return _first(self.user_entry(login_user).transaction_timeout, self.transaction_timeout)

    def resolve_query_timeout(self, login_user: str) -> float:
        """Seconds a query may take: user > global; 0 = no limit."""
        return _first(self.user_entry(login_user).query_timeout, self.query_timeout)

    def resolve_client_idle_timeout(self, login_user: str) -> float:
        """Seconds a session may be idle outside a transaction: user > global; 0 = no limit."""
        return _first(self.user_entry(login_user).client_idle_timeout, self.client_idle_timeout)

    def resolve_pool_mode(self, database: DatabaseConfig, login_user: str) -> PoolMode:
        """When a backend goes back to its pool: user > database > global."""
        return self.user_entry(login_user).pool_mode or database.pool_mode or self.pool_mode

    def resolve_reserve_pool_size(self, database: DatabaseConfig, server_user: str) -> int:
        """Backends beyond the pool's size: user > database > global; 0 = none."""
        return _first(
            self.user_entry(server_user).reserve_pool_size, database.reserve_pool_size, self.reserve_pool_size
        )

    def resolve_auth_user(self, database: DatabaseConfig | None) -> str | None:
        """Who asks for users that auth_file does not know: database > global; `None`: nobody does."""
        return (database.auth_user if database is not None else None) or self.auth_user or None

    def resolve_auth_query(self, database: DatabaseConfig) -> str | None:
        """What is asked: database > global."""
        return database.auth_query or self.auth_query

    def resolve_auth_dbname(self, database: DatabaseConfig) -> str:
        """The entry of [databases] in which it is asked: database > global > the one that the client wants."""
        return database.auth_dbname or self.auth_dbname or database.name

    def resolve_max_db_connections(self, database: DatabaseConfig) -> int:
        """Backends in a database: database > global; 0 = no limit."""
        return _first(database.max_db_connections, self.max_db_connections)

    def resolve_max_db_client_connections(self, database: DatabaseConfig) -> int:
        """Sessions in a database: database > global; 0 = no limit."""
        return _first(database.max_db_client_connections, self.max_db_client_connections)

    def resolve_max_user_connections(self, server_user: str) -> int:
        """Backends of a user: user > global; 0 = no limit."""
        return _first(self.user_entry(server_user).max_user_connections, self.max_user_connections)

    def resolve_max_user_client_connections(self, login_user: str) -> int:
        """Sessions of a user: user > global; 0 = no limit."""
        return _first(self.user_entry(login_user).max_user_client_connections, self.max_user_client_connections)


def _first(*values: Number | None) -> Number:
    """The first that is set. The last always is."""
    return next(value for value in values if value is not None)
