"""Clients of a fleet that ask without end, and begin anew when their session fails: what failed, and on what worker."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager
from pgtrunk_gateway.console.registry import SHOWS
from pgtrunk_gateway.fleet.member import HEARD
from pgtrunk_gateway.quic.connection_id import bucket_of

if TYPE_CHECKING:
    from types import TracebackType

    from helpers.fleets import LocalFleet
    from helpers.gateways import Way

__all__ = ["Client", "Crowd", "Failure"]

_ANSWERS: Final = 20.0
"""Seconds in which a query must have been answered, or have failed."""
_FAULTS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


@dataclass(slots=True)
class Failure:
    """Of a session, at whatever it did."""

    client: Client
    worker: int | None
    """Whose it was, by the last :meth:`Crowd.locate`; None: it began behind that."""
    error: BaseException


class Client:
    """One session after the other; over QUIC each client has a trunk of its own, of one connection."""

    def __init__(self, crowd: Crowd, way: Way) -> None:
        self.way = way
        self.session: asyncpg.Connection | None = None
        self.worker: int | None = None
        self.answers = 0
        self._crowd = crowd
        self._trunk: StreamManager | None = None

    @property
    def port(self) -> int:
        """The client's end, as SHOW CLIENTS has it."""
        assert self.session is not None
        return int(self.session._transport.get_extra_info("sockname")[1])

    def bucket(self) -> int:
        """Of the connection id that its packets go to."""
        assert self.session is not None
        return bucket_of(self.session._transport.get_extra_info("quic_connection").quic._peer_cid.cid)

    async def live(self) -> None:
        """Until the crowd ends."""
        crowd = self._crowd
        try:
            while not crowd.over:
                await crowd.door.wait()
                try:
                    async with crowd.arriving():
                        self.session = await self._connect()
                    await self._ask()
                except _FAULTS as error:
                    crowd.failures.append(Failure(self, self.worker, error))
                finally:
                    if self.session is not None:
                        self.session.terminate()
                    self.session = self.worker = None
        finally:
            if self._trunk is not None:
                await self._trunk.close()

    async def _connect(self) -> asyncpg.Connection:
        fleet = self._crowd.fleet
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": _ANSWERS}
        if self.way != "quic":
            return await asyncpg.connect(ssl=False, **fleet.address(self.way), **login)
        if self._trunk is None:
            self._trunk = StreamManager(
                f"127.0.0.1:{fleet.quic_port}", ca_file=str(fleet.site.certificates.ca_cert), connections=1
            )
            await self._trunk.open()
        return await self._trunk.connect(**login)

    async def _ask(self) -> None:
        session, number = self.session, 0
        assert session is not None
        while not self._crowd.over:
            number += 1
            async with asyncio.timeout(_ANSWERS):
                assert await session.fetchval("SELECT $1::int", number) == number
                async with session.transaction():
                    pids = [await session.fetchval("SELECT pg_backend_pid()") for _ in range(2)]
            assert pids[0] == pids[1]
            self.answers += 1
            await asyncio.sleep(self._crowd.pause)


class Crowd:
    """``async with Crowd(fleet, ways)``: a client for each of ``ways``, all asking. ``pause``: seconds between two
    questions of one."""

    def __init__(self, fleet: LocalFleet, ways: tuple[Way, ...], pause: float = 0.01) -> None:
        self.fleet = fleet
        self.pause = pause
        self.clients = [Client(self, way) for way in ways]
        self.failures: list[Failure] = []
        self.over = False
        self.door = asyncio.Event()
        """Whether sessions may begin."""
        self.door.set()
        self._arriving = 0
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def arriving(self) -> Any:
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    @property
    def settled(self) -> bool:
        """Whether nobody is about to come in."""
        return not self._arriving

    @property
    def here(self) -> int:
        """Clients with a session."""
        return sum(client.session is not None for client in self.clients)

    async def __aenter__(self) -> Crowd:
        self._tasks = [asyncio.create_task(client.live()) for client in self.clients]
        await until(self._all_here)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over = True
        self.door.set()
        _, stuck = await asyncio.wait(self._tasks, timeout=2 * _ANSWERS)
        for task in stuck:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            assert not stuck
            assert not [result for result in results if result is not None]

    def _all_here(self) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        return self.here == len(self.clients) and self.settled

    async def all_here(self) -> None:
        """Returns when everybody has a session."""
        await until(self._all_here)

    async def progress(self, answers: int = 3) -> None:
        """Returns when each client has been answered that often, or has no session."""
        goals = [(client, client.session, client.answers + answers) for client in self.clients]
        await until(lambda: all(each.answers >= goal or each.session is not was for each, was, goal in goals))

    async def locate(self) -> dict[int, list[Client]]:
        """Who is on which worker. Nobody may come in meanwhile."""
        index_of_port: dict[int, int] = {}
        show = SHOWS["CLIENTS"]
        names = [column.name for column in show.columns]
        at = names.index("port")
        for index in range(self.fleet.supervisor.count):
            answer = await self.fleet.ask(index, HEARD, {"kind": "show", "body": {"show": "CLIENTS"}, "from": -1})
            index_of_port |= {int(row[at]): index for row in answer["rows"]}
        found: dict[int, list[Client]] = {index: [] for index in range(self.fleet.supervisor.count)}
        for client in self.clients:
            if client.session is None:
                continue
            if client.way == "quic":
                client.worker = client.bucket() % self.fleet.supervisor.count
            else:
                client.worker = index_of_port[client.port]
            found[client.worker].append(client)
        return found
