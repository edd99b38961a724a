"""The gateway is told to end while all its clients are at work: what was committed stays, and nobody hangs."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from helpers.processes import gateway_process
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager

if TYPE_CHECKING:
    from helpers.site import Site

EACH: Final = 10
LOGIN: Final[dict[str, Any]] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}


class Worker:
    """One session that inserts a row per transaction until it is stopped, or its session is ended."""

    def __init__(self, number: int, session: asyncpg.Connection) -> None:
        self.number = number
        self.session = session
        self.kept = 0
        """Rows whose commit it has been told of."""
        self.tried = 0
        self.loss: BaseException | None = None

    async def work(self, stop: asyncio.Event) -> None:
        try:
            while not stop.is_set():
                await self._insert()
            await self.session.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as loss:
            # The last of asyncpg's is what it makes of a farewell that comes between two queries.
            self.loss = loss

    async def _insert(self) -> None:
        self.tried += 1
        async with self.session.transaction():
            await self.session.execute("INSERT INTO loaded VALUES ($1, $2)", self.number, self.kept)
            await self.session.fetchval("SELECT pg_sleep(0.001)")
        self.kept += 1

    @property
    def told(self) -> str:
        """The SQLSTATE of its end; "" where it ended by itself."""
        if self.loss is None:
            return ""
        loss = self.loss
        if isinstance(loss.__context__, asyncpg.ConnectionDoesNotExistError):
            # Inside a transaction, asyncpg tries a ROLLBACK then, and says what became of that.
            loss = loss.__context__
        cause = loss.__cause__ or loss
        return str(getattr(cause, "sqlstate", type(cause).__name__))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_it_ends_under_load(site: Site, signum: signal.Signals) -> None:
    site.admin.execute("DROP TABLE IF EXISTS loaded")
    site.admin.execute("CREATE TABLE loaded (worker int, n int, PRIMARY KEY (worker, n))")
    site.admin.execute("ALTER TABLE loaded OWNER TO app")
    with gateway_process(site, default_pool_size=5, shutdown_timeout=30) as gateway:
        port, quic = await asyncio.to_thread(gateway.port), await asyncio.to_thread(gateway.port, "quic")
        async with StreamManager(f"127.0.0.1:{quic}", ca_file=str(site.certificates.ca_cert)) as trunk:
            sessions = [await trunk.connect(**LOGIN) for _ in range(EACH)]
            for host in ("127.0.0.1", str(gateway.place)):
                sessions += [await asyncpg.connect(host=host, port=port, ssl=False, **LOGIN) for _ in range(EACH)]
            workers = [Worker(number, session) for number, session in enumerate(sessions)]
            stop = asyncio.Event()
            working = [asyncio.create_task(worker.work(stop)) for worker in workers]
            await until(lambda: all(worker.kept >= 3 for worker in workers))
            gateway.send(signum)
            await asyncio.to_thread(gateway.until_logged, f"got {signum.name}")
            if signum is signal.SIGTERM:
                before = [worker.kept for worker in workers]
                await until(lambda: all(w.kept > kept for w, kept in zip(workers, before, strict=True)))
                stop.set()
            async with asyncio.timeout(30):
                await asyncio.gather(*working)
            assert await asyncio.to_thread(gateway.wait) == 0
    told = {worker.told for worker in workers}
    if signum is signal.SIGTERM:
        assert told == {""}
    else:
        closed = {"InterfaceError", "InternalClientError", "ConnectionResetError", "BrokenPipeError", "SessionLost"}
        assert "57P01" in told
        assert told <= {"57P01"} | closed
    await until(lambda: not site.admin.backends())
    there = dict(site.admin.rows("SELECT worker, count(*) FROM loaded GROUP BY worker"))
    for worker in workers:
        # Of one commit at most the answer was lost.
        assert worker.kept <= there[worker.number] <= worker.tried
