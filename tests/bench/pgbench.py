"""``pgbench -S`` against a pooler: transactions per second, and the pooler's CPU for each."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.errors import BenchError
from bench.site import BenchSite, environment
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["CLIENTS", "Run", "run"]

CLIENTS = 20
_EDGE = 0.5
"""Seconds at either end, in which clients come and go, that are left out of the CPU time;"""
_EDGE_PER_CLIENT = 0.02
"""or as many, where there are more of them: each has to log in."""
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Run:
    """``us``: microseconds of the pooler's CPU per transaction."""

    tps: float
    us: float


def run(
    site: BenchSite,
    port: int,
    mode: str,
    cpu: Callable[[], float],
    *,
    seconds: float,
    clients: int = CLIENTS,
    version: str | None = None,
    reconnects: bool = False,
) -> Run:
    """One run against the pooler at ``port``, whose CPU seconds ``cpu`` tells. ``mode``: pgbench's --protocol.

    ``version``: of the protocol, and no other; None: libpq's own choice. ``reconnects``: for each transaction, whose
    cost is then mostly that of a connection. Raises :class:`BenchError` where a transaction failed.
    """
    edge = max(_EDGE, clients * _EDGE_PER_CLIENT)
    total = max(1, round(seconds + 2 * edge))
    command = [str(EmbeddedPostgres.binary("pgbench")), "--select-only", "--no-vacuum", f"--protocol={mode}"]
    command += [f"--client={clients}", "--jobs=1", f"--time={total}", *(["--connect"] if reconnects else [])]
    command += ["-h", "127.0.0.1", "-p", str(port), "-U", site.user, site.database]
    settings = environment(site.password)
    if version is not None:
        settings |= {"PGMINPROTOCOLVERSION": version, "PGMAXPROTOCOLVERSION": version}
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            time.sleep(edge)
            used, began = cpu(), time.perf_counter()
            time.sleep(max(0.2, total - 2 * edge))
            used, elapsed = cpu() - used, time.perf_counter() - began
            output, errors = process.communicate(timeout=_PATIENCE)
        finally:
            process.kill()
    tps = _tps(output)
    if process.returncode or tps is None:
        raise BenchError(f"pgbench --protocol={mode} failed: {errors.strip() or output.strip()}")
    return Run(tps, used / elapsed / tps * 1e6)


def _tps(output: str) -> float | None:
    """Of a report without failed transactions."""
    found = re.search(
        r"^tps = ([\d.]+) \((without initial connection|including reconnection) time", output, re.MULTILINE
    )
    failed = re.search(r"^number of failed transactions: (\d+)", output, re.MULTILINE)
    if found is None or failed is None or failed[1] != "0":
        return None
    return float(found[1])
