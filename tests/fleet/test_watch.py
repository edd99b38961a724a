"""What the supervisor makes of workers that do not count on: the table, and what is done about it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from helpers.waiting import until
from pgtrunk_gateway.fleet.board import Field
from pgtrunk_gateway.fleet.watch import STUCK_AFTER, Finding, Watch
from pgtrunk_gateway.fleet.watchdog import _WHERE

if TYPE_CHECKING:
    from helpers.fleets import StartFleet

LIMIT = 8


def silence(watch: Watch, looks: int, limit: int = LIMIT) -> list[Finding | None]:
    return [watch.look(0, 1, limit) for _ in range(looks)]


@pytest.fixture
def watch() -> Watch:
    watch = Watch()
    watch.join(0, 1)
    return watch


def test_who_counts_on_is_awake(watch: Watch) -> None:
    assert [watch.look(0, count, LIMIT) for count in range(2, 40)] == [None] * 38
    assert watch.silent(0) == 0


def test_who_does_not_is_stuck_once_and_then_hung_once(watch: Watch) -> None:
    found = silence(watch, LIMIT + 5)
    assert [(look, each) for look, each in enumerate(found, 1) if each] == [
        (STUCK_AFTER, Finding.STUCK),
        (LIMIT, Finding.HUNG),
    ]


def test_who_was_stuck_and_counts_on_is_awake_again(watch: Watch) -> None:
    silence(watch, LIMIT - 1)
    assert watch.look(0, 2, LIMIT) is Finding.AWAKE
    assert watch.look(0, 3, LIMIT) is None
    # It begins from the start.
    assert [watch.look(0, 3, LIMIT) for _ in range(STUCK_AFTER)] == [*[None] * (STUCK_AFTER - 1), Finding.STUCK]


def test_who_was_silent_for_less_is_not_spoken_of(watch: Watch) -> None:
    silence(watch, STUCK_AFTER - 1)
    assert watch.look(0, 2, LIMIT) is None


def test_who_hangs_stays_so_until_another_is_in_its_place(watch: Watch) -> None:
    silence(watch, LIMIT)
    assert watch.look(0, 2, LIMIT) is None
    assert silence(watch, LIMIT * 2) == [None] * LIMIT * 2
    watch.leave(0)
    assert watch.watched == ()
    assert watch.silent(0) == 0
    watch.join(0, 0)
    assert watch.look(0, 1, LIMIT) is None


def test_without_a_limit_nobody_hangs(watch: Watch) -> None:
    assert Finding.HUNG not in silence(watch, 1000, 0)


def test_a_short_limit_leaves_time_to_be_stuck(watch: Watch) -> None:
    assert silence(watch, STUCK_AFTER + 1, 1)[-2:] == [Finding.STUCK, Finding.HUNG]


# -- real workers ------------------------------------------------------------------------------------------------------


async def test_a_stopped_worker_gets_no_connections_and_may_go_on(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await start_fleet(workers=2)
    pid = fleet.pid(0)
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: f"worker 0: pid {pid} does nothing for 5 s" in caplog.text)
        for _ in range(5):
            await fleet.connect()
        assert fleet.spread() == [0, 5]
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: f"worker 0: pid {pid} goes on" in caplog.text)
    for _ in range(5):
        await fleet.connect()
    assert fleet.spread() == [5, 5]
    assert fleet.pid(0) == pid


async def test_a_hung_worker_is_killed_and_replaced(start_fleet: StartFleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet = await start_fleet(workers=2, worker_hang_timeout=6)
    connections = [await fleet.connect() for _ in range(2)]
    pids = fleet.all_pids()
    hung = fleet.spread().index(1)
    os.kill(pids[hung], signal.SIGSTOP)
    board = fleet.supervisor.board
    await until(lambda: board.read(hung, Field.PID) not in (0, pids[hung]))
    assert (
        f"worker {hung}: pid {pids[hung]} was killed by SIGKILL: its event loop had not turned for 6 s"
        " (worker_hang_timeout)" in caplog.text
    )
    assert board.read(hung, Field.RESTARTS) == 1
    answers = await asyncio.gather(*(each.fetchval("SELECT 1") for each in connections), return_exceptions=True)
    assert sorted(map(type, answers), key=lambda kind: kind is not int)[0] is int
    assert len([each for each in answers if isinstance(each, Exception)]) == 1


def test_a_worker_in_an_endless_loop_says_where() -> None:
    program = """if True:
        import asyncio
        from types import SimpleNamespace
        from pgtrunk_gateway.fleet.watchdog import Pulse

        async def work():
            with Pulse(SimpleNamespace(post=lambda *_: None)):
                print("ready", flush=True)
                goes_on_for_ever()

        def goes_on_for_ever():
            while True:
                pass

        asyncio.run(work())
    """
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "ready\n"
            said = ""
            while "goes_on_for_ever" not in said:
                # The first may come before the loop has begun. Each is read to its end before the next is sent, or the
                # process would do nothing but answer.
                process.send_signal(_WHERE)
                said = ""
                while not said.endswith(" in <module>\n"):
                    line = process.stderr.readline()
                    assert line, "nothing was said"
                    said += line
        finally:
            process.kill()
