"""Online restart with both supervisors in the test's loop: what happens when one of the two dies at a bad moment, where
the kernel does not steer, and how limits hold for both together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import SessionLost, StreamManager
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.fleet import heritage as heritage_module
from pgtrunk_gateway.fleet import post, succession
from pgtrunk_gateway.fleet.dues import POOL
from pgtrunk_gateway.fleet.heritage import Heritage
from pgtrunk_gateway.fleet.supervisor import Supervisor
from pgtrunk_gateway.quic.connection_id import generation_of
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from helpers.fleets import LocalFleet, StartFleet

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
KNOWS = 3.0
"""Seconds in which a client must know that its worker is gone."""


@contextlib.asynccontextmanager
async def next_of(fleet: LocalFleet, workers: int, **settings: Any) -> AsyncIterator[Supervisor]:
    """The next supervisor, which has taken over from that of ``fleet``."""
    supervisor = await take_over(fleet, workers, **settings)
    try:
        yield supervisor
    finally:
        await supervisor.close()


async def take_over(fleet: LocalFleet, workers: int, **settings: Any) -> Supervisor:
    settings = {"logfile": fleet.place / "log", "workers": workers, **settings}
    loaded = load(fleet.site.write_ini(fleet.place, **settings))
    heritage = await Heritage.claim(loaded)
    assert heritage is not None
    supervisor = Supervisor(loaded, workers, quiet=True, heritage=heritage)
    try:
        await supervisor.start()
    finally:
        if not heritage.serves:
            await heritage.close()
    return supervisor


@contextlib.asynccontextmanager
async def session_over_quic(fleet: LocalFleet) -> AsyncIterator[asyncpg.Connection]:
    """On a trunk of its own."""
    ca_file = str(fleet.site.certificates.ca_cert)
    async with StreamManager(f"127.0.0.1:{fleet.quic_port}", ca_file=ca_file, connections=1) as trunk:
        session = await trunk.connect(**LOGIN)
        try:
            yield session
        finally:
            session.terminate()


async def over(supervisor: Supervisor) -> None:
    """Returns when it has ended by itself, and closes it."""
    async with asyncio.timeout(40):
        await supervisor.stopping.over()
    await supervisor.close()


# -- the kernel --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steered", [True, False], ids=["by the kernel", "by each other"])
async def test_datagrams_find_their_generation(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, steered: bool
) -> None:
    if not steered:
        monkeypatch.setattr("pgtrunk_gateway.fronts.udp.steer", lambda sock, count: "not today")
    fleet = await start_fleet(workers=3)
    async with contextlib.AsyncExitStack() as stack:
        old = [await stack.enter_async_context(session_over_quic(fleet)) for _ in range(8)]
        new = await stack.enter_async_context(next_of(fleet, 2))
        assert (new.generation, len(new.sockets.group)) == (1, 3)
        late = [await stack.enter_async_context(session_over_quic(fleet)) for _ in range(8)]
        for _ in range(5):
            for session in (*old, *late):
                assert await session.fetchval("SELECT 1") == 1
        newest = await stack.enter_async_context(next_of(fleet, 4))
        assert (newest.generation, len(newest.sockets.group)) == (2, 4)
        last = [await stack.enter_async_context(session_over_quic(fleet)) for _ in range(8)]
        for _ in range(5):
            for session in (*old, *late, *last):
                assert await session.fetchval("SELECT 2") == 2


async def test_a_trunk_moves_to_the_next_one(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    ca_file = str(fleet.site.certificates.ca_cert)
    async with StreamManager(f"127.0.0.1:{fleet.quic_port}", ca_file=ca_file, connections=1) as trunk:
        first = await trunk.connect(**LOGIN)
        async with next_of(fleet, 2):
            await until(lambda: trunk.stats().goaways)
            late = await trunk.connect(**LOGIN)
            assert [generation(each) for each in (first, late)] == [0, 1]
            assert await first.fetchval("SELECT 1") == await late.fetchval("SELECT 1")
            await first.close()
            # Though the trunk is in use, the old one is rid of it.
            await over(fleet.supervisor)
            assert await late.fetchval("SELECT 2") == 2
            await late.close()


def generation(session: asyncpg.Connection) -> int:
    """Of the workers that a session's packets go to."""
    return generation_of(session._transport.get_extra_info("quic_connection").quic._peer_cid.cid)


