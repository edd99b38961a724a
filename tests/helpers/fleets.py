"""Fleets: with the supervisor in the test's own loop and real workers (`start_fleet`), or all of it as processes
(`fleet_process`). Whatever becomes of the test, no process is left behind, and that none was left is looked at.

Whoever uses `start_fleet` must not block the loop, in which the supervisor accepts connections: asyncpg, not psycopg.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import asyncpg
import pytest_asyncio

from helpers.processes import GatewayProcess
from helpers.site import DATABASE, PASSWORD, USER, Site
from helpers.waiting import until, until_blocking
from pgtrunk import StreamManager
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.fleet.board import Field
from pgtrunk_gateway.fleet.supervisor import Supervisor, worker_count

if TYPE_CHECKING:
    from helpers.gateways import Way

__all__ = ["FleetProcess", "LocalFleet", "StartFleet", "children", "fleet_process", "is_there", "start_fleet"]

_ASKED: Final = 20.0
"""Seconds in which a worker must answer."""


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that are there, or have ended and not been asked for."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return sorted(found)


def is_there(pid: int) -> bool:
    """Whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class LocalFleet:
    """A supervisor in this loop, its workers, and the sessions that the test has opened through them."""

    def __init__(self, site: Site, settings: Mapping[str, Any]) -> None:
        self.site = site
        self.place = site.place()
        self.ini = site.write_ini(self.place, **{"workers": 2, "logfile": self.place / "log", **settings})
        loaded = load(self.ini)
        self.supervisor = Supervisor(loaded, worker_count(loaded.config), quiet=True)
        self.connections: list[asyncpg.Connection] = []
        self.trunks: list[StreamManager] = []
        self.pids: set[int] = set()
        """Of all workers that were there when somebody looked."""

    # -- the ways in

    @property
    def port(self) -> int:
        return self.supervisor.sockets.port

    @property
    def quic_port(self) -> int:
        return int(self.supervisor.sockets.udp[0][0].getsockname()[1])

    def address(self, way: Way) -> dict[str, Any]:
        """Host and port, as asyncpg and psycopg take them."""
        return {"host": "127.0.0.1" if way == "tcp" else str(self.place), "port": self.port}

    def conninfo(self, way: Way, **options: Any) -> dict[str, Any]:
        """What libpq needs to log in."""
        login = {"user": USER, "password": PASSWORD, "dbname": DATABASE, "connect_timeout": 20}
        return {**self.address(way), "sslmode": "disable", "gssencmode": "disable", **login, **options}

    async def trunk(self, **settings: Any) -> StreamManager:
        """A new trunk to the QUIC front."""
        settings = {"ca_file": str(self.site.certificates.ca_cert), **settings}
        manager = StreamManager(f"127.0.0.1:{self.quic_port}", **settings)
        await manager.open()
        self.trunks.append(manager)
        return manager

    async def connect(self, way: Way = "tcp", **options: Any) -> asyncpg.Connection:
        """A session of the tests' user; over QUIC all of them share one trunk. Closed when the test is over."""
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20, **options}
        if way == "quic":
            trunk = self.trunks[0] if self.trunks else await self.trunk()
            connection = await trunk.connect(**login)
        else:
            connection = await asyncpg.connect(ssl=False, **self.address(way), **login)
        self.connections.append(connection)
        return connection

    # -- what is seen of it

    @property
    def log(self) -> str:
        """Of the workers."""
        path = self.place / "log"
        return path.read_text() if path.exists() else ""

    def spread(self) -> list[int]:
        """The sessions of each worker, as the board has them."""
        return [self.supervisor.board.read(index, Field.SESSIONS) for index in range(self.supervisor.count)]

    def pid(self, index: int) -> int:
        """Of the worker that serves now; 0: none does."""
        pid = self.supervisor.board.read(index, Field.PID)
        if pid:
            self.pids.add(pid)
        return pid

    def all_pids(self) -> list[int]:
        return [self.pid(index) for index in range(self.supervisor.count)]

    async def ask(self, index: int, kind: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a worker answers to the supervisor."""
        return await self.supervisor.workers[index].ask(kind, dict(body or {}), timeout=_ASKED)

    async def counters(self, index: int) -> dict[str, int]:
        return await self.ask(index, "counters")

    # -- what is done to it

    async def kill(self, index: int, signum: signal.Signals = signal.SIGKILL) -> int:
        """Kills a worker; returns its pid when the supervisor knows."""
        pid = self.pid(index)
        os.kill(pid, signum)
        await until(lambda: self.supervisor.board.read(index, Field.PID) != pid)
        return pid

    async def until_served(self) -> None:
        """Until each worker serves."""
        await until(lambda: all(self.all_pids()))

    async def close(self) -> None:
        """The sessions, then the fleet, at once."""
        if not self.supervisor.closed:
            self.all_pids()
        for connection in self.connections:
            connection.terminate()
        for trunk in self.trunks:
            await trunk.close()
        await self.supervisor.close()
        await until(lambda: not [pid for pid in self.pids if is_there(pid)])


class StartFleet(Protocol):
    def __call__(self, **settings: Any) -> Awaitable[LocalFleet]: ...


@pytest_asyncio.fixture
async def start_fleet(site: Site) -> AsyncIterator[StartFleet]:
    """Starts fleets of two workers, or as many as ``workers`` says; settings are those of gateway.ini."""
    tasks = asyncio.all_tasks()
    fleets: list[LocalFleet] = []

    async def start(**settings: Any) -> LocalFleet:
        fleet = LocalFleet(site, settings)
        await fleet.supervisor.start()
        fleets.append(fleet)
        fleet.all_pids()
        return fleet

    try:
        yield start
    finally:
        for fleet in fleets:
            await fleet.close()
    for fleet in fleets:
        assert "Traceback" not in fleet.log, fleet.log
    await until(lambda: not site.admin.backends())
    left = asyncio.all_tasks() - tasks - {asyncio.current_task()}
    assert not left, f"tasks left: {left}"
    gc.collect()


class FleetProcess(GatewayProcess):
    """A supervisor as a process, with its workers."""

    @property
    def workers(self) -> list[int]:
        """Their pids."""
        return children(self.process.pid)

    def clear_away(self) -> None:
        """Kills whatever is left of it."""
        pids = self.workers
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def fleet_process(
    site: Site,
    *arguments: str,
    place: Path | None = None,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> Iterator[FleetProcess]:
    """A fleet of two workers, or as many as ``workers`` says; it is killed at the end if it still runs."""
    place = place or site.place()
    ini = site.write_ini(place, **{"workers": 2, **settings})
    fleet = FleetProcess(site, place, ini, arguments, environment)
    pids: list[int] = []
    try:
        yield fleet
        pids = fleet.workers
        assert "Traceback" not in fleet.said, fleet.said
    finally:
        fleet.clear_away()
    until_blocking(lambda: not [pid for pid in pids if is_there(pid)])
