"""Every key of PgBouncer's main section, in the order of its SHOW CONFIG: 1.25.2 and what has been merged since.

Defaults are PgBouncer's, but for two that the gateway cannot act on: pool_mode (session) and auth_type (md5, which
PgBouncer itself answers by SCRAM wherever the stored secret allows). A default that PgBouncer leaves unset is "".
"""

from __future__ import annotations

from .key import Key
from .kinds import boolean, choice, integer, mode, path, seconds, size, text, words

__all__ = ["KEYS"]

AUTH_TYPE = choice("any", "trust", "md5", "scram-sha-256", later=("plain", "cert", "hba", "ldap", "pam"))
POOL_MODE = choice("transaction", later=("session", "statement"))
SSL_MODE = choice("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
AUTH_QUERY = (
    "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END"
    " FROM pg_authid WHERE rolname=$1 AND rolcanlogin"
)

KEYS = (
    Key("admin_users", words()),
    Key("application_name_add_host", boolean(), "0"),
    Key("auth_dbname", text()),
    Key("auth_file", path(), acted_on=True),
    Key("auth_hba_file", path(), serious=True),
    Key("auth_ident_file", path()),
    Key("auth_ldap_options", text()),
    Key("auth_query", text(), AUTH_QUERY),
    Key("auth_type", AUTH_TYPE, "scram-sha-256", acted_on=True),
    Key("auth_user", text()),
    Key("autodb_idle_timeout", seconds(), "3600"),
    Key("cancel_wait_timeout", seconds(), "10", acted_on=True),
    Key("client_idle_timeout", seconds(), "0"),
    Key("client_login_timeout", seconds(), "60", acted_on=True),
    Key("client_tls13_ciphers", text()),
    Key("client_tls_ca_file", path()),
    Key("client_tls_cert_file", path()),
    Key("client_tls_ciphers", text(), "default"),
    Key("client_tls_dheparams", text(), "auto"),
    Key("client_tls_ecdhcurve", text(), "auto"),
    Key("client_tls_key_file", path()),
    Key("client_tls_protocols", text(), "secure"),
    Key("client_tls_sslmode", SSL_MODE, "disable", serious=True),
    Key("conffile", path()),
    Key("default_pool_size", integer(unit="connections"), "20", acted_on=True),
    Key("disable_pqexec", boolean(), "0", changeable=False, serious=True),
    Key("dns_max_ttl", seconds(), "15"),
    Key("dns_nxdomain_ttl", seconds(), "15"),
    Key("dns_zone_check_period", seconds(), "0"),
    Key("idle_transaction_timeout", seconds(), "0", acted_on=True),
    Key("ignore_startup_parameters", words(unit="parameters"), acted_on=True),
    Key("job_name", text(), "pgbouncer", changeable=False),
    Key("listen_addr", words(), acted_on=True, changeable=False),
    Key("listen_backlog", integer(unit="connections"), "128", acted_on=True, changeable=False),
    Key("listen_port", integer(0, 65535), "6432", acted_on=True, changeable=False),
    Key("log_connections", boolean(), "1", acted_on=True),
    Key("log_disconnections", boolean(), "1", acted_on=True),
    Key("log_pooler_errors", boolean(), "1", acted_on=True),
    Key("log_stats", boolean(), "1"),
    Key("logfile", path(), acted_on=True),
    Key("login_notify_message", text()),
    Key("max_client_conn", integer(unit="connections"), "100", acted_on=True),
    Key("max_db_client_connections", integer(unit="connections"), "0", serious=True),
    Key("max_db_connections", integer(unit="connections"), "0", serious=True),
    Key("max_packet_size", size(0, 2**32 - 1), "2147483647", acted_on=True),
    Key("max_prepared_statements", integer(unit="statements"), "200", acted_on=True),
    Key("max_user_client_connections", integer(unit="connections"), "0", serious=True),
    Key("max_user_connections", integer(unit="connections"), "0", serious=True),
    Key("min_pool_size", integer(unit="connections"), "0", acted_on=True),
    Key("peer_id", integer(0, 16383), "0", acted_on=True),
    Key("pidfile", path(), acted_on=True, changeable=False),
    Key("pkt_buf", integer(unit="bytes"), "4096", changeable=False),
    Key("pool_mode", POOL_MODE, "transaction", acted_on=True),
    Key("pool_idle_timeout", seconds(), "0"),
    Key("query_timeout", seconds(), "0", serious=True),
    Key("query_wait_notify", integer(unit="s"), "5"),
    Key("query_wait_timeout", seconds(), "120", acted_on=True),
    Key("reserve_pool_size", integer(unit="connections"), "0"),
    Key("reserve_pool_timeout", seconds(), "5"),
    Key("resolv_conf", path(), changeable=False),
    Key("sbuf_loopcnt", integer(), "5"),
    Key("scram_iterations", integer(1), "4096"),
    Key("server_check_delay", seconds(), "30"),
    Key("server_check_query", text(), "<empty>"),
    Key("server_connect_timeout", seconds(), "15", acted_on=True),
    Key("server_fast_close", boolean(), "0"),
    Key("server_idle_timeout", seconds(), "600", acted_on=True),
    Key("server_lifetime", seconds(), "3600", acted_on=True),
    Key("server_login_retry", seconds(), "15", acted_on=True),
    Key("server_reset_query", text(), "DISCARD ALL"),
    Key("server_reset_query_always", boolean(), "0", serious=True),
    Key("server_round_robin", boolean(), "0"),
    Key("server_tls13_ciphers", text()),
    Key("server_tls_ca_file", path()),
    Key("server_tls_cert_file", path()),
    Key("server_tls_ciphers", text(), "default"),
    Key("server_tls_key_file", path()),
    Key("server_tls_protocols", text(), "secure"),
    Key("server_tls_sslmode", SSL_MODE, "prefer", serious=True),
    Key("service_name", text(), changeable=False),  # an alias of job_name that PgBouncer knows on Windows only
    Key("so_reuseport", boolean(), "0", changeable=False),
    Key("stats_period", integer(unit="s"), "60"),
    Key("stats_users", words()),
    Key("suspend_timeout", seconds(), "10"),
    Key("syslog", boolean(), "0"),
    Key("syslog_facility", text(), "daemon"),
    Key("syslog_ident", text(), "pgbouncer"),
    Key("tcp_defer_accept", boolean(), "1"),
    Key("tcp_keepalive", boolean(), "1", acted_on=True),
    Key("tcp_keepcnt", integer(), "0", acted_on=True),
    Key("tcp_keepidle", integer(unit="s"), "0", acted_on=True),
    Key("tcp_keepintvl", integer(unit="s"), "0", acted_on=True),
    Key("tcp_socket_buffer", integer(unit="bytes"), "0"),
    Key("tcp_user_timeout", integer(unit="ms"), "0"),
    Key("track_extra_parameters", words(unit="parameters"), "IntervalStyle", changeable=False),
    Key("transaction_timeout", seconds(), "0", serious=True),
    Key("unix_socket_dir", path(), "/tmp", acted_on=True, changeable=False),
    Key("unix_socket_group", text(), acted_on=True, changeable=False),
    Key("unix_socket_mode", mode(), "0777", acted_on=True, changeable=False),
    Key("user", text(), changeable=False, serious=True),
    Key("verbose", integer(), "0", acted_on=True),
)
