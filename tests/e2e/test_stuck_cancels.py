"""Cancels that Postgres, or the network before it, does not take: no backend is held for them longer than
cancel_wait_timeout, nobody waits for them who need not, and what arrives later hits nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.cancel_trap import CancelTrap, cancel_trap
from helpers.raw_session import RawSession
from helpers.site import DATABASE
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk_gateway.cancel.outcome import Outcome

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

SLEEP: Final = frontend.query(b"SELECT pg_sleep(60)")
SELECT: Final = frontend.query(b"SELECT 1")
CANCELLED: Final = "57014"


async def begin(start: Start, trap: CancelTrap, **settings: Any) -> LocalGateway:
    databases = {DATABASE: f"host=127.0.0.1 port={trap.port}"}
    settings = {"auth_type": "trust", "cancel_wait_timeout": 2, "query_wait_notify": 0, **settings}
    return await start(databases=databases, **settings)


async def run(gateway: LocalGateway, session: RawSession) -> int:
    """The session runs something from now on -> the pid of its backend."""
    before = set(gateway.site.admin.running("pg_sleep(60)"))
    session.send(SLEEP)
    await until(lambda: set(gateway.site.admin.running("pg_sleep(60)")) - before)
    (pid,) = set(gateway.site.admin.running("pg_sleep(60)")) - before
    return pid


async def ask_to_cancel(gateway: LocalGateway, way: Way, session: RawSession) -> RawSession:
    """The connection of a cancel request that is under way."""
    connection = await RawSession.open(gateway, way)
    connection.send(session.cancel_request())
    return connection


async def end(gateway: LocalGateway, session: RawSession, pid: int) -> None:
    """What it runs ends without the gateway's help."""
    gateway.site.admin.execute("SELECT pg_cancel_backend(%s)", pid)
    assert await errors(session) == [CANCELLED]


async def errors(session: RawSession) -> list[str]:
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


def outcomes(gateway: LocalGateway) -> dict[Outcome, int]:
    return dict(gateway.gateway.cancels.outcomes)


async def test_a_connection_that_postgres_never_closes(start: Start, site: Site, pooled: Way) -> None:
    """The backend stays with its session for so long, since the signal may come at any time. Then it is replaced, since
    it still may."""
    async with cancel_trap(site.postgres.host, site.postgres.port) as trap:
        gateway = await begin(start, trap, default_pool_size=2)
        victim, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
        pid = await run(gateway, victim)
        trap.how = "holds"
        cancel = await ask_to_cancel(gateway, pooled, victim)
        await until(lambda: trap.held == 1)
        await end(gateway, victim, pid)
        assert gateway.counts(leased=1, cancels=1) or cancel.is_lost.is_set()
        assert await other.ask(SELECT) == "TDCZI"
        # Its own session has it still, and may use it.
        assert await victim.ask(SELECT) == "TDCZI"
        assert await cancel.until_lost() == []
        await until(lambda: gateway.counts(leased=0, cancels=0))
        assert outcomes(gateway) == {Outcome.UNCONFIRMED: 1}
        assert pid not in gateway.backend_pids
        # And now it comes.
        for session in (victim, other):
            await run(gateway, session)
        await trap.deliver()
        await asyncio.sleep(0.05)
        assert not victim.has_answer
        assert not other.has_answer
        trap.how = "passes"
        for session in (victim, other):
            await ask_to_cancel(gateway, pooled, session)
            assert await errors(session) == [CANCELLED]


async def test_the_last_backend_is_replaced_for_who_waits_for_it(start: Start, site: Site, pooled: Way) -> None:
    async with cancel_trap(site.postgres.host, site.postgres.port) as trap:
        gateway = await begin(start, trap, default_pool_size=1)
        victim, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
        pid = await run(gateway, victim)
        trap.how = "holds"
        await ask_to_cancel(gateway, pooled, victim)
        await until(lambda: trap.held == 1)
        other.send(SLEEP)
        await end(gateway, victim, pid)
        await until(lambda: gateway.counts(cancels=0, waiting=0, leased=1))
        await until(lambda: gateway.site.admin.running("pg_sleep(60)"))
        assert pid not in gateway.backend_pids
        await trap.deliver()
        await asyncio.sleep(0.05)
        assert not other.has_answer
        trap.how = "passes"
        await ask_to_cancel(gateway, pooled, other)
        assert await errors(other) == [CANCELLED]


