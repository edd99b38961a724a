"""The verbs of an administrator on a gateway that is in use: nobody loses a query that is not to be lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from helpers.gateways import POOLED
from helpers.load import Load
from helpers.site import DATABASE
from helpers.waiting import until
from pgtrunk_gateway.errors import GatewayError

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

ENDED: Final = (asyncpg.AdminShutdownError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)
"""How asyncpg says that the gateway has ended a session: depends on whether a query ran, and came it by QUIC or not."""


def two_databases(site: Site) -> dict[str, str]:
    """The same one under two names."""
    return {DATABASE: site.target(), "other": site.target(f"dbname={DATABASE}")}


def refusal(gateway: LocalGateway, verb: str, *arguments: object) -> tuple[str, str]:
    """SQLSTATE and words with which a verb that does not wait is refused."""
    with pytest.raises(GatewayError) as caught:
        getattr(gateway.gateway.operations, verb)(*arguments)
    assert caught.value.severity == "ERROR"
    return caught.value.sqlstate, caught.value.message


async def waiting_refusal(gateway: LocalGateway, verb: str, *arguments: object) -> tuple[str, str]:
    """The same for a verb that may wait."""
    with pytest.raises(GatewayError) as caught:
        await getattr(gateway.gateway.operations, verb)(*arguments)
    assert caught.value.severity == "ERROR"
    return caught.value.sqlstate, caught.value.message


# -- PAUSE, RESUME


@pytest.mark.parametrize("database", [None, DATABASE])
async def test_a_pause_under_load_comes_about_and_costs_nobody_a_query(start: Start, database: str | None) -> None:
    gateway = await start(default_pool_size=3)
    operations = gateway.gateway.operations
    async with Load(gateway, POOLED) as load:
        for _ in range(3):
            await asyncio.wait_for(operations.pause(database), 20)
            await load.stand_still()
            assert gateway.counts(leased=0, backends=0)
            assert operations.state == ("active" if database else "paused")
            operations.resume(database)
            await load.progress()


async def test_a_pause_waits_for_transactions(start: Start, pooled: Way) -> None:
    gateway = await start()
    session = await gateway.connect(pooled)
    transaction = session.transaction()
    await transaction.start()
    await session.execute("SELECT 1")
    pausing = asyncio.create_task(gateway.gateway.operations.pause(None))
    assert await session.fetchval("SELECT 1") == 1
    assert not pausing.done()
    await transaction.commit()
    await asyncio.wait_for(pausing, 20)
    asking = asyncio.create_task(session.fetchval("SELECT 2"))
    await until(lambda: gateway.counts(waiting=1))
    gateway.gateway.operations.resume(None)
    assert await asking == 2


async def test_one_database_is_paused_and_the_other_is_not(start: Start, site: Site) -> None:
    gateway = await start(databases=two_databases(site))
    operations = gateway.gateway.operations
    await asyncio.wait_for(operations.pause("other"), 20)
    async with Load(gateway, ("tcp",)):
        # A login waits, too: for the settings that the server reports.
        late = asyncio.create_task(gateway.connect("tcp", database="other"))
        await asyncio.sleep(0.1)
        assert not late.done()
        operations.resume("other")
        assert await (await late).fetchval("SELECT 1") == 1


async def test_what_cannot_be_paused_or_resumed(start: Start) -> None:
    gateway = await start()
    operations = gateway.gateway.operations
    assert refusal(gateway, "resume", None) == ("55000", "pooler is not paused/suspended")
    assert refusal(gateway, "resume", DATABASE) == ("55000", f"database {DATABASE} is not paused")
    for verb in ("pause", "wait_close"):
        assert await waiting_refusal(gateway, verb, "nowhere") == ("3D000", "no such database: nowhere")
    for verb in ("resume", "disable", "enable", "reconnect", "kill"):
        assert refusal(gateway, verb, "nowhere") == ("3D000", "no such database: nowhere")
    await operations.pause(None)
    already = ("55000", "already suspended/paused")
    assert await waiting_refusal(gateway, "pause", None) == already
    assert await waiting_refusal(gateway, "pause", DATABASE) == already
    assert await waiting_refusal(gateway, "suspend") == already
    assert refusal(gateway, "kill", None) == already
    operations.resume(None)
    await operations.pause(DATABASE)
    assert await waiting_refusal(gateway, "suspend") == ("55000", "cannot suspend with paused databases")
    operations.resume(DATABASE)
    assert refusal(gateway, "kill_client", 10**18) == ("42704", "client not found")


# -- SUSPEND


async def test_nothing_moves_while_it_is_suspended(start: Start) -> None:
    gateway = await start(default_pool_size=3)
    operations = gateway.gateway.operations
    async with Load(gateway, POOLED) as load:
        for _ in range(3):
            await asyncio.wait_for(operations.suspend(), 20)
            try:
                await load.stand_still()
                late = asyncio.create_task(gateway.connect("tcp"))
                await asyncio.sleep(0.1)
                assert not late.done()
            finally:
                operations.resume(None)
            await late
            await load.progress()


async def test_who_does_not_read_is_closed_after_suspend_timeout(start: Start) -> None:
    gateway = await start(suspend_timeout=0.2)
    stuck, other = await gateway.connect("tcp"), await gateway.connect("tcp")
    many = await stuck.prepare("SELECT repeat('x', 1000) FROM generate_series(1, 30000)")
    stuck._transport.pause_reading()
    asking = asyncio.create_task(many.fetch())
    session = min(gateway.gateway.context.sessions, key=lambda each: each.id)
    await until(lambda: session.transport.get_write_buffer_size())
    await asyncio.wait_for(gateway.gateway.operations.suspend(), 20)
    gateway.gateway.operations.resume(None)
    await until(lambda: gateway.counts(sessions=1))
    assert await other.fetchval("SELECT 1") == 1
    stuck.terminate()
    with pytest.raises(asyncpg.PostgresConnectionError):
        await asking


# -- DISABLE, ENABLE


async def test_a_disabled_database_takes_no_new_sessions(start: Start, pooled: Way) -> None:
    gateway = await start()
    session = await gateway.connect(pooled)
    gateway.gateway.operations.disable(DATABASE)
    with pytest.raises(asyncpg.PostgresError, match=f'database "{DATABASE}" is disabled'):
        await gateway.connect(pooled)
    assert await session.fetchval("SELECT 1") == 1
    gateway.gateway.operations.enable(DATABASE)
    await gateway.connect(pooled)


# -- RECONNECT, WAIT_CLOSE


@pytest.mark.parametrize("database", [None, DATABASE])
async def test_all_backends_are_replaced_under_load(start: Start, database: str | None) -> None:
    gateway = await start(default_pool_size=3)
    operations = gateway.gateway.operations
    async with Load(gateway, POOLED) as load:
        for _ in range(3):
            before = gateway.backend_pids
            operations.reconnect(database)
            await asyncio.wait_for(operations.wait_close(database), 20)
            assert not gateway.backend_pids & before
            await load.progress()


async def test_wait_close_waits_for_those_who_were_told_to_go(start: Start) -> None:
    gateway = await start()
    operations = gateway.gateway.operations
    session = await gateway.connect("tcp")
    await asyncio.wait_for(operations.wait_close(None), 20)
    transaction = session.transaction()
    await transaction.start()
    await session.execute("SELECT 1")
    operations.reconnect(DATABASE)
    closing = asyncio.create_task(operations.wait_close(DATABASE))
    await session.fetchval("SELECT 1")
    assert not closing.done()
    await transaction.commit()
    await asyncio.wait_for(closing, 20)


# -- KILL, KILL_CLIENT


@pytest.mark.parametrize("database", [None, DATABASE])
async def test_kill_ends_sessions_and_backends_and_pauses(start: Start, site: Site, database: str | None) -> None:
    gateway = await start(databases=two_databases(site))
    operations = gateway.gateway.operations
    idle, busy = await gateway.connect("tcp"), await gateway.connect("quic")
    spared = await gateway.connect("unix", database="other")
    await spared.execute("SELECT 1")
    running = asyncio.create_task(busy.execute("SELECT pg_sleep(600)"))
    await until(lambda: site.admin.running("pg_sleep(600)"))
    operations.kill(database)
    with pytest.raises(ENDED, match="admin forced disconnect"):
        await running
    with pytest.raises(ENDED):
        await idle.execute("SELECT 1")
    assert operations.state == ("active" if database else "paused")
    # What ran for it is over as well, and its backend is not given to anybody.
    await until(lambda: not site.admin.running("pg_sleep"))
    await until(lambda: gateway.counts(backends=1 if database else 0))
    if database:
        assert await spared.fetchval("SELECT 1") == 1
    late = await gateway.connect("tcp")
    asking = asyncio.create_task(late.fetchval("SELECT 1"))
    await until(lambda: gateway.counts(waiting=1))
    operations.resume(database)
    assert await asking == 1


async def test_kill_client(start: Start, pooled: Way) -> None:
    gateway = await start()
    victim, other = await gateway.connect(pooled), await gateway.connect(pooled)
    async with other.transaction():
        await other.execute("SELECT 1")
        session = min(gateway.gateway.context.sessions, key=lambda each: each.id)
        running = asyncio.create_task(victim.execute("SELECT pg_sleep(600)"))
        await until(lambda: gateway.counts(leased=2))
        gateway.gateway.operations.kill_client(session.id)
        with pytest.raises(ENDED, match="admin forced disconnect"):
            await running
        assert await other.fetchval("SELECT 1") == 1
