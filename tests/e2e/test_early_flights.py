"""How many flights of the gateway a session waits for, over real QUIC, by what the client knows already."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from helpers.flight_gate import FlightGate, flight_gate
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import GatewayUnreachable, LoginRefused, StreamManager, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from helpers.gateways import LocalGateway, Start
    from helpers.site import Site

LOGIN: Final[dict[str, Any]] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
READ_ONLY: Final = {"auth_type": "trust", "quic_early_data": "read-only"}


@contextlib.asynccontextmanager
async def far(gateway: LocalGateway, **settings: Any) -> AsyncIterator[tuple[StreamManager, FlightGate]]:
    """A manager whose connections end as soon as nobody uses them, and the network before it."""
    await (await gateway.connect("tcp")).fetchval("SELECT 1")  # or the first login would wait for Postgres
    await gateway.connections.pop().close()
    busy: Callable[[], object] = lambda: not gateway.counts(leased=0, connecting=0, waiting=0)  # noqa: E731
    async with (
        flight_gate(gateway.quic.port, busy) as gate,
        StreamManager(
            f"127.0.0.1:{gate.port}",
            ca_file=str(gateway.site.certificates.ca_cert),
            max_idle=0.05,
            **settings,
        ) as manager,
    ):
        yield manager, gate


async def idle(manager: StreamManager) -> None:
    """Returns when there is no connection any more."""
    await until(lambda: not manager.stats().connections.ready)


async def connect(manager: StreamManager, gate: FlightGate) -> tuple[int, asyncpg.Connection]:
    return await gate.count(manager.connect(**LOGIN))


async def test_a_login_by_scram(start: Start) -> None:
    gateway = await start()
    async with far(gateway) as (manager, gate):
        cold, first = await connect(manager, gate)
        live, second = await connect(manager, gate)
        saved = manager.stats().sessions.round_trips_saved
        for each in (first, second):
            await each.close()
        await idle(manager)
        resumed, third = await connect(manager, gate)
        assert (cold, live, resumed) == (4, 2, 2)
        # Over TCP and TLS: three more to begin with, and one to hear that it is SCRAM.
        assert (saved, manager.stats().sessions.round_trips_saved) == (2 + 4, 2 + 4 + 4)
        await third.close()
    assert gateway.counters()["quic_handshakes_early"] == 1
    assert gateway.counters()["total_admitted"] == 4


async def test_a_login_by_scram_without_early_data(start: Start) -> None:
    gateway = await start()
    async with far(gateway, early_data="off") as (manager, gate):
        cold, first = await connect(manager, gate)
        live, second = await connect(manager, gate)
        for each in (first, second):
            await each.close()
        await idle(manager)
        resumed, third = await connect(manager, gate)
        assert (cold, live, resumed) == (4, 3, 4)
        await third.close()


async def test_a_gateway_that_takes_none_costs_the_handshake(start: Start) -> None:
    gateway = await start(quic_early_data="off")
    async with far(gateway) as (manager, gate):
        _, first = await connect(manager, gate)
        await first.close()
        await idle(manager)
        saved = manager.stats().sessions.round_trips_saved
        resumed, second = await connect(manager, gate)
        assert resumed == 3
        assert manager.stats().sessions.round_trips_saved == saved + 3
        await second.close()


async def test_a_login_that_asks_for_nothing(start: Start) -> None:
    gateway = await start(auth_type="trust")
    async with far(gateway) as (manager, gate):
        cold, first = await connect(manager, gate)
        live, second = await connect(manager, gate)
        for each in (first, second):
            await each.close()
        await idle(manager)
        # It ends, and is told, when the handshake is complete.
        resumed, third = await connect(manager, gate)
        assert (cold, live, resumed) == (2, 1, 2)
        await third.close()


@pytest.mark.parametrize("allowed", ["read-only", "login"])
async def test_a_query_that_only_reads(start: Start, allowed: str) -> None:
    gateway = await start(auth_type="trust", quic_early_data=allowed)
    async with far(gateway, early_data="read-only") as (manager, gate):

        async def fetch() -> int:
            flights, rows = await gate.count(
                manager.fetch_early("SELECT $1::int + 1, NULL", "41", user=USER, database=DATABASE)
            )
            assert rows == [("42", None)]
            return flights

        cold = await fetch()
        live = await fetch()
        await idle(manager)
        resumed = await fetch()
    assert (cold, live, resumed) == (2, 1, 1 if allowed == "read-only" else 2)
    await until(lambda: gateway.counts(sessions=0))
    assert gateway.counters()["total_refused"] == 0


async def test_one_that_writes_runs_once_and_later(start: Start, site: Site) -> None:
    site.admin.execute("CREATE TABLE IF NOT EXISTS early_writes (id int)")
    site.admin.execute("GRANT ALL ON early_writes TO PUBLIC")
    gateway = await start(**READ_ONLY)
    async with far(gateway, early_data="read-only") as (manager, gate):
        await manager.fetch_early("SELECT 1", user=USER, database=DATABASE)
        await idle(manager)
        flights, rows = await gate.count(
            manager.fetch_early("INSERT INTO early_writes VALUES (1) RETURNING id", user=USER, database=DATABASE)
        )
        assert (flights, rows) == (2, [("1",)])
    assert site.admin.value("SELECT count(*) FROM early_writes") == 1
    site.admin.execute("DROP TABLE early_writes")


async def test_errors_of_early_queries(start: Start) -> None:
    gateway = await start(**READ_ONLY)
    trunk = await gateway.trunk(early_data="read-only")
    with pytest.raises(asyncpg.UndefinedTableError):
        await trunk.fetch_early("SELECT * FROM nowhere", user=USER, database=DATABASE)
    with pytest.raises(LoginRefused, match="no such database") as refused:
        await trunk.fetch_early("SELECT 1", user=USER, database="nowhere")
    assert refused.value.sqlstate == "3D000"
    other = await gateway.trunk()
    with pytest.raises(UsageError, match="read-only"):
        await other.fetch_early("SELECT 1", user=USER, database=DATABASE)


async def test_early_queries_are_for_logins_without_a_proof(start: Start) -> None:
    gateway = await start(quic_early_data="read-only")
    trunk = await gateway.trunk(early_data="read-only")
    with pytest.raises(LoginRefused, match="asks for a password"):
        await trunk.fetch_early("SELECT 1", user=USER, database=DATABASE)
    assert gateway.counters()["total_admitted"] == 0


async def test_a_gateway_that_is_silent_when_the_trunk_comes_back_is_told_of(start: Start) -> None:
    """What was said early has had no effect, so the session is opened again; and it is not found to be lost."""
    gateway = await start()
    async with far(gateway, connect_timeout=0.3, acquire_timeout=1, transport="quic") as (manager, gate):
        _, first = await connect(manager, gate)
        await first.close()
        await idle(manager)
        gate.is_silent = True
        with pytest.raises(GatewayUnreachable):
            await manager.connect(**LOGIN)
    assert gateway.counters()["total_refused"] == 0


async def test_one_that_was_silent_for_a_moment_is_not_noticed(start: Start) -> None:
    gateway = await start()
    async with far(gateway, connect_timeout=0.5, transport="quic") as (manager, gate):
        _, first = await connect(manager, gate)
        await first.close()
        await idle(manager)
        gate.is_silent = True
        coming = asyncio.create_task(manager.connect(**LOGIN))
        await until(lambda: manager.stats().connections.failed)
        gate.is_silent = False
        await (await coming).close()
    await until(lambda: gateway.counts(sessions=0))
    assert gateway.counters()["total_admitted"] == 3
