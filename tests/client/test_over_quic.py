"""The whole client over real QUIC on loopback, to a Postgres that is none."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.cancelling import Moment, cancel_at, cancel_everywhere
from helpers.fake_gateway import Sink
from helpers.fake_postgres import FakePostgres
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import identities
from helpers.trunks import until, until_idle
from pgtrunk import AcquireTimeout, CertificateError, GatewayUnreachable, SessionLost, StreamManager
from pgtrunk.quic.config import QuicLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DSN = "postgresql://app:secret@/shop"


@asynccontextmanager
async def quic(
    *, max_streams: int = 1000, idle_timeout: float = 10.0, **settings: Any
) -> AsyncIterator[tuple[StreamManager, LoopbackServer, FakePostgres]]:
    postgres = FakePostgres()
    limits = QuicLimits(max_streams=max_streams, idle_timeout=idle_timeout)
    async with LoopbackServer(postgres, limits=limits) as server:
        manager = StreamManager(f"127.0.0.1:{server.port}", **({"ca_data": identities()[0].pem} | settings))
        async with manager as trunk:
            yield trunk, server, postgres


async def idle(trunk: StreamManager, server: LoopbackServer) -> None:
    assert trunk._trunk is not None
    await until_idle(trunk._trunk)
    await until(lambda: not any(driver.streams for driver in server.drivers))


async def test_sessions_queries_and_their_end() -> None:
    async with quic() as (trunk, server, postgres):
        connection = await trunk.connect(DSN)
        assert await connection.fetchval("select 1") == 1
        assert len(postgres.sessions) == 1
        await connection.close()
        await idle(trunk, server)


async def test_nothing_of_a_session_that_is_dropped_waits_for_the_garbage_collector() -> None:
    async with quic() as (trunk, server, _):
        collected = gc.isenabled()
        gc.disable()
        try:
            connection = await trunk.connect(DSN)
            protocol = weakref.ref(connection._protocol)
            with pytest.warns(ResourceWarning, match="unclosed connection"):
                del connection
            await asyncio.sleep(0)
            assert protocol() is None
        finally:
            if collected:
                gc.enable()
        await idle(trunk, server)


async def test_a_pool_is_packed_on_as_few_connections_as_hold_it() -> None:
    async with quic(connections=4, streams_per_connection=10) as (trunk, server, _):
        async with trunk.create_pool(DSN, min_size=25, max_size=25) as pool:
            assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(500))) == [1] * 500
            assert sorted(len(driver.streams) for driver in server.drivers) == [5, 10, 10]
        await idle(trunk, server)
        assert trunk.stats().streams_closed == 25


async def test_sessions_of_a_pool_that_are_lost_are_forgotten() -> None:
    async with quic() as (trunk, server, _), trunk.create_pool(DSN, min_size=3, max_size=3) as pool:
        assert trunk._adapter is not None
        sessions = trunk._adapter._pooled
        assert len(sessions) == 3
        server.driver.close()
        await until(lambda: len(sessions) == 0)
        assert await pool.fetchval("select 1") == 1


async def test_the_gateways_max_streams_is_kept_and_its_credit_comes_back() -> None:
    async with quic(max_streams=4, connections=1) as (trunk, server, _):

        async def session() -> None:
            connection = await trunk.connect(DSN)
            assert await connection.fetchval("select 1") == 1
            assert len(server.driver.streams) <= 3, "four less one for cancels"
            await connection.close()

        await asyncio.gather(*(session() for _ in range(40)))
        await idle(trunk, server)
        sessions = [await trunk.connect(DSN) for _ in range(3)]
        with pytest.raises(AcquireTimeout, match=r"within timeout=0\.05 s.*the gateway allows no more streams"):
            await trunk.connect(DSN, timeout=0.05)
        for connection in sessions:
            await connection.close()


async def test_a_cancel_passes_while_all_streams_are_in_use() -> None:
    async with quic(max_streams=2, connections=1) as (trunk, server, postgres):
        connection = await trunk.connect(DSN)
        with pytest.raises(asyncio.TimeoutError):
            await connection.execute("sleep", timeout=0.05)
        assert await connection.fetchval("select 1") == 1
        assert postgres.cancels == [1]
        await connection.close()
        await idle(trunk, server)


async def test_a_stream_that_the_gateway_resets_ends_its_session_only() -> None:
    async with quic() as (trunk, server, _):
        other, connection = await trunk.connect(DSN), await trunk.connect(DSN)
        with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
            await connection.execute("die")
        assert isinstance(caught.value.__cause__, SessionLost)
        assert connection.is_closed()
        assert await other.fetchval("select 1") == 1
        await other.close()
        await idle(trunk, server)


async def test_a_gateway_that_closes_the_connection_ends_its_sessions_and_is_dialled_again() -> None:
    async with quic() as (trunk, server, _):
        connection = await trunk.connect(DSN)
        sleeping = asyncio.create_task(connection.execute("sleep"))
        await asyncio.sleep(0)
        server.driver.close()
        with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
            await sleeping
        assert isinstance(caught.value.__cause__, SessionLost)
        assert connection.is_closed()
        again = await trunk.connect(DSN)
        assert await again.fetchval("select 1") == 1
        assert trunk.stats().connections_lost == 1
        await again.close()
        await idle(trunk, server)


async def test_closing_the_trunk_ends_the_sessions_at_the_gateway_too() -> None:
    async with quic() as (trunk, _, postgres):
        connection = await trunk.connect(DSN)
        stream, sink = await trunk.open_stream(Sink)
        await trunk.close()
        assert connection.is_closed()
        assert isinstance(await sink.lost, SessionLost)
        assert stream.is_closing()
        await until(lambda: not postgres.sessions)


async def test_an_idle_connection_is_closed_and_the_next_session_dials_anew() -> None:
    async with quic() as (trunk, server, _):
        assert trunk._rules.max_idle == QuicLimits().idle_timeout / 2
        await (await trunk.connect(DSN)).close()
        await idle(trunk, server)
        assert trunk._trunk is not None
        trunk._trunk._act(trunk._trunk._core.decide(trunk._trunk.loop.time() + 5.0))
        assert trunk.stats().connections_ready == 0
        await (await trunk.connect(DSN)).close()
        assert len(server.drivers) == 2


async def test_nobody_listening_is_an_error_at_once() -> None:
    async with LoopbackServer() as server:
        port = server.port
    async with StreamManager(f"127.0.0.1:{port}", ca_data=identities()[0].pem) as trunk:
        with pytest.raises(GatewayUnreachable, match="nothing listens on that UDP port"):
            await trunk.connect(DSN)


async def test_a_gateway_that_does_not_answer_is_an_error_after_connect_timeout() -> None:
    async with LoopbackServer(answers=False) as server:
        address = f"127.0.0.1:{server.port}"
        async with StreamManager(address, ca_data=identities()[0].pem, connect_timeout=0.1) as trunk:
            with pytest.raises(GatewayUnreachable, match=r"did not answer within .* \(connect_timeout\)"):
                await trunk.connect(DSN)


async def test_a_certificate_for_another_name_is_refused_unless_that_is_asked_for() -> None:
    async with quic(server_name="another.example.net") as (trunk, _, _):
        with pytest.raises(CertificateError):
            await trunk.connect(DSN)
    async with quic(
        server_name="another.example.net", ca_data=None, dangerously_skip_certificate_verification=True
    ) as (trunk, _, _):
        await (await trunk.connect(DSN)).close()


async def test_cancelling_anywhere_leaves_a_trunk_that_works() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with quic(max_streams=4, connections=1) as (trunk, server, _):

            async def session() -> None:
                connection = await trunk.connect(DSN)
                try:
                    assert await connection.fetchval("select 1") == 1
                finally:
                    await connection.close()

            hit = await cancel_at(session(), at, moment)
            await idle(trunk, server)
            await asyncio.gather(*(session() for _ in range(3)))
            await idle(trunk, server)
            return hit

    assert await cancel_everywhere(scenario) >= 4
