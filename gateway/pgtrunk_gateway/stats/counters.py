"""What is counted for SHOW STATS: one object per pool, added to by its sessions and backends.

Totals since the pool was made; averages are the business of whoever compares two copies. Every query comes by here, so
it is plain integers and floats, reached by one attribute, and each is added to at one place only. What the pool counts
anyway is not counted again: leases, which are PgBouncer's server assignments, are in its own counters. A series of
pipelined requests counts as one query, as in PgBouncer: when nothing is owed any more. Pure: times are given.
"""

from __future__ import annotations

__all__ = ["PoolStats"]


class PoolStats:
    """The counters of one pool. Times in seconds; octets as the client sees them (received: from clients)."""

    __slots__ = (
        "bind_count",
        "client_parse_count",
        "inner_query_count",
        "login_count",
        "pin_count",
        "received",
        "sent",
        "server_parse_count",
        "think_time",
        "wait_time",
        "xact_count",
        "xact_time",
    )

    def __init__(self) -> None:
        self.xact_count = 0
        """Transactions that have ended (total_xact_count)."""
        self.inner_query_count = 0
        """Queries that did not end a transaction."""
        self.received = 0
        """Octets that clients sent for backends (total_received)."""
        self.sent = 0
        """Octets that clients got from backends (total_sent)."""
        self.xact_time = 0.0
        """From the first request of a transaction, once a backend is there, to its end (total_xact_time)."""
        self.think_time = 0.0
        """Of that, what passed while a transaction was open and the backend had nothing to do."""
        self.wait_time = 0.0
        """Spent waiting for a backend (total_wait_time)."""
        self.client_parse_count = 0
        """Parse messages of named statements from clients (total_client_parse_count)."""
        self.server_parse_count = 0
        """Those that went to a backend, the gateway's own among them (total_server_parse_count)."""
        self.bind_count = 0
        """Bind messages for named statements (total_bind_count)."""
        self.login_count = 0
        """Clients that have logged in (total_client_login_count)."""
        self.pin_count = 0
        """Sessions that began to keep their backend, for something that only it has."""

    @property
    def query_count(self) -> int:
        """Queries that have been answered (total_query_count)."""
        return self.xact_count + self.inner_query_count

    @property
    def query_time(self) -> float:
        """Seconds in which backends worked on queries (total_query_time)."""
        return self.xact_time - self.think_time

    def add(self, other: PoolStats) -> None:
        """Adds what ``other`` has counted: the sum over the pools of a database, or of one that is forgotten."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def copy(self) -> PoolStats:
        """What has been counted by now, to compare with later."""
        copied = PoolStats()
        copied.add(self)
        return copied
