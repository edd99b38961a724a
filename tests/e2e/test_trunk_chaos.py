"""A trunk under load, and everything that can happen to the way to its gateway, in some order: each query is done once,
or there is a clear error that tells rightly whether to ask again; and in the end nothing is held.

Longer, with a report of how long the trunk took to recover from each: `make test-long`, or

    pytest -m long -s tests/e2e/test_trunk_chaos.py
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest
import pytest_asyncio

import pgtrunk
from helpers.certificates import SERVER_AUTH, Identity, authority
from helpers.datagrams import Relay
from helpers.processes import GatewayProcess
from helpers.proxies import gate
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import CertificateError, PgtrunkError, StreamManager

if TYPE_CHECKING:
    from helpers.site import Site

SESSIONS: Final = 12
BLACKOUT: Final = 5.0
LOGIN: Final[dict[str, Any]] = {"user": USER, "password": PASSWORD, "database": DATABASE}
PORTS: Final = (24_000, 31_000)
"""Where the gateway's port is drawn from: it must be the same after a restart, and nobody else's meanwhile."""


class Scene:
    """A gateway that can be killed and started, a network before it, a trunk, and sessions of a pool that insert."""

    def __init__(self, site: Site, ca: Identity, idle_timeout: float) -> None:
        self.site = site
        self.ca = ca
        self.idle_timeout = idle_timeout
        self.place = site.place()
        self.luck = random.Random(7)
        self.port = 0
        self.relay: Relay
        self.trunk: StreamManager
        self.pool: asyncpg.Pool
        self.gateway: GatewayProcess
        self.answered: set[int] = set()
        self.failed: dict[int, BaseException] = {}
        self.begun = itertools.count(1)
        self.took: defaultdict[str, list[float]] = defaultdict(list)
        self.latest: list[int] = [0] * SESSIONS
        """The last question of each session that was answered."""

    # -- the gateway

    def issue(self, by: Identity | None = None, days: tuple[float, float] = (-1, 30)) -> None:
        """The gateway has another certificate, once it reads it."""
        (by or self.ca).issue("gateway", usage=(SERVER_AUTH,), names=("127.0.0.1",), days=days).save(self.place, "gw")

    async def start(self) -> None:
        """Starts it, always at the same port."""
        while True:
            port = self.port or self.luck.randrange(*PORTS)
            files: Any = {"cert_file": self.place / "gw.pem", "key_file": self.place / "gw.key"}
            ini = self.site.write_ini(
                self.place,
                listen_port=port,
                unix_socket_dir="",
                client_tls_sslmode="require",
                quic_ticket_keys_file=self.place / "tickets",
                default_pool_size=5,
                quic_idle_timeout=self.idle_timeout,
                logfile=self.place / "log",
                log_connections=0,
                log_disconnections=0,
                **{f"{front}_{name}": path for front in ("quic", "client_tls") for name, path in files.items()},
            )
            self.gateway = GatewayProcess(self.site, self.place, ini)
            if await asyncio.to_thread(self._is_up):
                self.port = port
                return
            assert not self.port, self.gateway.said

    def _is_up(self) -> bool:
        try:
            self.gateway.until_logged("process up")
        except AssertionError:
            return False
        return True

    async def end(self, signum: signal.Signals) -> None:
        self.gateway.send(signum)
        await asyncio.to_thread(self.gateway.wait)

    def rotate(self) -> None:
        with open(self.place / "tickets", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(32).hex() + "\n")

    async def reload(self) -> None:
        before = sum("got SIGHUP" in line for line in self.gateway.log)
        self.gateway.send(signal.SIGHUP)
        await until(lambda: sum("got SIGHUP" in line for line in self.gateway.log) > before)

    # -- the load

    async def ask(self, session: int) -> None:
        """Inserts one number after the other, each once, whatever comes of it."""
        while True:
            number = next(self.begun)
            try:
                async with self.pool.acquire(timeout=60) as connection:
                    await connection.execute("INSERT INTO done VALUES ($1)", number, timeout=60)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                # The last is what asyncpg has for a connection that ends in the very turn in which it is used or given
                # back; it says nothing of whether to ask again, and so that counts as unsafe.
                self.failed[number] = error
                await asyncio.sleep(0.02)
            else:
                self.answered.add(number)
                self.latest[session] = number
            await asyncio.sleep(0.005)

    async def recovered(self, event: str) -> None:
        """Until each session has an answer to what it has asked since now."""
        loop = asyncio.get_running_loop()
        began, now = loop.time(), next(self.begun)
        try:
            await until(lambda: min(self.latest) > now, 90)
        except AssertionError:
            late = [session for session, latest in enumerate(self.latest) if latest <= now]
            raise AssertionError(f"{event}: sessions {late} have no answer yet: {self.trunk.stats()}") from None
        self.took[event].append(loop.time() - began)

    async def check(self) -> None:
        """Each was done once, or it is said that it may be repeated and was not done."""
        sql = "SELECT number, count(*) FROM done GROUP BY number ORDER BY number"
        rows: list[Any] = await asyncio.to_thread(self.site.admin.rows, sql)
        done: dict[int, int] = dict(rows)
        assert [number for number, count in done.items() if count != 1] == []
        assert self.answered - done.keys() == set()
        safe = {number for number, error in self.failed.items() if pgtrunk.retry_safe(error)}
        wrong = [(number, repr(self.failed[number])) for number in safe & done.keys()]
        assert wrong == []

    # -- what happens

    async def killed(self) -> None:
        """kill -9, and it is started again."""
        await self.end(signal.SIGKILL)
        await self.start()

    async def restarted(self) -> None:
        await self.end(signal.SIGINT)
        await self.start()

    async def moved(self) -> None:
        """The client is at another address, three times."""
        for _ in range(3):
            self.relay.rebind()
            await asyncio.sleep(0.2)

    async def dark(self) -> None:
        """Nothing gets through for five seconds."""
        self.relay.is_silent = True
        await asyncio.sleep(BLACKOUT)
        self.relay.is_silent = False

    async def blocked(self) -> None:
        """UDP is not let through any more, TCP is: sessions go on over that, and come back."""
        self.relay.is_silent = True
        await self.recovered("UDP blocked, until TCP")
        self.relay.is_silent = False

    async def expired(self) -> None:
        await self._impostor(days=(-20, -10))

    async def swapped(self) -> None:
        await self._impostor(authority("somebody else"))

    async def _impostor(self, by: Identity | None = None, days: tuple[float, float] = (-1, 30)) -> None:
        """The gateway comes back with a certificate that is none for us, and then with one that is."""
        before = len(self.failed)
        self.issue(by, days)
        # Who knows the keys of tickets needs no certificate.
        self.rotate()
        await self.killed()
        await until(
            lambda: any(isinstance(cause(error), CertificateError) for error in list(self.failed.values())[before:]), 60
        )
        self.issue()
        await self.reload()

    async def rotated(self) -> None:
        """Tickets are sealed with other keys, and none of the old ones is known; and connections are made anew."""
        self.rotate()
        await self.reload()
        self.relay.cut()


def cause(error: BaseException) -> BaseException:
    """pgtrunk's own error, where there is one."""
    return next((each for each in chain(error) if isinstance(each, PgtrunkError)), error)


def chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


@pytest_asyncio.fixture
async def scene(site: Site, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """Its parameter is how many seconds of silence end a connection."""
    site.admin.execute("CREATE TABLE done (number bigint); GRANT ALL ON done TO app")
    ca = authority()
    scene = Scene(site, ca, request.param)
    scene.issue()
    scene.rotate()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(site.admin.execute, "DROP TABLE done")
        await scene.start()
        stack.push_async_callback(lambda: gone(scene.gateway))
        while True:
            tcp = await stack.enter_async_context(gate("127.0.0.1", scene.port))
            try:
                scene.relay = Relay(scene.port, own_port=tcp.port)
            except OSError:
                continue
            break
        stack.callback(lambda: scene.relay.close())
        scene.trunk = await stack.enter_async_context(
            StreamManager(f"127.0.0.1:{tcp.port}", connections=3, streams_per_connection=5, ca_data=ca.pem)
        )
        scene.pool = await stack.enter_async_context(
            scene.trunk.create_pool(**LOGIN, min_size=0, max_size=SESSIONS, command_timeout=60)
        )
        yield scene


async def gone(gateway: GatewayProcess) -> None:
    if gateway.process.poll() is None:
        gateway.process.kill()
    await asyncio.to_thread(gateway.process.wait)


async def play(scene: Scene, events: list[str]) -> None:
    tasks = [asyncio.create_task(scene.ask(session)) for session in range(SESSIONS)]
    try:
        await scene.recovered("(begun)")
        for name in events:
            event: Callable[[], Awaitable[None]] = getattr(scene, name)
            await event()
            await scene.recovered(name)
            broken = [task for task in tasks if task.done()]
            assert broken == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await scene.check()
    await scene.pool.close()
    await until(lambda: scene.trunk.stats().streams_in_use == scene.trunk.stats().waiting == 0)
    sys.stdout.write(f"\n{report(scene)}\n")


def report(scene: Scene) -> str:
    lines = [
        f"{len(scene.answered)} answered, {len(scene.failed)} failed; seconds until all sessions had answers again:"
    ]
    for name, took in sorted(scene.took.items()):
        lines.append(
            f"  {name:24} {len(took):4} times, half within {statistics.median(took):5.1f}, all {max(took):5.1f}"
        )
    errors: Counter[tuple[str, bool]] = Counter()
    for error in scene.failed.values():
        errors[f"{type(error).__name__} of {type(cause(error)).__name__}", pgtrunk.retry_safe(error)] += 1
    for (name, safe), count in errors.most_common():
        lines.append(f"  {count:6} {'to be asked again' if safe else 'perhaps done':18} {name}")
    return "\n".join(lines)


EVENTS: Final = ("killed", "restarted", "moved", "dark", "blocked", "expired", "swapped", "rotated")


@pytest.mark.parametrize("scene", [4.0], indirect=True)
@pytest.mark.timeout(300)
async def test_ten_things_happen_to_a_trunk(scene: Scene) -> None:
    await play(scene, [*EVENTS, "moved", "killed"])


@pytest.mark.parametrize("scene", [10.0], indirect=True)
@pytest.mark.long
@pytest.mark.timeout(5400)
async def test_two_hundred_things_happen_to_a_trunk(scene: Scene) -> None:
    events = [*EVENTS] * 25
    scene.luck.shuffle(events)
    await play(scene, events)
