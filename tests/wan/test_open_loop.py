"""Open loops over sessions that answer at once, or never."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from netem.open_loop import OpenLoop
from netem.plan import Arm, Load, Run, Workload

if TYPE_CHECKING:
    from netem.workloads import Ask

RUN = Run(
    arm=Arm(kind="direct", sessions=4),
    load=Load(kind="fixed", rate=1000, seconds=0.1),
    workload=Workload(),
    host="h",
    port=1,
    database="d",
    user="u",
    password="p",
)


def with_load(**changes: object) -> Run:
    return replace(RUN, load=replace(RUN.load, **changes))  # type: ignore[arg-type]


async def played(run: Run, sessions: int = 4) -> tuple[OpenLoop, Counter[int]]:
    used: Counter[int] = Counter()

    def ask_of(session: int) -> Ask:
        async def ask(_number: int) -> None:
            used[session] += 1
            await asyncio.sleep(0)

        return ask

    loop = OpenLoop(run, [ask_of(session) for session in range(sessions)])
    await loop.play(report=False)
    return loop, used


async def test_all_that_was_to_be_asked_is_answered() -> None:
    loop, used = await played(RUN)
    assert (loop.asked, loop.done, loop.failed, loop.unanswered) == (100, 100, 0, 0)
    assert len(loop.latencies) == used.total() == 100


async def test_sessions_take_turns_where_they_are_to() -> None:
    _, used = await played(with_load(turns=True))
    assert max(used.values()) - min(used.values()) <= 1


async def test_otherwise_the_one_that_was_used_last_is_used_next() -> None:
    """Few at a time, far apart: one session after the other is not needed."""
    _, used = await played(with_load(kind="burst", size=1, every=0.02))
    assert len(used) == 1


async def test_what_is_never_answered_is_counted_with_its_wait() -> None:
    async def never(_number: int) -> None:
        await asyncio.get_running_loop().create_future()

    loop = OpenLoop(with_load(kind="burst", size=10, patience=0.05), [never, never])
    seconds = await loop.play(report=False)
    assert seconds >= 0.15
    assert (loop.asked, loop.done, loop.unanswered) == (10, 0, 10)
    assert len(loop.waited) == 10
    assert min(loop.waited) >= 100_000


async def test_late_answers_are_noted_with_their_session() -> None:
    async def late(_number: int) -> None:
        await asyncio.sleep(0.05)

    loop = OpenLoop(replace(with_load(kind="burst", size=1), late_after=0.02), [late])
    await loop.play(report=False)
    ((session, sent, answered),) = loop.late
    assert session == 0
    assert answered - sent >= 0.045
