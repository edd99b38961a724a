"""What a pooler counts itself: SHOW STATS of PgBouncer's console, which our gateway speaks too.

The time that transactions held backends, divided by their number, is how long one of them is pinned by a transaction.
"""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netem.errors import LabError
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from netem.hosts import Hosts

__all__ = ["PoolerStats", "ask", "read"]

_CONSOLE = "pgbouncer"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolerStats:
    """Totals of one database since the pooler's start. Times in microseconds."""

    transactions: int
    held: int
    """In transactions."""
    waited: int
    """By clients, for a backend."""

    def figures(self, before: PoolerStats, *, from_asking: bool) -> dict[str, float]:
        """For each transaction since ``before``, milliseconds: how long it pinned its backend, and waited for it.

        ``from_asking``: transactions begin when a client asks, as PgBouncer's do; ours when it has a backend.
        """
        number = self.transactions - before.transactions
        if number <= 0:
            return {}
        held, waited = self.held - before.held, self.waited - before.waited
        return {
            "pooler_transactions": number,
            "pinned_ms": round((held - waited * from_asking) / number / 1000, 3),
            "backend_wait_ms": round(waited / number / 1000, 3),
        }


def read(lines: Iterable[str], database: str) -> PoolerStats:
    """Of the rows of SHOW STATS as CSV. All zero where there is none of ``database`` yet."""
    for row in csv.DictReader(lines):
        if row["database"] == database:
            return PoolerStats(
                transactions=int(row["total_xact_count"]),
                held=int(row["total_xact_time"]),
                waited=int(row["total_wait_time"]),
            )
    return PoolerStats(transactions=0, held=0, waited=0)


def ask(hosts: Hosts, host: str, port: int, *, user: str, password: str, database: str) -> PoolerStats:
    """Of the pooler on the gateway's host. Raises :class:`LabError` where it does not answer."""
    psql = [str(EmbeddedPostgres.binary("psql")), "-X", "--csv", "-c", "SHOW STATS"]
    place = [f"PGPASSWORD={password}", "PGCONNECT_TIMEOUT=10"]
    argv = hosts.argv("gateway", ["env", *place, *psql, "-h", host, "-p", str(port), "-U", user, _CONSOLE])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise LabError(f"the console of the pooler at {host}:{port} did not answer: {done.stderr.strip()}")
    return read(done.stdout.splitlines(), database)
