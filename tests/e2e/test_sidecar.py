"""psql, pgbench and psycopg through `pgtrunk sidecar`, a process of its own, and a real gateway."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from helpers.sidecars import program, run_program, sidecar_process
from helpers.site import USER
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.gateways import Start


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
async def test_psql(start: Start, host: str | None) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        told = await run_program("psql", sidecar, "-XAt", "-c", "SELECT current_user", host=host)
        assert told == (0, f"{USER}\n", ""), (told, sidecar.log)
        await until(lambda: gateway.counts(sessions=0))


async def test_pgbench(start: Start) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        code, _, err = await run_program("pgbench", sidecar, "-i", "-s", "1", "-q")
        assert code == 0, err
        code, out, err = await run_program("pgbench", sidecar, "-M", "prepared", "-c", "20", "-t", "20")
        assert code == 0, err
        assert "transactions actually processed: 400/400" in out
        assert "failed transactions: 0 " in out