async def test_without_quic(start_fleet: StartFleet) -> None:
    plain = {"quic_cert_file": None, "quic_key_file": None}
    fleet = await start_fleet(workers=2, **plain)
    session = await fleet.connect()
    async with next_of(fleet, 3, **plain):
        late = [await fleet.connect(way) for way in ("tcp", "unix", "tcp")]
        for each in (session, *late):
            assert await each.fetchval("SELECT 1") == 1
        await session.close()
        await over(fleet.supervisor)


async def test_a_worker_of_the_old_fleet_dies_and_its_clients_know_it(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=1, max_db_connections=1)
    pid = fleet.pid(0)
    async with session_over_quic(fleet) as session, next_of(fleet, 2, max_db_connections=1):
        transaction = session.transaction()
        await transaction.start()
        asked = asyncio.ensure_future(session.execute("SELECT pg_sleep(60)"))
        await until(lambda: fleet.site.admin.running("pg_sleep"))
        # Its place is the only one there is.
        coming = asyncio.ensure_future(fleet.connect())
        await asyncio.sleep(0.3)
        assert not coming.done()
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
            await asked
        assert isinstance(caught.value.__cause__, SessionLost)
        assert time.monotonic() - began < KNOWS
        late = await coming
        assert await late.fetchval("SELECT 1") == 1
        await late.close()
        await over(fleet.supervisor)


