"""What is measured on: PostgreSQL with pgbench's table, and a gateway process, in one guarded folder.

The demonstration's site, with accounts in it. Whatever ends us, nothing of it stays.
"""

from __future__ import annotations

import asyncio
import os
import subprocess

import asyncpg

from bench.errors import BenchError
from bench.point_select import SPREAD_BALANCES
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres
from pgtrunk_gateway.demo.site import Site

__all__ = ["BenchSite", "environment"]

_PATIENCE = 60.0


class BenchSite(Site):
    """PostgreSQL and the gateway, from :meth:`open` until :meth:`close`, which the end of ``with`` calls."""

    def open(self) -> None:
        """Starts everything. Blocks, and runs event loops of its own."""
        self.open_folder()
        self.start_postgres()
        self._make_accounts()
        self.make_certificates()
        self.start_gateway()

    @property
    def dsn(self) -> str:
        """For a session over a trunk."""
        return f"postgresql://{self.user}:{self.password}@/{self.database}"

    def _make_accounts(self) -> None:
        where = ["-h", self.postgres.host, "-p", str(self.postgres.port), "-U", self.user, self.database]
        command = [str(EmbeddedPostgres.binary("pgbench")), "--initialize", "--quiet", "--scale=1", *where]
        made = subprocess.run(
            command, env=environment(self.password), capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        if made.returncode:
            raise BenchError(f"pgbench cannot make its tables: {made.stderr.strip()}")
        asyncio.run(self._spread_balances())

    async def _spread_balances(self) -> None:
        connection = await asyncpg.connect(self.postgres.dsn(database=self.database), timeout=10)
        try:
            await connection.execute(SPREAD_BALANCES)
            # In one piece again, and without a vacuum in the middle of a measurement.
            await connection.execute("VACUUM (FULL, ANALYZE) pgbench_accounts")
            await connection.execute("ALTER TABLE pgbench_accounts SET (autovacuum_enabled = off)")
            self.server_version = f"{connection.get_server_version().major}.{connection.get_server_version().minor}"
        finally:
            await connection.close()


def environment(password: str) -> dict[str, str]:
    """For libpq programs: nothing of the caller's settings, and no encryption, which neither side offers over TCP."""
    return {"PATH": os.defpath, "PGPASSWORD": password, "PGSSLMODE": "disable", "PGGSSENCMODE": "disable"}
