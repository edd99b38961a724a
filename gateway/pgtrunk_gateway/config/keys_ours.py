"""The keys of the main section that PgBouncer does not have.

QUIC is UDP, so it can have the number of listen_port without a conflict; that is its default. A certificate is what
turns QUIC on.
"""

from __future__ import annotations

from .key import Key
from .kinds import automatic, boolean, choice, integer, optional, path, seconds, size, words

__all__ = ["KEYS"]

# A connection's budget cannot be less than what one stream must be allowed before it is read: 64 kB.
BUDGET = size(64 << 10)

KEYS = (
    Key("lazy_begin", boolean(), "1", acted_on=True, ours=True),
    Key("login_failure_limit", integer(unit="logins"), "10", acted_on=True, ours=True),
    Key("login_failure_window", seconds(minimum=0.001), "60", acted_on=True, ours=True),
    Key("patroni_ca_file", path(), acted_on=True, ours=True),
    Key("patroni_interval", seconds(minimum=0.05), "5", acted_on=True, ours=True),
    Key("patroni_timeout", seconds(minimum=0.05), "2", acted_on=True, ours=True),
    Key("quic_cert_file", path(), acted_on=True, ours=True),
    Key("quic_client_ca_file", path(), acted_on=True, ours=True),
    Key("quic_congestion_floor", integer(0, 100_000, unit="packets"), "0", acted_on=True, ours=True),
    Key("quic_connection_budget", BUDGET, "32MB", acted_on=True, ours=True),
    Key("quic_early_data", choice("off", "login", "read-only"), "login", acted_on=True, ours=True),
    Key("quic_idle_timeout", seconds(minimum=0.1), "10", acted_on=True, ours=True),
    Key("quic_key_file", path(), acted_on=True, ours=True),
    Key("quic_listen_addr", words(), acted_on=True, ours=True, changeable=False),
    Key("quic_listen_port", optional(integer(0, 65535)), "-1", acted_on=True, ours=True, changeable=False),
    Key("quic_max_streams", integer(1, 1 << 20, unit="streams"), "1000", acted_on=True, ours=True),
    Key("quic_memory_budget", BUDGET, "256MB", acted_on=True, ours=True),
    Key("quic_path_mtu", choice("auto", "off"), "auto", acted_on=True, ours=True),
    Key("quic_qlog_dir", path(), acted_on=True, ours=True, changeable=False),
    Key("quic_redundancy", choice("auto", "off"), "auto", acted_on=True, ours=True),
    Key("quic_retry", choice("auto", "always", "never"), "auto", acted_on=True, ours=True),
    Key("quic_ticket_keys_file", path(), acted_on=True, ours=True),
    Key("session_state", choice("pin", "error", "ignore"), "pin", acted_on=True, ours=True),
    Key("shutdown_timeout", seconds(), "60", acted_on=True, ours=True),
    Key("worker_hang_timeout", seconds(), "30", acted_on=True, ours=True),
    Key("workers", automatic(integer(1, 256)), "1", acted_on=True, ours=True, changeable=False),
)
