"""Online restart: the next gateway takes over the sockets under load, with another number of workers; nobody is
refused, no query is lost, and the old one leaves when its clients have left."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from helpers.fleets import FleetProcess, is_there
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until, until_blocking
from pgtrunk import StreamManager
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from helpers.site import Site

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
STARTS = 100.0
"""Seconds in which a gateway must serve."""
PLACES = 6
"""Backends that Postgres may see."""


def free_port() -> int:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        port: int = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
    return port


class Line:
    """Gateways, one after the other, at the same ports."""

    def __init__(self, site: Site, **settings: Any) -> None:
        self.site = site
        self.place = site.place()
        self.port = free_port()
        self.settings = {
            "pidfile": self.place / "pid",
            "listen_port": self.port,
            "max_db_connections": PLACES,
            "max_client_conn": 300,
            **settings,
        }
        self.fleets: list[FleetProcess] = []

    def start(self, workers: int, *arguments: str, environment: dict[str, str] | None = None) -> FleetProcess:
        """The next one, once it serves."""
        ini = self.site.write_ini(self.place, **{"workers": workers, **self.settings})
        fleet = FleetProcess(self.site, self.place, ini, arguments, environment)
        self.fleets.append(fleet)
        return fleet

    def started(self, workers: int, *arguments: str) -> FleetProcess:
        fleet = self.start(workers, *arguments)
        # Under load it may take as long as all of its workers need to start on a core or two.
        until_blocking(lambda: "process up: pgtrunk-gateway " in fleet.said or fleet.process.poll() is not None, STARTS)
        fleet.until_logged("process up: pgtrunk-gateway ")
        return fleet

    @property
    def running(self) -> list[FleetProcess]:
        return [fleet for fleet in self.fleets if fleet.process.poll() is None]

    def connect(self, way: str = "tcp", **options: Any) -> psycopg.Connection:
        host = "127.0.0.1" if way == "tcp" else str(self.place)
        login = {"user": USER, "password": PASSWORD, "dbname": DATABASE, "connect_timeout": 20, "sslmode": "disable"}
        return psycopg.connect(host=host, port=self.port, gssencmode="disable", autocommit=True, **{**login, **options})

    def trunk(self, **settings: Any) -> StreamManager:
        return StreamManager(f"127.0.0.1:{self.port}", ca_file=str(self.site.certificates.ca_cert), **settings)

    def end(self) -> None:
        """The newest ends, and with it all."""
        for fleet in reversed(self.running):
            fleet.send(signal.SIGQUIT)
        for fleet in self.fleets:
            assert fleet.wait() == 0, fleet.said
            assert "Traceback" not in fleet.said, fleet.said


@pytest.fixture
def line(site: Site) -> Iterator[Line]:
    line = Line(site)
    pids: list[int] = []
    try:
        yield line
        pids = [pid for fleet in line.running for pid in fleet.workers]
        line.end()
    finally:
        for fleet in line.fleets:
            fleet.clear_away()
    until_blocking(lambda: not [pid for pid in pids if is_there(pid)])
    until_blocking(lambda: not line.site.admin.backends())


# -- what each side sees -----------------------------------------------------------------------------------------------


def test_sessions_stay_and_others_come(line: Line) -> None:
    old = line.started(2)
    with line.connect() as idle, line.connect("unix") as busy:
        busy.execute("BEGIN")
        pid = busy.execute("SELECT pg_backend_pid()").fetchone()
        new = line.started(3, "-R")
        assert (line.place / "pid").read_text() == f"{new.process.pid}\n"
        old.until_logged("going on here until all clients have left")
        for way in ("tcp", "unix"):
            with line.connect(way) as late:
                assert late.execute("SELECT 1").fetchone() == (1,)
        assert idle.execute("SELECT 2").fetchone() == (2,)
        assert busy.execute("SELECT pg_backend_pid()").fetchone() == pid
        busy.execute("COMMIT")
        assert old.process.poll() is None
    assert old.wait() == 0
    assert len(new.workers) == 3
    with line.connect("unix") as late:
        assert late.execute("SELECT 1").fetchone() == (1,)
    assert new.stop(signal.SIGTERM) == 0
    assert {path.name for path in line.place.iterdir()} == {"gateway.ini", "userlist.txt", "output.0", "output.1"}


def test_with_nobody_to_follow_it_starts_as_always(line: Line) -> None:
    fleet = line.started(2, "-R")
    fleet.until_logged("-R: no gateway of several workers runs here")
    with line.connect() as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_a_gateway_without_workers_cannot_be_followed(line: Line) -> None:
    old = line.started(1)
    new = line.start(2, "-R")
    assert new.wait() == 1
    assert f"pid {old.process.pid} runs already" in new.said
    line.fleets.remove(new)
    assert old.stop() == 0


def test_one_that_listens_elsewhere_is_refused_and_nothing_has_changed(line: Line) -> None:
    old = line.started(2)
    line.settings["listen_addr"] = "127.0.0.2"
    new = line.start(2, "-R")
    assert new.wait() == 1
    assert "listen_addr" in new.said and "restart without -R" in new.said
    line.fleets.remove(new)
    with line.connect() as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    assert old.process.poll() is None


def test_one_that_cannot_start_leaves_the_old_one_as_it_was(line: Line) -> None:
    old = line.started(2)
    line.settings["quic_key_file"] = line.site.certificates.ca_cert
    with line.connect() as session:
        new = line.start(3, "-R")
        assert new.wait() == 1
        line.fleets.remove(new)
        with line.connect() as late:
            assert late.execute("SELECT 1").fetchone() == session.execute("SELECT 1").fetchone()
    del line.settings["quic_key_file"]
    line.started(3, "-R")
    assert old.wait() == 0


def test_what_was_paused_stays_so_and_resumes_everywhere(line: Line) -> None:
    line.settings |= {"admin_users": USER}
    old = line.started(2)
    with line.connect() as session:
        session.execute("SELECT 1")
        with line.connect(dbname="pgbouncer") as console:
            console.execute("PAUSE")
        line.started(2, "-R")
        with line.connect(dbname="pgbouncer") as console:
            with pytest.raises(psycopg.Error, match="already suspended/paused"):
                console.execute("PAUSE")
            console.execute("RESUME")
        assert session.execute("SELECT 1").fetchone() == (1,)
        with line.connect() as late:
            assert late.execute("SELECT 1").fetchone() == (1,)
    assert old.wait() == 0


def test_a_service_manager_is_told_who_it_is_now(line: Line) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(line.place / "notify"))
        manager.settimeout(30)
        environment = {"NOTIFY_SOCKET": str(line.place / "notify")}
        line.start(2, environment=environment)
        assert manager.recv(100) == b"READY=1"
        new = line.start(2, "-R", environment=environment)
        told = {manager.recv(100), manager.recv(100)}
        assert told == {f"MAINPID={new.process.pid}".encode(), f"READY=1\nMAINPID={new.process.pid}".encode()}


def test_cancels_find_sessions_that_stayed(line: Line) -> None:
    line.started(2)
    with line.connect() as session:
        session.execute("SELECT 1")
        line.started(3, "-R")

        def cancel() -> None:
            until_blocking(lambda: line.site.admin.running("pg_sleep"))
            session.cancel_safe()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            session.execute("SELECT pg_sleep(60)")
        thread.join()


# -- QUIC --------------------------------------------------------------------------------------------------------------


async def test_quic_sessions_stay_where_they_are(line: Line) -> None:
    old = await asyncio.to_thread(line.started, 2)
    async with contextlib.AsyncExitStack() as stack:
        sessions = []
        for _ in range(6):
            trunk = await stack.enter_async_context(line.trunk(connections=1))
            sessions.append((trunk, await trunk.connect(**LOGIN)))
        transactions = [session.transaction() for _, session in sessions]
        for transaction in transactions:
            await transaction.start()
        pids = [await session.fetchval("SELECT pg_backend_pid()") for _, session in sessions]
        for workers in (3, 2):
            new = await asyncio.to_thread(line.started, workers, "-R")
            assert [await session.fetchval("SELECT pg_backend_pid()") for _, session in sessions] == pids
            async with line.trunk(connections=1) as trunk:
                # The old gateway has all places; it gives one up for this, when it can.
                coming = asyncio.ensure_future(trunk.connect(**LOGIN))
                await asyncio.sleep(0.2)
                assert not coming.done()
                await transactions[0].commit()
                late = await coming
                assert await late.fetchval("SELECT 1") == 1
                await late.close()
                transactions[0] = sessions[0][1].transaction()
                await transactions[0].start()
                pids[0] = await sessions[0][1].fetchval("SELECT pg_backend_pid()")
        for transaction in transactions:
            await transaction.commit()
        assert old.process.poll() is None
        # What a trunk opens now is at the newest gateway, wherever its other sessions are.
        for trunk, session in sessions:
            another = await trunk.connect(**LOGIN)
            assert await another.fetchval("SELECT 3") == 3
            await another.close()
            await session.close()
    assert await asyncio.to_thread(old.wait) == 0
    await until(lambda: len(line.running) == 1)
    assert new in line.running


# -- under load --------------------------------------------------------------------------------------------------------


class Load:
    """Clients that come, ask for a while, and go, over TCP, unix and QUIC; and pgbench that connects for each
    transaction. Whatever fails is a fault."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.over = False
        self.faults: list[str] = []
        self.served: dict[str, int] = {"tcp": 0, "unix": 0, "quic": 0}
        self.backends: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._pgbench: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Load:
        line = self.line
        for way in ("tcp", "tcp", "unix", "quic", "quic"):
            self._tasks.append(asyncio.create_task(self._come_and_go(way)))
        self._tasks.append(asyncio.create_task(self._watch()))
        (line.place / "script.sql").write_text("SELECT 1;\n")
        self._pgbench = await asyncio.create_subprocess_exec(
            str(EmbeddedPostgres.binary("pgbench")),
            *("-h", "127.0.0.1", "-p", str(line.port), "-U", USER, "-n", "-C", "-c", "4", "-T", "100000"),
            *("-f", str(line.place / "script.sql"), DATABASE),
            env={"PGPASSWORD": PASSWORD, "PGSSLMODE": "disable", "PGGSSENCMODE": "disable"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        await self.progress()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.over = True
        process = self._pgbench
        assert process is not None
        if process.returncode is not None:
            self.faults.append(f"pgbench has ended: {process.returncode}")
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        printed: bytes = (await process.communicate())[0]
        if b"error" in printed or b"FATAL" in printed or b"aborted" in printed:
            self.faults.append(printed.decode())
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)
        (self.line.place / "script.sql").unlink()

    async def progress(self, more: int = 3) -> None:
        """Returns when so many have been served by each way, or something went wrong."""
        goal = {way: count + more for way, count in self.served.items()}
        await until(lambda: self.faults or all(self.served[way] >= goal[way] for way in goal))

    async def _come_and_go(self, way: str) -> None:
        for number in itertools.count():
            if self.over:
                return
            try:
                async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
                    if way == "quic":
                        trunk = await stack.enter_async_context(self.line.trunk(connections=1))
                        session = await trunk.connect(**LOGIN)
                    else:
                        host = "127.0.0.1" if way == "tcp" else str(self.line.place)
                        session = await asyncpg.connect(host=host, port=self.line.port, ssl=False, **LOGIN)
                    for _ in range(10):
                        assert await session.fetchval("SELECT $1::int", number) == number
                        async with session.transaction():
                            pids = [await session.fetchval("SELECT pg_backend_pid()") for _ in range(2)]
                            assert pids[0] == pids[1]
                        await asyncio.sleep(0.01)
                    await session.close()
                self.served[way] += 1
            except Exception as error:
                self.faults.append(f"{way}: {error!r}, {error.__cause__!r}")
                return

    async def _watch(self) -> None:
        while not self.over:
            self.backends.append(len(await asyncio.to_thread(self.line.site.admin.backends)))
            await asyncio.sleep(0.05)


async def restarts(line: Line, workers: list[int]) -> None:
    await asyncio.to_thread(line.started, workers[0])
    async with Load(line) as load:
        for count in workers[1:]:
            await asyncio.to_thread(line.started, count, "-R")
            await load.progress()
            assert not load.faults, load.faults
            # Only so many may be leaving at a time.
            await until(lambda: len(line.running) <= 2)
    assert not load.faults, load.faults
    assert 0 < max(load.backends) <= PLACES
    await until(lambda: len(line.running) == 1)
    assert len(line.running[0].workers) == workers[-1]


@pytest.mark.timeout(240)
async def test_three_restarts_under_load(line: Line) -> None:
    await restarts(line, [2, 3, 2, 2])


@pytest.mark.long
@pytest.mark.timeout(1500)
async def test_twenty_restarts_under_load(line: Line) -> None:
    await restarts(line, [2, *[3, 2, 4, 1, 2] * 4])
