"""The entries of [databases], [users] and [peers] as frozen values. `None`: not set there.

Each field bears the name of its key. Knows nothing of files and grammar, nor of who overrides whom: that is `Config`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "CONSOLE_NAMES",
    "DEFAULT_PORT",
    "DEFAULT_SOCKET_DIR",
    "DatabaseConfig",
    "LoadBalance",
    "PeerConfig",
    "Place",
    "PoolKey",
    "PoolMode",
    "SessionAttrs",
    "SslMode",
    "UserConfig",
]

PoolMode: TypeAlias = Literal["session", "transaction", "statement"]
SslMode: TypeAlias = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
LoadBalance: TypeAlias = Literal["round-robin", "disable"]
SessionAttrs: TypeAlias = Literal["any", "read-write", "read-only", "primary", "standby", "prefer-standby"]

DEFAULT_SOCKET_DIR = "/tmp"
DEFAULT_PORT = 5432
CONSOLE_NAMES = frozenset({"pgbouncer", "pgtrunk", "gateway"})
"""The console's database; no entry of [databases] can have one of these names."""


class Place(NamedTuple):
    """Where one Postgres is."""

    host: str
    """Name, address, or directory of the unix socket (begins with "/" or "@")."""
    port: int
    """TCP port, or the number in the unix socket's name."""


class PoolKey(NamedTuple):
    """What one pool is for: hashable, and short in logs."""

    database: str
    """Name of the entry in [databases], as clients ask for it."""
    user: str
    """User that logs in to Postgres."""

    def __str__(self) -> str:
        return f"{self.database}/{self.user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseConfig:
    """One entry of [databases]: where it leads, and what it overrides. `None`: not set here."""

    name: str
    """What clients ask for; "*" for the entry that stands for all others."""
    dbname: str | None = None
    """Database in Postgres; `None`: the same as `name`. See `server_dbname`."""
    host: str = DEFAULT_SOCKET_DIR
    """Name, address, or directory of the unix socket (begins with "/" or "@"). `load` puts unix_socket_dir here when
    the entry has no host, and the first of a list of hosts; nothing where only Patroni knows them."""
    port: int = DEFAULT_PORT
    """TCP port, or the number in the unix socket's name."""
    others: tuple[Place, ...] = ()
    """The rest of a list of hosts, with their ports."""
    load_balance_hosts: LoadBalance = "round-robin"
    """How connections are spread over a list: over all in turn, or the next only where one fails."""
    target_session_attrs: SessionAttrs | None = None
    """What the server has to be, in libpq's words; `None`: whatever it is, or with `patroni` the primary."""
    patroni: tuple[str, ...] = ()
    """URLs of Patroni's REST API, which says where the cluster's servers are; `host` counts until it has."""
    user: str | None = None
    """Forced user: all sessions share one pool that logs in under this name. `None`: each client's own name."""
    password: str | None = field(default=None, repr=False)
    """Password for `user`, in clear. `None`: look in auth_file."""
    pool_size: int | None = None
    """Backends per pool; 0 = no limit."""
    min_pool_size: int | None = None
    """Backends that are kept open, for a pool with a forced user or with clients."""
    server_lifetime: float | None = None
    """Seconds after which an idle backend is closed. Never 0: PgBouncer takes 0 here for "not set"."""
    query_wait_timeout: float | None = None
    """Seconds a session may wait for a backend; 0 = no limit."""
    pool_mode: PoolMode | None = None
    """When a backend goes back to its pool."""
    reserve_pool_size: int | None = None
    """Backends beyond pool_size for sessions that have waited for reserve_pool_timeout."""
    max_db_connections: int | None = None
    """Backends in this database, over all its pools; 0 = no limit."""
    max_db_client_connections: int | None = None
    """Sessions in this database; 0 = no limit."""
    auth_user: str | None = None
    """User whose backend runs auth_query; `None`: the main section's."""
    auth_query: str | None = None
    """Query that gives a user's secret; `None`: the main section's."""
    auth_dbname: str | None = None
    """Entry of [databases] in which auth_query runs; `None`: the main section's, or this one."""
    connect_query: str | None = None
    """SQL that each new backend runs first."""
    application_name: str | None = None
    """Given to Postgres when a backend logs in, as are the three that follow."""
    client_encoding: str | None = None
    datestyle: str | None = None
    timezone: str | None = None
    server_tls_sslmode: SslMode | None = None
    """TLS to this database; `None`: the main section's, as for the three that follow."""
    server_tls_ca_file: str | None = None
    server_tls_cert_file: str | None = None
    server_tls_key_file: str | None = None

    @property
    def server_dbname(self) -> str:
        """Name of the database in Postgres."""
        return self.name if self.dbname is None else self.dbname

    @property
    def places(self) -> tuple[Place, ...]:
        """All servers that the entry names; none where only Patroni does."""
        return (Place(self.host, self.port), *self.others) if self.host else ()

    @property
    def session_attrs(self) -> SessionAttrs:
        """What the server has to be."""
        return self.target_session_attrs or ("primary" if self.patroni else "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """One entry of [users]. `None`: not set here."""

    name: str
    """Name of the user."""
    pool_size: int | None = None
    """Backends per pool whose backends log in as this user; 0 = no limit."""
    query_wait_timeout: float | None = None
    """Seconds a session of this user may wait for a backend; 0 = no limit."""
    idle_transaction_timeout: float | None = None
    """Seconds a session of this user may be idle in a transaction. Never 0: PgBouncer takes 0 here for "not set"."""
    transaction_timeout: float | None = None
    """Seconds a transaction of this user may take. Never 0, as above."""
    query_timeout: float | None = None
    """Seconds a query of this user may take. Never 0, as above."""
    client_idle_timeout: float | None = None
    """Seconds a session of this user may be idle outside a transaction. Never 0, as above."""
    reserve_pool_size: int | None = None
    """As for a database, for pools whose backends log in as this user."""
    max_user_connections: int | None = None
    """Backends that log in as this user, over all its pools; 0 = no limit."""
    max_user_client_connections: int | None = None
    """Sessions of this user; 0 = no limit."""
    pool_mode: PoolMode | None = None
    """When a backend goes back to its pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """One entry of [peers]: a gateway or PgBouncer to which a cancel may have to be forwarded."""

    peer_id: int
    """1..16383, unique among the peers."""
    host: str
    """Name, address, or directory of a unix socket."""
    port: int = 6432
    """TCP port, or the number in the unix socket's name."""
    pool_size: int | None = None
    """Cancels in flight to this peer, from each process; `None`: default_pool_size, 0 = no limit."""
    long_keys: bool = False
    """Whether it forwards cancels with the long keys of protocol 3.2, as a gateway does, and a PgBouncer does not. Only
    where all peers do, clients get such keys."""
    server_tls_sslmode: SslMode | None = None
    """TLS to this peer; `None`: in clear, as PgBouncer does, whatever the main section has for Postgres."""
    server_tls_ca_file: str | None = None
    """`None`: the main section's, as for the two that follow."""
    server_tls_cert_file: str | None = None
    server_tls_key_file: str | None = None
