"""QUIC through a fleet of real workers: who dies, who moves, and where all that ends up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.datagrams import relay
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import SessionLost, StreamManager
from pgtrunk_gateway.quic.connection_id import bucket_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helpers.fleets import LocalFleet, StartFleet

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
KNOWS = 3.0
"""Seconds in which a client must know that its worker is gone."""

both_ways = pytest.mark.parametrize("steered", [True, False], ids=["by the kernel", "by each other"])


def driver(session: asyncpg.Connection) -> Any:
    return session._transport.get_extra_info("quic_connection")


def worker_of(fleet: LocalFleet, session: asyncpg.Connection) -> int:
    return bucket_of(driver(session).quic._peer_cid.cid) % fleet.supervisor.count


async def one_on_each(fleet: LocalFleet) -> list[asyncpg.Connection]:
    """Sessions, by the number of their worker; each has a connection of its own."""
    found: dict[int, asyncpg.Connection] = {}
    while len(found) < fleet.supervisor.count:
        trunk = await fleet.trunk(connections=1)
        session = await trunk.connect(**LOGIN)
        index = worker_of(fleet, session)
        if index in found:
            await session.close()
            await trunk.close()
        else:
            found[index] = session
            fleet.connections.append(session)
    return [found[index] for index in range(fleet.supervisor.count)]


def refuse(monkeypatch: pytest.MonkeyPatch, steered: bool) -> None:
    """Whether the kernel takes the program."""
    if not steered:
        monkeypatch.setattr("pgtrunk_gateway.fronts.udp.steer", lambda sock, count: "not today")


@both_ways
async def test_a_killed_workers_clients_know_it_and_the_others_notice_nothing(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, steered: bool
) -> None:
    refuse(monkeypatch, steered)
    # Each proves its address, and comes back to the worker that asked it to.
    fleet = await start_fleet(workers=3, quic_retry="always")
    assert any("not today" in record.message for record in caplog.records) is not steered
    sessions = await one_on_each(fleet)
    others = [await one_on_each(fleet) for _ in range(2)]
    assert fleet.spread() == [3, 3, 3]
    running = [asyncio.create_task(session.execute("SELECT pg_sleep(60)")) for session in others[0]]
    await until(lambda: len(fleet.site.admin.running("pg_sleep")) == 3)
    held = [session.transaction() for session in others[1]]
    for session, transaction in zip(others[1], held, strict=True):
        await transaction.start()
        await session.execute("SELECT 1")
    begun = time.monotonic()
    await fleet.kill(1)
    # Whether it waits for an answer, for its user in a transaction, or for nothing at all.
    async with asyncio.timeout(KNOWS - (time.monotonic() - begun)):
        with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
            await running[1]
        await until(lambda: sessions[1].is_closed() and others[1][1].is_closed())
    assert isinstance(caught.value.__cause__, SessionLost)
    for index in (0, 2):
        assert await sessions[index].fetchval("SELECT 1") == 1
        assert await others[1][index].fetchval("SELECT 2") == 2
        await held[index].commit()
        assert not running[index].done()
    # While it is away others take its clients, and then it is there again.
    reached: set[int] = set()
    while 1 not in reached:
        async with StreamManager(
            f"127.0.0.1:{fleet.quic_port}", ca_file=str(fleet.site.certificates.ca_cert), connections=1
        ) as trunk:
            session = await trunk.connect(**LOGIN)
            assert await session.fetchval("SELECT 1") == 1
            reached.add(worker_of(fleet, session))
            await session.close()
    for pid in fleet.site.admin.running("pg_sleep"):
        fleet.site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await asyncio.gather(*running, return_exceptions=True)


async def test_each_worker_reports_on_the_queries_of_its_own_connections(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    for session in await one_on_each(fleet):
        assert await session.fetchval("SELECT 1") == 1
    busy = [trunk for trunk in fleet.trunks if trunk.stats().streams_in_use]
    assert len(busy) == 2
    await until(lambda: all(trunk.stats().stages.execution.count for trunk in busy))
    assert all(trunk.stats().stages.transfer.count == 1 for trunk in busy)


@contextlib.asynccontextmanager
async def moving(fleet: LocalFleet, number: int) -> AsyncIterator[tuple[Any, list[asyncpg.Connection]]]:
    """Sessions, each with a connection of its own, behind a network whose addresses change."""
    async with relay(fleet.quic_port) as network, contextlib.AsyncExitStack() as stack:
        sessions = []
        for _ in range(number):
            trunk = await stack.enter_async_context(
                StreamManager(
                    f"127.0.0.1:{network.port}",
                    ca_file=str(fleet.site.certificates.ca_cert),
                    server_name="localhost",
                    connections=1,
                )
            )
            sessions.append(await trunk.connect(**LOGIN))
        yield network, sessions
        for session in sessions:
            await session.close()


async def swap(fleet: LocalFleet, swaps: int) -> None:
    async with moving(fleet, 8) as (network, sessions):
        await sessions[0].execute("CREATE TABLE IF NOT EXISTS moved (n int); TRUNCATE moved")
        before = [worker_of(fleet, session) for session in sessions]
        assert len(set(before)) > 1
        for number in range(0, swaps, len(sessions)):
            batch = sessions[: swaps - number]
            transactions = [session.transaction() for session in batch]
            for transaction in transactions:
                await transaction.start()
            await asyncio.gather(*(session.execute(f"INSERT INTO moved VALUES ({number})") for session in batch))
            asked = [asyncio.create_task(session.fetchval("SELECT 7 FROM pg_sleep(0.02)")) for session in batch]
            network.rebind()
            for index, session in enumerate(batch):
                # Half of them notice, as a machine does that goes to another network, and change their ids too.
                if index % 2:
                    driver(session).quic.change_connection_id()
                    driver(session).touch()
            assert await asyncio.gather(*asked) == [7] * len(batch)
            await asyncio.gather(*(session.execute(f"INSERT INTO moved VALUES ({number})") for session in batch))
            for transaction in transactions:
                await transaction.commit()
        assert [worker_of(fleet, session) for session in sessions] == before
    assert fleet.site.admin.value("SELECT count(*) FROM moved") == 2 * swaps


@both_ways
async def test_addresses_change_in_the_middle_of_transactions(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, steered: bool
) -> None:
    refuse(monkeypatch, steered)
    fleet = await start_fleet(workers=4)
    await swap(fleet, 24)
    counters = [await fleet.counters(index) for index in range(4)]
    assert any(each["quic_passed_on"] for each in counters) is not steered
    assert not any(each["quic_dropped"] for each in counters)


@pytest.mark.long
@both_ways
async def test_addresses_change_two_hundred_times(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, steered: bool
) -> None:
    refuse(monkeypatch, steered)
    await swap(await start_fleet(workers=4), 200)
