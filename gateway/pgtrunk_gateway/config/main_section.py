"""The keys of the main section, [pgtrunk] or [pgbouncer], as frozen values.

Each field bears the name of its key; a key of PgBouncer means what it means there. Only keys that the gateway acts on
are fields: a known key that it does not act on yet is checked by `load` and reported, and leaves no trace here.
Knows nothing of files and grammar, nor of who overrides whom: that is `Config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .entries import DEFAULT_SOCKET_DIR, PoolMode, SslMode

__all__ = [
    "DEFAULT_AUTH_QUERY",
    "AuthType",
    "MainSection",
    "QuicEarlyData",
    "QuicPathMtu",
    "QuicRedundancy",
    "QuicRetry",
    "SessionState",
]

AuthType: TypeAlias = Literal["any", "trust", "plain", "md5", "scram-sha-256", "cert"]
QuicEarlyData: TypeAlias = Literal["off", "login", "read-only"]
QuicPathMtu: TypeAlias = Literal["auto", "off"]
QuicRedundancy: TypeAlias = Literal["auto", "off"]
SessionState: TypeAlias = Literal["pin", "error", "ignore"]
QuicRetry: TypeAlias = Literal["auto", "always", "never"]

DEFAULT_AUTH_QUERY = (
    "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END"
    " FROM pg_authid WHERE rolname=$1 AND rolcanlogin"
)
"""PgBouncer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainSection:
    """Timeouts in seconds; 0 = off unless a field says otherwise."""

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

    tcp_user_timeout: int = 0
    """TCP_USER_TIMEOUT, milliseconds; 0 = the system's."""
    so_reuseport: bool = False
    """Whether several processes may listen on the TCP port (SO_REUSEPORT)."""

    # TLS over TCP, of clients
    client_tls_sslmode: SslMode = "disable"
    """disable: SSLRequest is answered "N"; allow and prefer: TLS for clients that ask; require: clients without it are
    refused; verify-ca, verify-full: they must show a certificate, too."""
    client_tls_key_file: str | None = None
    """Key of the certificate, PEM."""
    client_tls_cert_file: str | None = None
    """Certificate chain, PEM."""
    client_tls_ca_file: str | None = None
    """CAs for client certificates, PEM."""
    client_tls_protocols: str | None = "secure"
    """Versions of TLS: secure (1.2, 1.3), all, or a list of tlsv1.0 to tlsv1.3."""
    client_tls_ciphers: str | None = "default"
    """Cipher list of OpenSSL for TLS up to 1.2; default, secure and normal are OpenSSL's own choice."""
    client_tls_ecdhcurve: str | None = "auto"
    """Curve for ECDH; auto: OpenSSL's own choice."""

    # TLS over TCP, to Postgres
    server_tls_sslmode: SslMode = "prefer"
    """As libpq's sslmode."""
    server_tls_ca_file: str | None = None
    """CAs for the server's certificate, PEM."""
    server_tls_key_file: str | None = None
    """Key of the certificate that is shown to Postgres, PEM."""
    server_tls_cert_file: str | None = None
    """Certificate that is shown to Postgres, PEM."""
    server_tls_protocols: str | None = "secure"
    """As client_tls_protocols."""
    server_tls_ciphers: str | None = "default"
    """As client_tls_ciphers."""

    # Patroni
    patroni_ca_file: str | None = None
    """CAs for the certificates of Patroni's REST API, PEM; `None`: the system's."""
    patroni_interval: float = 5.0
    """Seconds between two questions to Patroni, where the keys `patroni` in [databases] name it. Never 0."""
    patroni_timeout: float = 2.0
    """Seconds in which one of its nodes must answer, before the next is asked. Never 0."""

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
    quic_path_mtu: QuicPathMtu = "auto"
    """Whether datagrams grow as far as the path carries them; off: they stay at 1200 octets."""
    quic_qlog_dir: str | None = None
    """Directory in which each QUIC connection writes a log of its packets (qlog), for its owner alone. `None`: none."""
    quic_redundancy: QuicRedundancy = "auto"
    """auto: small answers are sent twice while packets to that client are lost; off: never."""
    quic_early_data: QuicEarlyData = "login"
    """What a client that comes back may say before the handshake is complete (0-RTT): nothing; what begins a login;
    queries that it has declared to be read-only, too."""
    quic_ticket_keys_file: str | None = None
    """Keys that session tickets are sealed with, a line each, in hexadecimal digits, the current one first. `None`:
    random ones, renewed every two hours, which all workers have in common."""
    quic_retry: QuicRetry = "auto"
    """Whether clients must first prove their address by a Retry (RFC 9000, 8.1.2); auto: when many are half open."""

    # Process and log
    logfile: str | None = None
    """File that the log is appended to."""
    user: str | None = None
    """User that the process becomes at its start; `None`: it stays who it is."""
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
    log_stats: bool = True
    """Log totals every stats_period."""
    stats_period: int = 60
    """Seconds over which the averages of SHOW STATS are taken."""
    suspend_timeout: float = 10.0
    """Seconds that SUSPEND waits for buffers to drain before sessions are closed."""
    shutdown_timeout: float = 60.0
    """Seconds that a graceful stop waits for clients (SIGTERM) or transactions (SIGINT); 0 = no limit."""
    workers: int = 1
    """Processes that serve, on the same ports; 0 = one for each core that the gateway may use (auto)."""
    worker_hang_timeout: float = 30.0
    """Seconds for which a worker's event loop may stand still before it is killed and replaced; 0 = for ever."""
    peer_id: int = 0
    """This gateway's number in the cancel keys that it mints, 1..16383; 0 = none."""

    # Login
    auth_type: AuthType = "scram-sha-256"
    """How clients log in. "scram-sha-256"; "md5": the same for users whose secret is a SCRAM secret, MD5 for others.
    "plain": the password in clear. "cert": the name in the client's certificate. "trust": nothing is asked, but the
    name must be known to auth_file or auth_query if there is one. "any": nor is the name looked up; every database has
    a forced user."""
    admin_users: tuple[str, ...] = ()
    """Users who may do all in the console."""
    stats_users: tuple[str, ...] = ()
    """Users who may SHOW in the console."""
    auth_user: str | None = None
    """User whose backend runs auth_query for users that are not in auth_file; `None`: nobody is looked up."""
    auth_query: str | None = DEFAULT_AUTH_QUERY
    """Query that gives name and secret of the user $1."""
    auth_dbname: str | None = None
    """Entry of [databases] in which auth_query runs; `None`: the one that the client asks for."""
    scram_iterations: int = 4096
    """Iterations for passwords that auth_file has in clear, and shown for users who cannot log in."""
    login_notify_message: str | None = None
    """NOTICE to each client that has logged in."""
    application_name_add_host: bool = False
    """Whether the client's address is added to its application_name."""
    auth_file: str | None = None
    """Users and their passwords or secrets (PgBouncer's userlist.txt). Set where auth_type asks for passwords."""
    client_login_timeout: float = 60.0
    """Seconds from connection to the end of login."""
    login_failure_limit: int = 10
    """Failed logins per client address within login_failure_window, after which that address must wait; and wrong
    cancel keys, counted apart, after which its cancels are not looked at; 0 = off."""
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
    reserve_pool_size: int = 0
    """Backends beyond pool_size for sessions that have waited for reserve_pool_timeout."""
    reserve_pool_timeout: float = 5.0
    """Seconds that a session must have waited before the reserve is touched; 0 = there is none."""
    max_db_connections: int = 0
    """Backends in one database, over all its pools; 0 = no limit."""
    max_db_client_connections: int = 0
    """Sessions in one database; 0 = no limit."""
    max_user_connections: int = 0
    """Backends that log in as one user, over all its pools; 0 = no limit."""
    max_user_client_connections: int = 0
    """Sessions of one user; 0 = no limit."""
    server_round_robin: bool = False
    """Whether the backend that has been idle longest is used next, and not the one used last."""
    server_reset_query: str | None = "DISCARD ALL"
    """SQL between two sessions in session mode; `None`: nothing."""
    server_reset_query_always: bool = False
    """Whether server_reset_query runs in the other modes too."""
    server_check_query: str | None = "<empty>"
    """SQL that tells whether a backend is alive, before a session gets it; "<empty>": an empty query."""
    server_check_delay: float = 30.0
    """Seconds for which a backend may have been idle without being checked."""
    server_fast_close: bool = False
    """Whether RECONNECT ends sessions in session mode as soon as they are outside a transaction."""
    track_extra_parameters: tuple[str, ...] = ("IntervalStyle",)
    """Nothing is left for it to do: all that Postgres reports and a client can set follows a session anyway."""
    pool_idle_timeout: float = 0.0
    """Seconds after which a pool without sessions and backends is forgotten."""
    autodb_idle_timeout: float = 3600.0
    """Seconds after which a database made from "*" is forgotten that nobody uses."""
    max_prepared_statements: int = 200
    """Named statements kept per backend; 0 = names are not rewritten."""
    lazy_begin: bool = True
    """Whether BEGIN by itself is answered at once, and goes to a backend with what follows it."""
    session_state: SessionState = "pin"
    """What becomes of a session that has what no other backend has: it keeps its own, is refused, or loses it."""
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
    query_wait_notify: int = 5
    """Seconds that a session must have waited for a backend to be told so by a NOTICE."""
    query_timeout: float = 0.0
    """Seconds a query may take."""
    transaction_timeout: float = 0.0
    """Seconds a transaction may take."""
    client_idle_timeout: float = 0.0
    """Seconds a session may be idle outside a transaction."""
    idle_transaction_timeout: float = 0.0
    """Seconds a session may be idle in a transaction."""
    cancel_wait_timeout: float = 10.0
    """Seconds for a cancel request to have its effect. One that Postgres has been told, and has not confirmed by then
    by closing the connection, may still come: the backend is closed when it is free. 0 = no limit."""

    @property
    def quic_enabled(self) -> bool:
        """Whether there is a QUIC front."""
        return self.quic_cert_file is not None