async def test_a_cancel_by_an_older_connection_finds_a_session_that_is_newer(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    ca_file = str(fleet.site.certificates.ca_cert)
    async with StreamManager(f"127.0.0.1:{fleet.quic_port}", ca_file=ca_file, connections=1) as trunk:
        first = await trunk.connect(**LOGIN)
        async with next_of(fleet, 3), next_of(fleet, 2):
            session = await fleet.connect()
            asked = asyncio.ensure_future(session.fetchval("SELECT pg_sleep(60)"))
            await until(lambda: fleet.site.admin.running("pg_sleep"))
            transport, _ = await trunk.open_stream(asyncio.Protocol)
            protocol: Any = session._protocol
            secret = protocol.backend_secret.to_bytes(4, "big", signed=True)
            transport.write(CancelRequest(protocol.backend_pid, secret).encode())
            with pytest.raises(asyncpg.QueryCanceledError):
                await asked
            assert await first.fetchval("SELECT 1") == 1
            await first.close()
            await session.close()
            await trunk.close()
            await over(fleet.supervisor)


# -- places in Postgres ------------------------------------------------------------------------------------------------


async def test_places_are_those_of_both_together(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2, max_db_connections=3)
    old = [await fleet.connect() for _ in range(4)]
    transactions = [each.transaction() for each in old[:3]]
    for transaction in transactions:
        await transaction.start()
    for each in old[:3]:
        await each.execute("SELECT 1")
    waiting = asyncio.ensure_future(old[3].fetchval("SELECT 1"))
    async with next_of(fleet, 2, max_db_connections=3) as new:
        held = new.teller.bank.accounts[POOL, DATABASE, USER]
        assert held.total == 3 and not waiting.done()
        late = [asyncio.ensure_future(fleet.connect()) for _ in range(3)]
        for transaction in transactions:
            await transaction.commit()
        assert await waiting == 1
        sessions = await asyncio.gather(*late)
        for _ in range(20):
            assert await asyncio.gather(*(each.fetchval("SELECT 2") for each in (*old, *sessions))) == [2] * 7
            assert len(fleet.site.admin.backends()) <= 3
            assert held.total <= 3
        for each in (*old, *sessions):
            await each.close()
        await over(fleet.supervisor)
        # What the old one had is given back.
        counters = [await new.workers[index].ask("counters", timeout=20) for index in range(2)]
        mine: int = sum(each["backends"] for each in counters)
        await until(lambda: held.total == mine)
        await until(lambda: not new.teller.admittance.population.counts)


# -- deaths ------------------------------------------------------------------------------------------------------------


async def test_one_that_goes_before_it_serves_leaves_the_old_one_as_it_was(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    session = await fleet.connect()
    async with session_over_quic(fleet) as streamed:
        for _ in range(2):
            heritage = await Heritage.claim(load(fleet.ini))
            assert heritage is not None
            assert await heritage.retire() is not None
            # Nobody reads datagrams, but they are not lost.
            asked = asyncio.ensure_future(streamed.fetchval("SELECT 1"))
            await asyncio.sleep(0.3)
            assert not asked.done()
            late = asyncio.ensure_future(fleet.connect())
            assert await session.fetchval("SELECT 2") == 2
            for descriptor in heritage.inventory.descriptors:
                os.close(descriptor)
            await heritage.close()
            assert await (await late).fetchval("SELECT 3") == 3
            assert await asked == 1
    async with next_of(fleet, 1):
        assert await session.fetchval("SELECT 4") == 4
        for each in fleet.connections:
            await each.close()
        await over(fleet.supervisor)


async def test_one_that_comes_to_a_halt_is_not_waited_for(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "_STARTS", 0.5)
    monkeypatch.setattr(succession, "_SERVES", 0.5)
    fleet = await start_fleet(workers=2)
    async with session_over_quic(fleet) as streamed:
        for goes_on in (False, True):
            heritage = await Heritage.claim(load(fleet.ini))
            assert heritage is not None
            if goes_on:
                await heritage.retire()
            async with asyncio.timeout(20):
                await heritage.gone()
            for descriptor in heritage.inventory.descriptors:
                os.close(descriptor)
            await heritage.close()
            assert await streamed.fetchval("SELECT 1") == 1


async def test_one_whose_worker_cannot_start(start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = await start_fleet(workers=2)
    session = await fleet.connect()
    with monkeypatch.context() as patch:
        patch.setattr(post, "_BEGINS", 0.05)
        with pytest.raises(ConfigError, match="did not serve"):
            await take_over(fleet, 2)
    assert await session.fetchval("SELECT 1") == 1
    assert await (await fleet.connect()).fetchval("SELECT 1") == 1
    async with session_over_quic(fleet) as streamed:
        assert await streamed.fetchval("SELECT 1") == 1


async def test_one_of_a_version_that_speaks_otherwise(start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = await start_fleet(workers=1)
    monkeypatch.setattr(heritage_module, "FORMAT", 2)
    with pytest.raises(ConfigError, match="speaks format 1, and this version 2"):
        await Heritage.claim(load(fleet.ini))
    assert await (await fleet.connect()).fetchval("SELECT 1") == 1


async def test_two_at_a_time(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    first = await Heritage.claim(load(fleet.ini))
    assert first is not None
    with pytest.raises(ConfigError, match="another gateway is taking over already"):
        await Heritage.claim(load(fleet.ini))
    for descriptor in first.inventory.descriptors:
        os.close(descriptor)
    await first.close()
    async with next_of(fleet, 2):
        await over(fleet.supervisor)


async def test_without_its_successor_the_old_one_ends_with_its_transactions(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    idle, busy = await fleet.connect(), await fleet.connect()
    transaction = busy.transaction()
    await transaction.start()
    await busy.execute("SELECT 1")
    async with next_of(fleet, 2) as new:
        # As if it had been killed: nobody is told.
        new.changeover.hurry = lambda patience: None  # type: ignore[method-assign]
    await until(idle.is_closed)
    assert await busy.fetchval("SELECT 2") == 2
    await transaction.commit()
    await over(fleet.supervisor)


async def test_who_ends_the_new_one_ends_the_old_one(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    session = await fleet.connect()
    async with next_of(fleet, 2) as new:
        new.stopping.ask(Patience.TRANSACTIONS)
        async with asyncio.timeout(40):
            await asyncio.gather(new.stopping.over(), over(fleet.supervisor))
        await until(session.is_closed)


async def test_so_many_may_be_leaving(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=1)
    async with contextlib.AsyncExitStack() as stack:
        sessions, supervisors = [], [fleet.supervisor]
        for _ in range(3):
            sessions.append(await fleet.connect())
            supervisors.append(await stack.enter_async_context(next_of(fleet, 1)))
        with pytest.raises(ConfigError, match="still have clients"):
            await take_over(fleet, 1)
        for session in sessions:
            assert await session.fetchval("SELECT 1") == 1
        # The second leaves first, but decides for the first.
        await sessions[1].close()
        await until(lambda: not supervisors[1].workers)
        assert await sessions[0].fetchval("SELECT 2") == 2
        newest = await stack.enter_async_context(next_of(fleet, 1))
        assert newest.generation % 4 not in {0, 2, 3}
        for session in sessions:
            await session.close()
        for supervisor in supervisors:
            await over(supervisor)
