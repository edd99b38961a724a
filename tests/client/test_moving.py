"""A gateway asks for a connection to be left: what moves, what stays, and that no application sees it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

import pgtrunk.lines
from helpers.fake_gateway import FakeGateway
from helpers.fake_postgres import FakePostgres
from helpers.trunks import fake_trunk, limit, open_session, turns, until
from pgtrunk import GatewayUnreachable, StreamManager
from pgtrunk.address import Address
from pgtrunk.backoff import Backoff
from pgtrunk.quic.control import Goaway
from pgtrunk.wire import backend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DSN = "postgresql://app:secret@/shop"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgtrunk.lines, "SPREAD", 0.01)


# The trunk.


async def test_a_trunk_opens_another_connection_and_the_old_one_closes_with_its_last_stream() -> None:
    async with fake_trunk(connections=1, streams=5) as (trunk, gateway):
        old = await open_session(trunk)
        gateway.connections[0].send_away(Goaway(30.0))
        assert trunk.stats().connections_leaving == 1
        await until(lambda: trunk.stats().connections_ready == 1)
        assert trunk.lines.may_leave(old.link)
        new = await open_session(trunk)
        assert new.link != old.link
        cancel = await trunk.open_stream(asyncio.Protocol, limit(trunk), link=old.link)
        assert gateway.connections[0].open_streams == 2
        cancel.transport.close()
        old.transport.close()
        await until(lambda: not gateway.connections[0].is_alive)
        assert new.transport.is_closing() is False
        stats = trunk.stats()
        assert (stats.goaways, stats.connections_leaving, stats.connections_lost, stats.streams_lost) == (1, 0, 0, 0)
        new.transport.close()


async def test_it_hears_of_it_though_it_was_said_before_anybody_listened() -> None:
    async with fake_trunk(connections=1) as (trunk, gateway):
        connect, said = gateway.connect, [Goaway(1.0)]

        async def early(at: Address | None = None) -> object:
            connection = await connect(at)
            connection.leave = said.pop() if said else None
            return connection

        trunk.lines.connect = early  # type: ignore[assignment]
        first = await open_session(trunk)
        await until(lambda: trunk.lines.may_leave(first.link))
        first.transport.close()


async def test_it_goes_where_it_is_sent_and_if_nobody_is_there_to_where_it_was() -> None:
    async with fake_trunk(connections=1, backoff=Backoff(base=0.01)) as (trunk, gateway):
        session = await open_session(trunk)
        gateway.script.append(GatewayUnreachable("nobody"))
        gateway.connections[0].send_away(Goaway(None, ("other.test", 7000)))
        await until(lambda: trunk.lines.may_leave(session.link))
        assert gateway.dialled == [None, Address("other.test", 7000), None]
        session.transport.close()


async def test_later_connections_go_there_too_until_one_is_lost() -> None:
    async with fake_trunk(connections=2, streams=1, backoff=Backoff(base=0.01)) as (trunk, gateway):
        first = await open_session(trunk)
        gateway.connections[0].send_away(Goaway(None, ("other.test", 7000)))
        sessions = [await open_session(trunk) for _ in range(2)]
        gateway.connections[1].lose()
        await open_session(trunk)
        other = Address("other.test", 7000)
        assert gateway.dialled == [None, other, other, None]
        for session in (first, *sessions):
            session.transport.close()


async def test_asked_twice_it_moves_once() -> None:
    async with fake_trunk(connections=1) as (trunk, gateway):
        session = await open_session(trunk)
        gateway.connections[0].send_away(Goaway(30.0))
        gateway.connections[0].send_away(Goaway(1.0))
        await until(lambda: trunk.lines.may_leave(session.link))
        assert (trunk.stats().goaways, gateway.dials) == (1, 2)
        session.transport.close()


# Pools of asyncpg.


class World:
    def __init__(self, manager: StreamManager, gateway: FakeGateway, postgres: FakePostgres) -> None:
        self.trunk, self.gateway, self.postgres = manager, gateway, postgres

    @property
    def old(self) -> int:
        """Streams of the first connection."""
        return self.gateway.connections[0].open_streams

    async def send_away(self) -> None:
        """And wait until another connection is open."""
        dials = self.gateway.dials
        self.gateway.connections[-1].send_away(Goaway(30.0))
        await until(lambda: self.gateway.dials > dials and self.trunk.stats().connections_ready)
        await turns(10)


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    postgres = FakePostgres()
    gateway = FakeGateway(postgres)
    manager = StreamManager("gw.test", connections=1, dangerously_skip_certificate_verification=True, **settings)
    manager._dialer.dial = gateway.connect  # type: ignore[method-assign]
    async with manager:
        yield World(manager, gateway, postgres)


async def test_what_lies_in_the_pool_moves_and_what_is_lent_out_moves_when_it_comes_back() -> None:
    async with world() as it, it.trunk.create_pool(DSN, min_size=4, max_size=4) as pool:
        lent = await pool.acquire()
        transaction = lent.transaction()
        await transaction.start()
        await it.send_away()
        assert it.old == 1
        assert it.trunk.stats().sessions_moved == 3
        assert await lent.fetchval("select 1") == 1
        await transaction.commit()
        assert await lent.fetchval("select 1") == 1, "it is lent out still"
        await pool.release(lent)
        await until(lambda: it.old == 0)
        assert it.trunk.stats().sessions_moved == 4
        assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(20))) == [1] * 20
        assert it.gateway.connections[1].open_streams == 4
        assert it.trunk.stats().streams_lost == 0


async def test_nobody_gets_a_session_from_the_pool_that_is_about_to_end() -> None:
    async with world() as it, it.trunk.create_pool(DSN, min_size=1, max_size=3) as pool:
        done = [0]

        async def work() -> None:
            while not it.gateway.dials > 8:
                async with pool.acquire() as session, session.transaction():
                    assert await session.fetchval("select 1") == 1
                done[0] += 1

        async def move() -> None:
            for _ in range(8):
                before = done[0]
                await until(lambda before=before: done[0] > before + 20)  # type: ignore[misc]
                await it.send_away()

        await asyncio.gather(move(), *(work() for _ in range(9)))
        await until(lambda: it.trunk.stats().connections_leaving == 0)
        assert it.trunk.stats().sessions_moved >= 8
        assert it.trunk.stats().streams_lost == 0


async def test_the_server_is_told_that_a_session_ends() -> None:
    async with world() as it, it.trunk.create_pool(DSN, min_size=1, max_size=1) as pool:
        (session,) = it.postgres.sessions.values()
        told: list[str] = []
        message = session._message

        def hear(kind: str, body: bytes) -> None:
            told.append(kind)
            message(kind, body)

        session._message = hear  # type: ignore[method-assign]
        await it.send_away()
        await until(lambda: told == ["X"])
        assert await pool.fetchval("select 1") == 1


async def test_hooks_of_the_application_are_called_as_ever() -> None:
    calls: list[str] = []

    def hook(name: str) -> Any:
        async def called(connection: asyncpg.Connection) -> None:
            calls.append(name)
            assert await connection.fetchval("select 1") == 1

        return called

    hooks = {name: hook(name) for name in ("init", "setup", "reset")}
    async with world() as it, it.trunk.create_pool(DSN, min_size=1, max_size=1, **hooks) as pool:
        assert await pool.fetchval("select 1") == 1
        assert calls == ["init", "setup", "reset"]
        await it.send_away()
        await until(lambda: it.old == 0)
        assert await pool.fetchval("select 1") == 1
        assert calls == ["init", "setup", "reset"] * 2


async def test_a_session_is_not_taken_away_while_a_hook_uses_it() -> None:
    going, gone = asyncio.Event(), asyncio.Event()

    async def slow(connection: asyncpg.Connection) -> None:
        going.set()
        await gone.wait()
        assert await connection.fetchval("select 1") == 1

    async with world() as it:
        first = await it.trunk.connect(DSN)
        async with it.trunk.create_pool(DSN, min_size=0, max_size=1, init=slow, setup=slow, reset=slow) as pool:
            for _ in range(3):
                gone.clear()
                asking = asyncio.ensure_future(pool.fetchval("select 1"))
                await going.wait()
                await it.send_away()
                gone.set()
                assert await asking == 1
        await first.close()


async def test_a_pool_that_asks_for_asyncpgs_own_reset_has_it() -> None:
    async with world() as it, it.trunk.create_pool(DSN, min_size=1, max_size=1, reset=None) as pool:
        assert await pool.fetchval("select 1") == 1
        assert any("UNLISTEN" in query for query in it.postgres.queries)


async def test_a_session_that_an_application_has_opened_stays() -> None:
    async with world() as it:
        session = await it.trunk.connect(DSN)
        await it.send_away()
        assert await session.fetchval("select 1") == 1
        assert (it.old, it.trunk.stats().sessions_moved) == (1, 0)
        await session.close()
        await until(lambda: it.trunk.stats().connections_leaving == 0)


async def test_while_there_is_nowhere_to_go_all_stays_as_it_is() -> None:
    async with world() as it, it.trunk.create_pool(DSN, min_size=2, max_size=2) as pool:
        it.gateway.script.extend(GatewayUnreachable("draining") for _ in range(2))
        it.gateway.connections[0].send_away(Goaway(30.0))
        await until(lambda: it.gateway.dials == 2)
        assert await pool.fetchval("select 1") == 1
        assert it.old == 2
        await until(lambda: it.old == 0)
        assert await pool.fetchval("select 1") == 1


@pytest.mark.parametrize("state", ["57P03", "57P01"])
async def test_a_session_that_comes_too_late_is_opened_on_the_next_connection(state: str) -> None:
    async with world() as it:
        stays = await it.trunk.connect(DSN)
        it.postgres.logs_in = False
        it.postgres.is_asked.clear()
        coming = asyncio.ensure_future(it.trunk.connect(DSN))
        await it.postgres.is_asked.wait()
        await it.send_away()
        it.postgres.logs_in = True
        late = it.gateway.connections[0].streams[-1].peer
        late.write(backend.error(state, "pooler is shutting down", severity="FATAL"))
        late.close()
        session = await coming
        assert await session.fetchval("select 1") == 1
        assert it.gateway.connections[1].open_streams == 1
        await session.close()
        await stays.close()


async def test_a_refusal_of_a_gateway_that_asks_nobody_to_leave_is_an_error() -> None:
    async with world() as it:
        it.postgres.logs_in = False
        coming = asyncio.ensure_future(it.trunk.connect(DSN))
        await it.postgres.is_asked.wait()
        late = it.gateway.connections[0].streams[-1].peer
        late.write(backend.error("57P03", "pooler is not accepting connections", severity="FATAL"))
        late.close()
        with pytest.raises(asyncpg.CannotConnectNowError):
            await coming


async def test_sessions_that_have_ended_are_forgotten() -> None:
    async with world() as it:
        async with it.trunk.create_pool(DSN, min_size=2, max_size=2) as pool:
            await it.send_away()
            await pool.fetchval("select 1")
            await pool.expire_connections()
            await pool.fetchval("select 1")
        assert it.trunk._adapter is not None
        assert len(it.trunk._adapter._pooled) == 0


@pytest.mark.parametrize("how", ["terminate", "close"])
async def test_however_a_session_ends_it_is_forgotten_and_nothing_fails(how: str) -> None:
    failed: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with world() as it:
        pool = await it.trunk.create_pool(DSN, min_size=2, max_size=2)
        assert it.trunk._adapter is not None
        sessions = it.trunk._adapter._pooled
        assert len(sessions) == 2
        if how == "close":
            await pool.close()
        pool.terminate()
        await until(lambda: len(sessions) == 0)
    assert failed == []
