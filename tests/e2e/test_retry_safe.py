"""Whether a retry is safe, as drivers are told of sessions that end: in each state, by each way, for each reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import asyncpg
import psycopg
import pytest

from helpers.sidecars import sidecar_process
from helpers.waiting import until
from pgtrunk import retry_safe
from pgtrunk.wire.hints import NOT_SENT, UNDONE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helpers.gateways import LocalGateway, Start

State = Literal["idle", "in a transaction", "running"]
STATES: tuple[State, ...] = ("idle", "in a transaction", "running")
HINTS = {"idle": NOT_SENT, "in a transaction": UNDONE}


def kill_sessions(gateway: LocalGateway) -> None:
    """As an administrator does: each is told."""
    for session in list(gateway.gateway.context.sessions):
        session.kill()


def lose_connections(gateway: LocalGateway) -> None:
    """Nobody is told but by QUIC."""
    for driver in gateway.quic.drivers:
        driver.close()


def end_backends(gateway: LocalGateway) -> None:
    for pid in gateway.backend_pids:
        gateway.site.admin.execute("SELECT pg_terminate_backend(%s)", pid)


ENDS: dict[str, Callable[[LocalGateway], None]] = {
    "killed": kill_sessions, "lost": lose_connections, "terminated": end_backends,
}  # fmt: skip


def cells(*ends: str) -> list[tuple[str, State]]:
    """Each end in each state; but a session that has no backend loses none."""
    return [(end, state) for end in ends for state in STATES if (end, state) != ("terminated", "idle")]


async def fails(gateway: LocalGateway, query: Callable[[str], Awaitable[Any]], state: State, end: str) -> BaseException:
    """What the query raises that runs, or is begun afterwards, when the session ends."""
    if state == "in a transaction":
        await query("BEGIN")
    await query("SELECT 1")
    if state == "running":
        running = asyncio.ensure_future(query("SELECT pg_sleep(60)"))
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        ENDS[end](gateway)
    else:
        ENDS[end](gateway)
        await until(lambda: gateway.counts(leased=0))
        await asyncio.sleep(0.05)  # the news is on its way to the driver, which need not hear of it to be right
        running = asyncio.ensure_future(query("SELECT 2"))
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, psycopg.Error)) as caught:
        await running
    error: BaseException = caught.value
    return error


@pytest.mark.parametrize(("end", "state"), cells("killed", "lost", "terminated"))
async def test_asyncpg_over_the_trunk(start: Start, state: State, end: str) -> None:
    gateway = await start()
    session = await gateway.connect("quic")
    error = await fails(gateway, session.execute, state, end)
    assert retry_safe(error) is (state != "running")


@pytest.mark.parametrize(("end", "state"), cells("killed", "lost", "terminated"))
async def test_psycopg_over_the_sidecar(start: Start, state: State, end: str) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        session = await psycopg.AsyncConnection.connect(**sidecar.conninfo(), autocommit=True)
        try:
            error = await fails(gateway, session.execute, state, end)
        finally:
            await session.close()
        assert isinstance(error, psycopg.Error)
        # Postgres's own last words are passed on as they are, and they do not tell.
        is_safe = state != "running" and end != "terminated"
        assert retry_safe(error) is is_safe
        if is_safe:
            assert error.diag.message_hint == HINTS[state]


@pytest.mark.parametrize(("end", "state"), cells("killed", "terminated"))
async def test_psycopg_without_it(start: Start, state: State, end: str) -> None:
    gateway = await start()
    session = await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp"), autocommit=True)
    try:
        error = await fails(gateway, session.execute, state, end)
    finally:
        await session.close()
    assert retry_safe(error) is (state != "running" and end != "terminated")


async def test_a_transaction_block_of_asyncpg(start: Start) -> None:
    gateway = await start()
    session = await gateway.connect("quic")
    with pytest.raises(asyncpg.InterfaceError) as caught:
        async with session.transaction():
            await session.execute("SELECT 1")
            lose_connections(gateway)
            await until(session.is_closed)
            await session.execute("SELECT 2")
    assert retry_safe(caught.value)
    session = await gateway.connect("quic")
    with pytest.raises((asyncpg.InterfaceError, asyncpg.ConnectionDoesNotExistError)) as caught:
        async with session.transaction():
            running = asyncio.ensure_future(session.execute("SELECT pg_sleep(60)"))
            await until(lambda: gateway.site.admin.running("pg_sleep"))
            lose_connections(gateway)
            await running
    assert not retry_safe(caught.value)


async def test_refused_logins(start: Start) -> None:
    gateway = await start()
    for way in ("tcp", "quic"):
        with pytest.raises(asyncpg.InvalidPasswordError) as caught:
            await gateway.connect(way, password="wrong")
        assert retry_safe(caught.value)
    with pytest.raises(psycopg.OperationalError) as refused:
        await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", password="wrong"))
    assert retry_safe(refused.value)
