"""pgbench through the gateway: nothing fails, and Postgres never sees more backends than the pool has."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import pytest

from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

CLIENTS, BACKENDS = 50, 5


async def pgbench(gateway: LocalGateway, way: Way, *options: str) -> str:
    """Runs it to its end and gives what it printed."""
    address = gateway.address(way)
    process = await asyncio.create_subprocess_exec(
        str(EmbeddedPostgres.binary("pgbench")),
        *("-h", str(address["host"]), "-p", str(address["port"]), "-U", USER, *options, DATABASE),
        env={"PGPASSWORD": PASSWORD, "PGSSLMODE": "disable", "PGGSSENCMODE": "disable"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(50):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.fixture(params=["simple", "extended", "prepared"])
def mode(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.mark.parametrize("way", ["tcp", "unix"])
async def test_fifty_clients_on_five_backends(start: Start, way: Way, mode: str) -> None:
    gateway = await start(default_pool_size=BACKENDS, max_client_conn=CLIENTS + 10)
    await pgbench(gateway, way, "-i", "-q")
    running = asyncio.create_task(
        pgbench(gateway, way, "-S", "-M", mode, "-c", str(CLIENTS), "-j", "2", "-t", "40", "-n")
    )
    most = 0
    while not running.done():
        most = max(most, len(await asyncio.to_thread(gateway.site.admin.backends)))
        await asyncio.sleep(0.02)
    output = await running
    assert f"number of transactions actually processed: {CLIENTS * 40}/{CLIENTS * 40}" in output
    assert "number of failed transactions: 0 " in output
    assert 0 < most <= BACKENDS
