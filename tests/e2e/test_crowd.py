"""Many sessions on few backends: every answer is checked, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start

CONNECTIONS, STREAMS, SESSIONS, BACKENDS = 13, 40, 500, 20
_ROWS: Final = 100


@pytest.mark.timeout(600)
@pytest.mark.parametrize("queries", [5_000, pytest.param(50_000, marks=pytest.mark.long)])
async def test_five_hundred_sessions_on_thirteen_connections_and_twenty_backends(start: Start, queries: int) -> None:
    gateway = await start(default_pool_size=BACKENDS, max_client_conn=SESSIONS + 10, query_wait_timeout=300)
    gateway.site.admin.execute("CREATE TABLE crowd (session int, step int, PRIMARY KEY (session, step))")
    gateway.site.admin.execute("ALTER TABLE crowd OWNER TO app")
    try:
        await _run(gateway, queries)
    finally:
        await gateway.settle()
        gateway.site.admin.execute("DROP TABLE crowd")


async def _run(gateway: LocalGateway, queries: int) -> None:
    trunk = await gateway.trunk(connections=CONNECTIONS, streams_per_connection=STREAMS, acquire_timeout=120)
    login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 120}
    sessions = await asyncio.gather(*(trunk.connect(**login) for _ in range(SESSIONS)))
    gateway.connections += sessions
    stats = trunk.stats()
    assert (stats.streams_in_use, stats.connections_ready) == (SESSIONS, CONNECTIONS)
    clients = [Client(session, number, random.Random(number)) for number, session in enumerate(sessions)]
    await asyncio.gather(*(client.run(queries // SESSIONS) for client in clients))
    assert sum(client.asked for client in clients) >= queries
    assert len(gateway.site.admin.backends()) <= BACKENDS
    kept = gateway.site.admin.rows("SELECT session, count(*) FROM crowd GROUP BY session")
    assert dict(kept) == {client.number: client.kept for client in clients if client.kept}
    await asyncio.gather(*(session.close() for session in sessions))
    await until(lambda: gateway.counts(sessions=0, leased=0, waiting=0, quic_streams=0, quic_held_bytes=0))
    assert trunk.stats().streams_in_use == 0
    assert trunk.stats().streams_lost == 0


class Client:
    """One session of an application, which knows what it must be answered."""

    def __init__(self, session: asyncpg.Connection, number: int, luck: random.Random) -> None:
        self.session = session
        self.number = number
        self.luck = luck
        self.asked = 0
        self.kept = 0
        """Rows that it has committed."""

    async def run(self, least: int) -> None:
        ways = (
            self.point,
            self.point,
            self.rows,
            self.simple,
            self.failure,
            self.commit,
            self.rollback,
            self.savepoint,
        )
        while self.asked < least:
            await self.luck.choice(ways)()

    async def point(self) -> None:
        value = self.luck.randrange(1_000_000)
        assert (
            await self.session.fetchval("SELECT $1::int * 2 + $2::int", value, self.number) == value * 2 + self.number
        )
        self.asked += 1

    async def rows(self) -> None:
        rows = await self.session.fetch("SELECT n + $1::int FROM generate_series(1, $2::int) AS n", self.number, _ROWS)
        assert [row[0] for row in rows] == list(range(self.number + 1, self.number + _ROWS + 1))
        self.asked += 1

    async def simple(self) -> None:
        assert await self.session.execute(f"SELECT {self.number}; SELECT {self.number}, 2") == "SELECT 1"
        self.asked += 1

    async def failure(self) -> None:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await self.session.fetchval("SELECT 1 / ($1::int - $1::int)", self.number)
        with pytest.raises(asyncpg.UndefinedTableError):
            await self.session.fetch("SELECT * FROM no_such_table")
        self.asked += 2

    async def commit(self) -> None:
        async with self.session.transaction():
            await self._insert()
            assert await self._count() == self.kept + 1
        self.kept += 1
        self.asked += 4

    async def rollback(self) -> None:
        with pytest.raises(asyncpg.UniqueViolationError):
            async with self.session.transaction():
                await self._insert()
                await self._insert()
        self.asked += 4

    async def savepoint(self) -> None:
        async with self.session.transaction():
            with pytest.raises(asyncpg.DivisionByZeroError):
                async with self.session.transaction():
                    await self._insert()
                    await self.session.execute("SELECT 1 / 0")
            assert await self._count() == self.kept
        self.asked += 7

    async def _insert(self) -> None:
        await self.session.execute("INSERT INTO crowd VALUES ($1, $2)", self.number, self.kept)

    async def _count(self) -> int:
        count: int = await self.session.fetchval("SELECT count(*) FROM crowd WHERE session = $1", self.number)
        return count
