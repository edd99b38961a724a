"""The supervisor's face and its workers in one loop: buses over socket pairs, and gateways that open no fronts.

What is missing beside a fleet of processes is what these have nothing to do with: sockets, the acceptor, back-off.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.consoles import Visitor, rows
from helpers.waiting import until
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.console.session import ConsoleSession
from pgtrunk_gateway.fleet.board import Board
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.charter import Charter, Secrets
from pgtrunk_gateway.fleet.face import Face
from pgtrunk_gateway.fleet.fleet import Fleet
from pgtrunk_gateway.fleet.hub import Hub
from pgtrunk_gateway.fleet.member import Member
from pgtrunk_gateway.fleet.teller import Teller
from pgtrunk_gateway.gateway import Gateway

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.supervisor import Part

__all__ = ["Crew", "Worker", "ask", "look"]

DATABASES = "shop = host=127.0.0.1 port=1\nother = host=127.0.0.1 port=1\n"


class Worker:
    """One of them: its gateway, and the two ends of its bus."""

    def __init__(self, crew: Crew, index: int) -> None:
        self.crew = crew
        self.index = index
        self.ours = Bus(f"worker {index}")
        self.theirs = Bus("the supervisor")
        self.visitors: list[Visitor] = []
        self.gateway: Gateway

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        crew = self.crew
        for part in crew.parts:
            part.enters(self.index, self.ours)
        crew.hub.serve(self.index, self.ours)
        self.ours.on("shutdown", lambda body: crew.shutdowns.append(body["patience"]))
        for bus, sock in ((self.ours, ours), (self.theirs, theirs)):
            await loop.create_unix_connection(lambda bus=bus: bus, sock=sock)  # type: ignore[misc]

    def begin(self, standing: Body) -> None:
        """The gateway is made, as ``standing`` has it, and not yet in the company."""
        crew = self.crew
        charter = Charter(
            index=self.index,
            count=crew.count,
            generation=3,
            ini=str(crew.ini),
            quiet=True,
            verbose=0,
            secrets=Secrets(quic_keys=(b"q" * 32,), mock_key=b"m" * 32),
            tcp=(),
            tcp_port=0,
            unix=(),
            udp=(),
            forward_in=-1,
            forward_out={},
            hand=-1,
            board=crew.board.descriptor,
            standing=standing,
        )
        fleet = Fleet(charter, Member(self.index, crew.count, self.theirs, 3), crew.board)
        self.gateway = Gateway(crew.face.standing.loaded(str(crew.ini)), None, fleet)

    async def join(self) -> None:
        """It serves."""
        assert self.gateway.deeds is not None and self.gateway.voice is not None
        await self.gateway.deeds.join()
        self.gateway.voice.start()
        self.crew.workers[self.index] = self

    @property
    def settings(self) -> Any:
        return self.gateway.config

    async def enter(self) -> Visitor:
        """An administrator at this worker's console."""
        visitor = Visitor(self.gateway)  # type: ignore[arg-type]  # it has a context, as a Room has
        self.visitors.append(visitor)
        await visitor.send(StartupMessage(parameters={"user": "boss", "database": "pgbouncer"}).encode())
        await until(lambda: isinstance(visitor.transport.get_protocol(), ConsoleSession))
        return visitor

    async def die(self) -> None:
        """Its bus ends, as that of a process does; what was its own is gone."""
        self.crew.workers.pop(self.index, None)
        self.theirs.close()
        await self.ours.wait_closed()
        for part in self.crew.parts:
            part.leaves(self.index)
        for visitor in self.visitors:
            visitor.leave()
        await self.gateway.close()
        await self.theirs.wait_closed()


class Crew:
    """A fleet of ``count`` workers; ``settings`` are those of its gateway.ini."""

    def __init__(self, folder: Path, count: int = 2, **settings: Any) -> None:
        self.folder = folder
        self.ini = folder / "gateway.ini"
        self.count = count
        self.write(**settings)
        self.workers: dict[int, Worker] = {}
        self.shutdowns: list[int] = []
        self.board = Board.create(count)
        self.face = Face(load(self.ini))
        self.teller = Teller(lambda: 1.0)
        self.parts: tuple[Part, ...] = (self.face, self.teller)
        self.hub = Hub(lambda: {index: worker.ours for index, worker in self.workers.items()})

    def write(self, text: str = "", databases: str = DATABASES, **settings: Any) -> None:
        """Another gateway.ini, whose last lines are ``text``."""
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        self.ini.write_text(
            f"[databases]\n{databases}[pgtrunk]\nauth_type = trust\nlisten_addr = 127.0.0.1\nadmin_users = boss\n"
            f"{lines}{text}"
        )
        self.ini.chmod(0o600)

    async def __aenter__(self) -> Crew:
        for index in range(self.count):
            await self.hire(index)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.face.close()
        for worker in list(self.workers.values()):
            await worker.die()
        await self.teller.close()
        self.board.close()
        # Tasks that were cancelled end now.
        await until(lambda: not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    async def hire(self, index: int) -> Worker:
        """A worker that joins the others."""
        worker = Worker(self, index)
        await worker.connect()
        worker.begin(self.face.standing.as_body())
        await worker.join()
        return worker

    def __getitem__(self, index: int) -> Worker:
        return self.workers[index]

    @property
    def states(self) -> list[str]:
        """Of the workers, as each of them has it."""
        return [worker.gateway.operations.state for _, worker in sorted(self.workers.items())]


async def ask(visitor: Visitor, sql: str) -> bytes:
    """Its answer, however long the others take for theirs."""
    visitor.transport.take()
    answer = b""
    session = visitor.session
    session.data_received(client.query(sql.encode()))

    def answered() -> bool:
        nonlocal answer
        answer += visitor.transport.take()
        return any(chr(kind) == "Z" for kind, _, _ in messages(answer))

    await until(answered)
    return answer


async def look(visitor: Visitor, sql: str) -> list[dict[str, str | None]]:
    """The rows of its answer."""
    return rows(await ask(visitor, sql))
