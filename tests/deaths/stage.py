"""What every cell of the matrix is played on: a database, a gateway, a client in its state, a bystander.

A stage knows how a state is entered and how it is seen that it has been; who dies, and how, is in `rows`. Stages share
a PostgreSQL and nothing else, so that the states of a row can be played at the same time.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from deaths.bystander import OTHER, Bystander
from deaths.clients import ApplicationTask
from helpers.gateways import LocalGateway
from helpers.processes import GatewayProcess, gateway_process
from helpers.proxies import Gate, gate
from helpers.sidecars import SidecarProcess, sidecar_process
from helpers.site import DATABASE, USER, Admin, Site
from helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deaths.clients import Client

__all__ = ["SILENCE", "Stage"]

SILENCE: Final = 3.0
"""quic_idle_timeout, in seconds: what many rows wait for. A third of it is the time between two PINGs, which a busy
machine must be able to keep."""
_TABLE: Final = "DROP TABLE IF EXISTS deaths; CREATE TABLE deaths (n int); INSERT INTO deaths VALUES (0)"


class Stage(AsyncExitStack):
    """``async with Stage(site, database, state) as stage``; what it opens ends with it."""

    def __init__(self, shared: Site, database: str, state: str, starting: asyncio.Semaphore) -> None:
        super().__init__()
        self.starting = starting
        """Lets few processes start at a time, so that those of a whole row do not keep each other from it."""
        self.site = Site(shared.postgres, shared.certificates, shared.place(), Admin(shared.postgres, database))
        self.callback(lambda: self.site.admin.close())
        self.state = state
        self.pids: set[int] = set()
        """The backends of the pool that the client uses, before anybody dies."""
        self.client: Client
        self.bystander: Bystander
        self.process: GatewayProcess
        """The gateway, if it is one that dies."""
        self.gateway: LocalGateway
        """Else this one; and beside the other one the gateway of the bystander."""
        self.gate: Gate | None = None
        self.port = 0
        """Where the client's gateway listens, for QUIC."""
        self._address: dict[str, Any] = {}
        self._gateways: list[LocalGateway] = []
        self._holder: asyncpg.Connection | None = None

    # -- who is there

    async def prepare(self) -> None:
        """The table, the way to Postgres, the bystander and its gateway."""
        self.site.admin.execute(_TABLE)
        self.site.admin.execute("GRANT ALL ON deaths TO PUBLIC")
        await self._start_gateway()
        self.bystander = await self.enter_async_context(Bystander(await self.gateway.connect("tcp", database=OTHER)))

    async def _start_gateway(self, **settings: Any) -> None:
        gateway = LocalGateway(self.site, {**await self._settings(), **settings})
        self.push_async_callback(gateway.close)
        await gateway.gateway.start()
        self._gateways.append(gateway)
        self.gateway = gateway
        self._meet(gateway.quic.port, gateway.address("tcp"))

    async def prepare_process(self) -> None:
        """Beside the bystander's a gateway in a process of its own, which the client will use."""
        await self.prepare()
        settings = await self._settings()
        async with self.starting:
            self.process = await asyncio.to_thread(
                self.enter_context, gateway_process(self.site, place=self.site.place(), **settings)
            )
            port, quic = [await asyncio.to_thread(self.process.port, front) for front in ("tcp", "quic")]
        self._meet(quic, {"host": "127.0.0.1", "port": port})

    async def _settings(self) -> Mapping[str, Any]:
        postgres = self.site.postgres
        database = f"dbname={self.site.admin.database}"
        target = self.site.target(database)
        if self.state in ("login", "cancel"):
            if self.gate is None:
                self.gate = await self.enter_async_context(gate(postgres.host, postgres.port))
            target = f"host=127.0.0.1 port={self.gate.port} {database}"
        return {
            "databases": {DATABASE: target, OTHER: self.site.target(database)},
            "default_pool_size": 1,
            "auth_type": "trust",
            "quic_idle_timeout": SILENCE,
            "server_login_retry": 0.5,
        }

    def _meet(self, port: int, address: dict[str, Any]) -> None:
        self.port, self._address = port, address

    async def sidecar(self) -> SidecarProcess:
        async with self.starting:
            return await self.enter_async_context(sidecar_process(self.site, self.port))

    @property
    def ca_file(self) -> str:
        return str(self.site.certificates.ca_cert)

    async def connect(self) -> asyncpg.Connection:
        """One more session in the client's pool, over TCP."""
        login: dict[str, Any] = {"user": USER, "database": DATABASE, "ssl": False, "timeout": 20}
        return await asyncpg.connect(**self._address, **login)

    # -- into the state

    async def enter(self, client: Client) -> None:
        """Brings the client into the state, and returns when all who have a part in it are where they should be."""
        self.client = client
        self.push_async_callback(client.close)
        if self.state == "login":
            assert self.gate is not None
            self.gate.shut()
        elif self.state == "waiting":
            self._holder = await self.connect()
            await self._holder.execute("BEGIN")
            await self._holder.execute("SELECT 1")
        elif self.state == "half a login":
            await (await self.connect()).close()
        async with self.starting:
            await client.enter(self.state)
        await self._entered()
        own = await self.bystander.pid()
        self.pids = {pid for pid in self.site.admin.backends() if pid != own}

    async def _entered(self) -> None:
        admin, state = self.site.admin, self.state
        if state in ("running", "cancel"):
            await until(lambda: admin.running("pg_sleep"))
        elif state in ("transaction", "copy", "pipeline"):
            await until(lambda: admin.is_locked("deaths"))
        elif state == "waiting":
            await self._is_waiting()
        if state == "cancel":
            assert self.gate is not None
            self.gate.shut()
            await self.client.cancel()
        if self.gate is not None:
            # The backend's connection, or that of the cancel.
            await until(lambda: self.gate is not None and self.gate.waiting == 1)

    async def _is_waiting(self) -> None:
        if self._has_process:
            # What is acknowledged has been read, and what has been read waits.
            client = self.client
            if isinstance(client, ApplicationTask):
                await until(lambda: not client.stream.transport.get_write_buffer_size())
            return
        await until(lambda: self.gateway.counts(waiting=1))

    @property
    def _has_process(self) -> bool:
        return hasattr(self, "process")

    # -- and out of it

    def open_gate(self) -> None:
        """What was held up on its way to Postgres goes on."""
        if self.gate is not None:
            self.gate.open()

    async def until_given_up(self) -> None:
        """Waits until the gateway has no session any more but those of the others."""
        others = 1 + (self._holder is not None)
        # A cancel request under way counts among the sessions, but not among those that are admitted.
        counter = "sessions" if self.state == "login" else "admitted"
        await until(lambda: self.gateway.counts(**{counter: others}))

    async def holder_is_lost(self) -> None:
        """Who had the backend that the client was waiting for has lost it."""
        holder, self._holder = self._holder, None
        if holder is not None:
            await until(holder.is_closed)

    async def end_holder(self) -> None:
        """Who had the backend that the client was waiting for ends its transaction and leaves."""
        holder, self._holder = self._holder, None
        if holder is not None:
            await holder.execute("COMMIT")
            await holder.close()

    async def replace_gateway(self) -> None:
        """A new gateway in the place of the one that died."""
        if self._holder is not None:
            self._holder.terminate()
            self._holder = None
        await self._start_gateway(quic_listen_port=self.port)

    async def no_trace(self) -> None:
        """Waits until no lock is left and nothing runs for the client any more."""
        admin = self.site.admin
        await until(lambda: not admin.running("pg_sleep"))
        await until(lambda: not admin.is_locked("deaths"))

    async def look(self) -> int:
        """What the next session of the pool finds -> the pid of its backend. The table is as it was."""
        session = await self.connect()
        rows, pid = await session.fetchrow("SELECT array_agg(n), pg_backend_pid() FROM deaths")
        await session.close()
        assert rows == [0]
        return int(pid)

    async def leave(self) -> None:
        """All leave, and the gateway has nothing of anybody."""
        await self.client.close()
        await self.bystander.leave()
        for gateway in self._gateways:
            await gateway.settle()
        if self._has_process and self.process.process.poll() is None:
            # It ends when its last session has, and had to close none.
            assert await asyncio.to_thread(self.process.stop, signal.SIGTERM) == 0
            assert "shutdown_timeout" not in self.process.said
