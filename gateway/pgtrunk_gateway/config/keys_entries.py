"""The keys inside the entries of [databases], [users] and [peers].

-1 is PgBouncer's "not set" in them. 0 is "not set" too for the two where PgBouncer cannot tell it from that:
server_lifetime of a database and idle_transaction_timeout of a user (and its like that the gateway does not act on).
"""

from __future__ import annotations

from .key import Key
from .keys_pgbouncer import POOL_MODE, SSL_MODE
from .kinds import boolean, choice, hosts, integer, optional, path, ports, seconds, text, urls

__all__ = ["DATABASE_KEYS", "PEER_KEYS", "USER_KEYS"]

CONNECTIONS = optional(integer(unit="connections"))
SECONDS = optional(seconds())
SECONDS_NOT_ZERO = optional(seconds(), zero=True)
PORT = integer(1, 65535)
SESSION_ATTRS = choice("any", "read-write", "read-only", "primary", "standby", "prefer-standby")

DATABASE_KEYS = (
    Key("application_name", text(), acted_on=True),
    Key("auth_dbname", text(), acted_on=True),
    Key("auth_query", text(), acted_on=True),
    Key("auth_user", text(), acted_on=True),
    Key("client_encoding", text(), acted_on=True),
    Key("connect_query", text(), acted_on=True),
    Key("datestyle", text(), acted_on=True),
    Key("dbname", text(), acted_on=True),
    Key("host", hosts(), acted_on=True),
    Key("load_balance_hosts", choice("round-robin", "disable"), "round-robin", acted_on=True),
    Key("max_db_client_connections", CONNECTIONS, "-1", acted_on=True),
    Key("max_db_connections", CONNECTIONS, "-1", acted_on=True),
    Key("min_pool_size", CONNECTIONS, "-1", acted_on=True),
    Key("password", text(), acted_on=True),
    Key("pool_mode", POOL_MODE, "transaction", acted_on=True),
    Key("pool_size", CONNECTIONS, "-1", acted_on=True),
    Key("patroni", urls(), acted_on=True, ours=True),
    Key("port", ports(), "5432", acted_on=True),
    Key("query_wait_timeout", SECONDS, "-1", acted_on=True),
    Key("reserve_pool", CONNECTIONS, "-1", acted_on=True),  # an older name of reserve_pool_size
    Key("reserve_pool_size", CONNECTIONS, "-1", acted_on=True),
    Key("server_lifetime", SECONDS_NOT_ZERO, "-1", acted_on=True),
    Key("server_tls_ca_file", path(), acted_on=True, ours=True),
    Key("server_tls_cert_file", path(), acted_on=True, ours=True),
    Key("server_tls_key_file", path(), acted_on=True, ours=True),
    Key("server_tls_sslmode", SSL_MODE, "prefer", acted_on=True, ours=True),
    Key("target_session_attrs", SESSION_ATTRS, "any", acted_on=True, ours=True),
    Key("timezone", text(), acted_on=True),
    Key("user", text(), acted_on=True),
)

USER_KEYS = (
    Key("client_idle_timeout", SECONDS_NOT_ZERO, "-1", acted_on=True),
    Key("idle_transaction_timeout", SECONDS_NOT_ZERO, "-1", acted_on=True),
    Key("max_user_client_connections", CONNECTIONS, "-1", acted_on=True),
    Key("max_user_connections", CONNECTIONS, "-1", acted_on=True),
    Key("pool_mode", POOL_MODE, "transaction", acted_on=True),
    Key("pool_size", CONNECTIONS, "-1", acted_on=True),
    Key("query_timeout", SECONDS_NOT_ZERO, "-1", acted_on=True),
    Key("query_wait_timeout", SECONDS, "-1", acted_on=True),
    Key("reserve_pool_size", CONNECTIONS, "-1", acted_on=True),
    Key("transaction_timeout", SECONDS_NOT_ZERO, "-1", acted_on=True),
)

# PgBouncer speaks to all of its peers in clear, and 3.0.
PEER_KEYS = (
    Key("host", text(), acted_on=True),
    Key("long_keys", boolean(), "0", acted_on=True, ours=True),
    Key("pool_size", CONNECTIONS, "-1", acted_on=True),
    Key("port", PORT, "6432", acted_on=True),
    Key("server_tls_ca_file", path(), acted_on=True, ours=True),
    Key("server_tls_cert_file", path(), acted_on=True, ours=True),
    Key("server_tls_key_file", path(), acted_on=True, ours=True),
    Key("server_tls_sslmode", SSL_MODE, "disable", acted_on=True, ours=True),
)
