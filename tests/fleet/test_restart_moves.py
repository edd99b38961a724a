"""Online restarts while an application works over a pool: its sessions move to the next gateway, and the old one ends
by itself, though nobody has closed anything."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from helpers.fleets import FleetProcess
from helpers.pool_load import PoolLoad
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until_blocking
from pgtrunk import StreamManager

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.site import Site

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE}
STARTS = 100.0
"""Seconds in which a gateway must serve."""


def free_port() -> int:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        port: int = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
    return port


def started(site: Site, place: Path, port: int, workers: int, *arguments: str) -> FleetProcess:
    ini = site.write_ini(place, workers=workers, pidfile=place / "pid", listen_port=port, max_client_conn=300)
    fleet = FleetProcess(site, place, ini, arguments)
    until_blocking(lambda: "process up: pgtrunk-gateway " in fleet.said or fleet.process.poll() is not None, STARTS)
    fleet.until_logged("process up: pgtrunk-gateway ")
    return fleet


@pytest.mark.timeout(240)
async def test_sessions_of_pools_move_to_the_next_gateway(site: Site) -> None:
    place, port = site.place(), free_port()
    fleets = [await asyncio.to_thread(started, site, place, port, 2)]
    try:
        trunk = StreamManager(
            f"127.0.0.1:{port}", ca_file=str(site.certificates.ca_cert), connections=2, streams_per_connection=6
        )
        async with trunk, trunk.create_pool(**LOGIN, min_size=4, max_size=10, timeout=60) as pool:
            load = PoolLoad(pool, 12)
            await load.progress()
            for workers in (3, 2):
                fleets.append(await asyncio.to_thread(started, site, place, port, workers, "-R"))
                await load.progress()
                assert await asyncio.to_thread(fleets[-2].wait) == 0
                await load.progress()
            await load.end()
            stats = trunk.stats()
            assert stats.goaways >= 2
            assert stats.sessions_moved >= 8
            assert (stats.connections_lost, stats.streams_lost) == (0, 0)
        fleets[-1].send(signal.SIGQUIT)
        for fleet in fleets:
            assert await asyncio.to_thread(fleet.wait) == 0, fleet.said
            assert "Traceback" not in fleet.said, fleet.said
    finally:
        for fleet in fleets:
            with contextlib.suppress(ProcessLookupError):
                fleet.clear_away()
    await asyncio.to_thread(until_blocking, lambda: not site.admin.backends())
