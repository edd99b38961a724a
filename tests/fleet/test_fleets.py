"""Fleets that serve: who gets which session, what a worker's death costs, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.waiting import until
from pgtrunk_gateway.fleet import post
from pgtrunk_gateway.fleet.board import Field

if TYPE_CHECKING:
    from helpers.fleets import LocalFleet, StartFleet
    from helpers.gateways import Way

GONE = (asyncpg.PostgresConnectionError, ConnectionError, asyncpg.InterfaceError)
"""What a client gets whose worker has died."""


async def spread_is(fleet: LocalFleet, *expected: int) -> None:
    await until(lambda: fleet.spread() == list(expected) or None)


# -- who gets which ----------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_sessions_are_spread_evenly(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=4)
    ways: tuple[Way, Way] = ("tcp", "unix")
    for number in range(20):
        await fleet.connect(ways[number % 2])
    assert fleet.spread() == [5, 5, 5, 5]
    assert [(await fleet.counters(index))["admitted"] for index in range(4)] == [5, 5, 5, 5]
    for connection in fleet.connections:
        assert await connection.fetchval("SELECT 1") == 1
    # The third's sessions leave: the next ones are its own.
    for connection in fleet.connections[2::4]:
        await connection.close()
    await spread_is(fleet, 5, 5, 0, 5)
    for _ in range(5):
        await fleet.connect()
    assert fleet.spread() == [5, 5, 5, 5]
    for connection in fleet.connections:
        await connection.close()
    await spread_is(fleet, 0, 0, 0, 0)


async def test_who_comes_at_once_is_spread_too(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    await asyncio.gather(*(fleet.connect() for _ in range(20)))
    assert fleet.spread() == [10, 10]


async def test_workers_are_processes_of_their_own_groups(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    pids = fleet.all_pids()
    assert len({*pids, os.getpid()}) == 3
    assert [os.getpgid(pid) for pid in pids] == pids


# -- a worker's death --------------------------------------------------------------------------------------------------


async def outcome(connection: asyncpg.Connection, query: str) -> Any:
    """The value, or the error that came instead."""
    try:
        return await connection.fetchval(query)
    except GONE as error:
        return error


@pytest.mark.both_loops
async def test_a_dead_worker_costs_its_own_sessions_and_comes_back(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    connections = [await fleet.connect(way) for way in ("tcp", "tcp", "unix", "unix")]
    running = [asyncio.ensure_future(outcome(each, "SELECT 7 FROM pg_sleep(1)")) for each in connections]
    await until(lambda: len(fleet.site.admin.running("pg_sleep")) == 4)
    dead = await fleet.kill(0)
    # At once: the other one takes all who come.
    late = await fleet.connect()
    assert await late.fetchval("SELECT 8") == 8
    found = await asyncio.gather(*running)
    assert [isinstance(each, GONE) for each in found] == [True, False, True, False]
    assert found[1] == found[3] == 7
    await fleet.until_served()
    board = fleet.supervisor.board
    assert fleet.pid(0) != dead
    assert [board.read(index, Field.RESTARTS) for index in range(2)] == [1, 0]
    assert fleet.spread() == [0, 3]
    for _ in range(3):
        await fleet.connect()
    assert fleet.spread() == [3, 3]


async def test_a_fault_of_the_supervisors_own_costs_no_worker(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(post, "_SHORTEST", 0.01)
    fleet = await start_fleet(workers=2)

    class Broken:
        def enters(self, index: int, bus: object) -> None: ...

        def leaves(self, index: int) -> None:
            fleet.supervisor.parts.remove(self)
            raise RuntimeError("broken")

    fleet.supervisor.parts.append(Broken())
    connections = [await fleet.connect() for _ in range(2)]
    await fleet.kill(0)
    await fleet.until_served()
    assert "RuntimeError: broken" in caplog.text
    assert await connections[1].fetchval("SELECT 1") == 1
    for _ in range(2):
        assert await (await fleet.connect()).fetchval("SELECT 1") == 1
    assert fleet.spread() == [1, 2]


async def test_a_worker_that_cannot_be_counted_in_is_replaced(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(post, "_SHORTEST", 0.01)
    fleet = await start_fleet(workers=2)
    write, faults = fleet.supervisor.board.write, ["broken"]

    def broken(index: int, field: Field, value: int) -> None:
        if faults and field is Field.PID and value:
            raise RuntimeError(faults.pop())
        write(index, field, value)

    monkeypatch.setattr(fleet.supervisor.board, "write", broken)
    await fleet.kill(0)
    await fleet.until_served()
    assert "RuntimeError: broken" in caplog.text
    assert fleet.supervisor.board.read(0, Field.RESTARTS) == 2
    for _ in range(2):
        assert await (await fleet.connect()).fetchval("SELECT 1") == 1
    assert fleet.spread() == [1, 1]


async def test_while_all_are_dead_who_connects_waits(start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "_SHORTEST", 0.1)
    fleet = await start_fleet(workers=2)
    for index in range(2):
        await fleet.kill(index)
    for connection in await asyncio.gather(fleet.connect("tcp"), fleet.connect("unix")):
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.long)])
async def test_deaths_leave_no_descriptor_behind(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(post, "_SHORTEST", 0.01)
    monkeypatch.setattr(post, "_LONGEST", 0.01)
    fleet = await start_fleet(workers=4)
    before = len(os.listdir("/proc/self/fd"))
    inside = len(os.listdir(f"/proc/{fleet.pid(1)}/fd"))
    for round_number in range(1, rounds + 1):
        for pid in fleet.all_pids():
            os.kill(pid, signal.SIGKILL)
        await until(
            lambda times=round_number: (  # type: ignore[misc]
                all(fleet.all_pids())
                and all(fleet.supervisor.board.read(index, Field.RESTARTS) == times for index in range(4))
            )
        )
    await until(lambda: len(os.listdir("/proc/self/fd")) == before)
    assert await (await fleet.connect()).fetchval("SELECT 1") == 1
    assert len(os.listdir(f"/proc/{fleet.pid(1)}/fd")) <= inside + 2


async def test_signals_are_not_for_workers(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    connections = [await fleet.connect() for _ in range(2)]
    pids = fleet.all_pids()
    for pid in pids:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(pid, signum)
    for connection in connections:
        assert await connection.fetchval("SELECT 1") == 1
    assert fleet.all_pids() == pids


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_stuck_is_killed_at_the_end(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "_ENDS", 0.5)
    fleet = await start_fleet(workers=2)
    os.kill(fleet.pid(0), signal.SIGSTOP)
    await fleet.supervisor.close()


async def test_a_worker_can_ask_for_the_end_of_all(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2)
    connection = await fleet.connect()
    over = asyncio.ensure_future(fleet.supervisor.stopping.over())
    # As the console's SHUTDOWN does it.
    fleet.supervisor.workers[1]._handlers["shutdown"]({"patience": 1})
    with pytest.raises(OSError):
        await fleet.connect()
    assert await connection.fetchval("SELECT 1") == 1
    assert not over.done()
    await connection.close()
    await asyncio.wait_for(over, 30)
