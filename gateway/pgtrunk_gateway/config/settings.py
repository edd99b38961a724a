"""What the gateway was told, as frozen values.

Each field bears the name of its key; a key of PgBouncer means what it means there. Only keys that the gateway acts on
are fields: a known key that it does not act on yet is checked by `load` and reported, and leaves no trace here.
Knows nothing of files and grammar. The methods of `Config` are the only place that knows who overrides whom
(user > database > global).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AuthType",
    "Config",
    "DatabaseConfig",
    "PeerConfig",
    "PoolKey",
    "PoolMode",
    "QuicRetry",
    "UserConfig",
]

AuthType: TypeAlias = Literal["any", "trust", "md5", "scram-sha-256"]
PoolMode: TypeAlias = Literal["transaction"]
QuicRetry: TypeAlias = Literal["auto", "always", "never"]

Number = TypeVar("Number", int, float)

DEFAULT_SOCKET_DIR = "/tmp"


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
    the entry has no host, and the first of a list of hosts."""
    port: int = 5432
    """TCP port, or the number in the unix socket's name."""
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

    @property
    def server_dbname(self) -> str:
        """Name of the database in Postgres."""
        return self.name if self.dbname is None else self.dbname


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
    pool_mode: PoolMode | None = None
    """When a backend goes back to its pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """One entry of [peers]: a gateway or PgBouncer to which a cancel may have to be forwarded. Not acted on yet."""

    peer_id: int
    """1..16383, unique among the peers."""
    host: str
    """Name, address, or directory of a unix socket."""
    port: int = 6432
    """TCP port, or the number in the unix socket's name."""
    pool_size: int | None = None
    """Cancels in flight to this peer; `None`: default_pool_size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The main section, and the entries of the others. Timeouts in seconds; 0 = off unless a field says otherwise."""

    # Fronts
    listen_addr: tuple[str, ...] = ()
    """Addresses and names for TCP; "*" = all. Empty: no TCP front."""
    listen_port: int = 6432
    """TCP port, and the number in the unix socket's name. 0: any free port."""
    listen_backlog: int = 128
    """Connections that the kernel queues for accept()."""
    unix_socket_dir: str | None = DEFAULT_SOCKET_DIR
    """Directory of the unix socket `.s.PGSQL.<listen_port>`; "@..." is an abstract one. `None`: no unix front."""
    unix_socket_mode: int = 0o777
    """Permission bits of the unix socket."""
    unix_socket_group: str | None = None
    """Group that the unix socket is given to."""
    tcp_keepalive: bool = True
    """SO_KEEPALIVE on all TCP sockets, of clients and of backends."""
    tcp_keepcnt: int = 0
    """TCP_KEEPCNT, probes; 0 = the system's."""
    tcp_keepidle: int = 0
    """TCP_KEEPIDLE, seconds; 0 = the system's."""
    tcp_keepintvl: int = 0
    """TCP_KEEPINTVL, seconds; 0 = the system's."""

    # QUIC
    quic_listen_addr: tuple[str, ...] = ()
    """Addresses and names for QUIC; `load` puts listen_addr here when the key is not set."""
    quic_listen_port: int = 6432
    """UDP port; `load` puts listen_port here when the key is not set. 0: any free port."""
    quic_cert_file: str | None = None
    """Certificate chain, PEM. `None`: no QUIC front."""
    quic_key_file: str | None = None
    """Key of the certificate, PEM."""
    quic_client_ca_file: str | None = None
    """CAs for client certificates, PEM; set: clients must show one. `None`: they are not asked."""
    quic_max_streams: int = 1000
    """Sessions per QUIC connection."""
    quic_idle_timeout: float = 10.0
    """Seconds of silence after which a QUIC connection is taken for dead. Never 0."""
    quic_connection_budget: int = 32 << 20
    """Bytes that one QUIC connection may have unread in the gateway."""
    quic_memory_budget: int = 256 << 20
    """Bytes that all QUIC connections together may have unread in the gateway."""
    quic_congestion_floor: int = 0
    """Packets below which loss never takes the congestion window; 0 = off, as RFC 9002 has it."""
    quic_retry: QuicRetry = "auto"
    """Whether clients must first prove their address by a Retry (RFC 9000, 8.1.2); auto: when many are half open."""

    # Process and log
    logfile: str | None = None
    """File that the log is appended to."""
    pidfile: str | None = None
    """File that holds the gateway's pid while it runs."""
    verbose: int = 0
    """0 = LOG and graver, 1 = DEBUG too, 2 = NOISE too, 3 = what libraries say as well. -v adds to it."""
    log_connections: bool = True
    """Log each login."""
    log_disconnections: bool = True
    """Log each disconnection, with its reason."""
    log_pooler_errors: bool = True
    """Log each error that the gateway itself sends to a client."""
    shutdown_timeout: float = 60.0
    """Seconds that a graceful stop waits for clients (SIGTERM) or transactions (SIGINT); 0 = no limit."""
    peer_id: int = 0
    """This gateway's number in the cancel keys that it mints, 1..16383; 0 = none."""

    # Login
    auth_type: AuthType = "scram-sha-256"
    """How clients log in. "md5" is answered by SCRAM-SHA-256 like "scram-sha-256". "trust": nothing is asked, but the
    name must be in auth_file if there is one. "any": nor is the name looked up; every database has a forced user."""
    auth_file: str | None = None
    """Users and their passwords or secrets (PgBouncer's userlist.txt). Set where auth_type asks for passwords."""
    client_login_timeout: float = 60.0
    """Seconds from connection to the end of login."""
    login_failure_limit: int = 10
    """Failed logins per client address within login_failure_window, after which that address must wait; 0 = off."""
    login_failure_window: float = 60.0
    """Seconds for which a failed login counts. Never 0."""
    ignore_startup_parameters: tuple[str, ...] = ()
    """Parameters that a startup packet may have and that are dropped; "options" stands for all inside `options`."""

    # Sessions and pools
    pool_mode: PoolMode = "transaction"
    """When a backend goes back to its pool."""
    max_client_conn: int = 100
    """Sessions over all fronts."""
    default_pool_size: int = 20
    """Backends per pool; 0 = no limit."""
    min_pool_size: int = 0
    """Backends that are kept open, for a pool with a forced user or with clients."""
    max_prepared_statements: int = 200
    """Named statements kept per backend; 0 = names are not rewritten."""
    max_packet_size: int = 2147483647
    """Bytes of the largest message that passes."""
    server_lifetime: float = 3600.0
    """Seconds after which an idle backend is closed; 0 = a backend serves one lease."""
    server_idle_timeout: float = 600.0
    """Seconds an idle backend is kept."""
    server_connect_timeout: float = 15.0
    """Seconds for connection and login to Postgres."""
    server_login_retry: float = 15.0
    """Seconds between attempts after a failed connection or login to Postgres; 0 = at once."""
    query_wait_timeout: float = 120.0
    """Seconds a session may wait for a backend."""
    idle_transaction_timeout: float = 0.0
    """Seconds a session may be idle in a transaction."""
    cancel_wait_timeout: float = 10.0
    """Seconds a cancel request may wait for its turn."""

    # Entries
    databases: Mapping[str, DatabaseConfig] = field(default_factory=dict)
    """[databases] by name, without "*"."""
    any_database: DatabaseConfig | None = None
    """The entry "*"."""
    users: Mapping[str, UserConfig] = field(default_factory=dict)
    """[users] by name."""
    peers: Mapping[int, PeerConfig] = field(default_factory=dict)
    """[peers] by id."""

    @property
    def quic_enabled(self) -> bool:
        """Whether there is a QUIC front."""
        return self.quic_cert_file is not None

    def database(self, name: str) -> DatabaseConfig | None:
        """The entry that serves clients asking for `name`; `None`: no such database.

        Made from "*" where there is no entry of that name.
        """
        entry = self.databases.get(name)
        if entry is None and self.any_database is not None:
            return replace(self.any_database, name=name)
        return entry

    def user(self, name: str) -> UserConfig:
        """The entry of [users], or one that sets nothing."""
        return self.users.get(name) or UserConfig(name=name)

    def pool_key(self, database: DatabaseConfig, login_user: str) -> PoolKey:
        """The pool that serves `login_user` in `database`: a forced user makes it one for all."""
        return PoolKey(database.name, login_user if database.user is None else database.user)

    def resolve_pool_size(self, database: DatabaseConfig, server_user: str) -> int:
        """Backends of the pool (database, server user): user > database > global; 0 = no limit."""
        return _first(self.user(server_user).pool_size, database.pool_size, self.default_pool_size)

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
        return _first(self.user(login_user).query_wait_timeout, database.query_wait_timeout, self.query_wait_timeout)

    def resolve_idle_transaction_timeout(self, login_user: str) -> float:
        """Seconds a session may be idle in a transaction: user > global; 0 = no limit."""
        return _first(self.user(login_user).idle_transaction_timeout, self.idle_transaction_timeout)


def _first(*values: Number | None) -> Number:
    """The first that is set. The last always is."""
    return next(value for value in values if value is not None)