async def test_a_server_that_accepts_no_more_connections(start: Start, site: Site, pooled: Way) -> None:
    async with cancel_trap(site.postgres.host, site.postgres.port) as trap:
        gateway = await begin(start, trap, default_pool_size=2)
        victim, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
        pid = await run(gateway, victim)
        assert await other.ask(SELECT) == "TDCZI"
        await trap.deafen()
        cancel = await ask_to_cancel(gateway, pooled, victim)
        await until(lambda: gateway.counts(cancels=1) or cancel.is_lost.is_set())
        await end(gateway, victim, pid)
        assert await other.ask(SELECT) == "TDCZI"
        assert await cancel.until_lost() == []
        await until(lambda: gateway.counts(leased=0, cancels=0))
        (outcome,) = outcomes(gateway)
        # Some systems say that the connection is there before anybody has accepted it.
        assert outcome in (Outcome.FAILED, Outcome.UNCONFIRMED)
        assert (pid in gateway.backend_pids) == (outcome is Outcome.FAILED)
        trap.listen()
        for session in (victim, other):
            assert await session.ask(SELECT) == "TDCZI"


async def test_a_server_that_hangs_up_at_once(start: Start, site: Site, pooled: Way) -> None:
    """Nothing has come of it, as the client sees; it asks again, and the backend is none the worse."""
    async with cancel_trap(site.postgres.host, site.postgres.port) as trap:
        gateway = await begin(start, trap, cancel_wait_timeout=60)
        victim = await RawSession.start(gateway, pooled)
        pid = await run(gateway, victim)
        trap.how = "closes"
        for seen in range(1, 4):
            cancel = await ask_to_cancel(gateway, pooled, victim)
            assert await cancel.until_lost() == []
            assert trap.seen == seen
        assert gateway.site.admin.running("pg_sleep(60)") == [pid]
        trap.how = "passes"
        await ask_to_cancel(gateway, pooled, victim)
        assert await errors(victim) == [CANCELLED]
        assert await run(gateway, victim) == pid
        await ask_to_cancel(gateway, pooled, victim)
        assert await errors(victim) == [CANCELLED]


async def test_a_client_that_vanishes_behind_a_stuck_cancel(start: Start, site: Site, pooled: Way) -> None:
    async with cancel_trap(site.postgres.host, site.postgres.port) as trap:
        gateway = await begin(start, trap, default_pool_size=1)
        victim, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
        pid = await run(gateway, victim)
        trap.how = "holds"
        await ask_to_cancel(gateway, pooled, victim)
        await until(lambda: trap.held >= 1)
        victim.abort()
        assert await other.ask(SELECT) == "TDCZI"
        assert pid not in gateway.backend_pids
        await end_of(gateway, pid)


async def end_of(gateway: LocalGateway, pid: int) -> None:
    """Postgres sees that its client is gone when it has something to say."""
    gateway.site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await until(lambda: pid not in gateway.site.admin.backends())


@pytest.mark.parametrize("how", ["holds", "passes"])
async def test_a_storm_of_cancels_is_a_few_connections(start: Start, site: Site, pooled: Way, how: Any) -> None:
    async with cancel_trap(site.postgres.host, site.postgres.port) as trap:
        gateway = await begin(start, trap)
        victim, other = [await RawSession.start(gateway, pooled) for _ in range(2)]
        pid = await run(gateway, victim)
        trap.how = how
        clients = [await ask_to_cancel(gateway, pooled, victim) for _ in range(50)]
        if how == "holds":
            await until(lambda: trap.held)
            assert await other.ask(SELECT) == "TDCZI"
            await end(gateway, victim, pid)
        else:
            assert await errors(victim) == [CANCELLED]
        for client in clients:
            assert await client.until_lost() == []
        await until(lambda: gateway.counts(leased=0, cancels=0))
        assert gateway.gateway.cancels.received == sum(outcomes(gateway).values()) == 50
        if how == "holds":
            # Each was told to a server that said nothing, or not at all.
            assert trap.seen <= 4
        assert await victim.ask(SELECT) == "TDCZI"


async def test_a_cancel_may_take_longer_than_a_login(start: Start, site: Site, pooled: Way) -> None:
    """Who waits for its end gets no error for it: newer libpqs would take that for one of the cancel's own."""
    async with cancel_trap(site.postgres.host, site.postgres.port) as trap:
        gateway = await begin(start, trap, client_login_timeout=1)
        victim = await RawSession.start(gateway, pooled)
        pid = await run(gateway, victim)
        trap.how = "holds"
        cancel = await ask_to_cancel(gateway, pooled, victim)
        assert await cancel.until_lost() == []
        assert outcomes(gateway) == {Outcome.UNCONFIRMED: 1}
        await end(gateway, victim, pid)
