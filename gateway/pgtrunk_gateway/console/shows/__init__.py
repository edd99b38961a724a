"""The shows, by subject. Importing them puts them into the registry, in the order in which HELP has them.

PgBouncer's columns come first, with its names, types and order; what it does not have stands behind them.
"""

from pgtrunk_gateway.console.registry import SHOWS

# isort: off
from pgtrunk_gateway.console.shows import about, pools, entries, hosts, sockets, statistics, quic, peers, fleet
# isort: on

__all__ = ["SHOWS", "about", "entries", "fleet", "hosts", "peers", "pools", "quic", "sockets", "statistics"]
