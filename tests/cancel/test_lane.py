"""The way to a peer: no more at a time than it has room for, in order, and nothing lost however one ends."""

from __future__ import annotations

import asyncio

import pytest

from helpers.cancelling import Moment, cancel_at, cancel_everywhere
from pgtrunk_gateway.cancel.lane import Lane


def numbers(lane: Lane) -> tuple[int, int, int]:
    return lane.waiting, lane.connecting, lane.told


async def turns(lane: Lane, count: int) -> list[asyncio.Task[None]]:
    """So many that want to enter, one after the other."""
    tasks = [asyncio.create_task(lane.enter()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_the_next_enters_when_one_has_left() -> None:
    lane = Lane(2)
    tasks = await turns(lane, 5)
    assert [task.done() for task in tasks] == [True, True, False, False, False]
    assert numbers(lane) == (3, 2, 0)
    lane.tell()
    assert numbers(lane) == (3, 1, 1)
    for number in (2, 3):
        lane.leave(told=number == 2)
        await asyncio.wait([tasks[number]])
        assert [task.done() for task in tasks] == [True] * (number + 1) + [False] * (4 - number)
    assert numbers(lane) == (1, 2, 0)
    lane.leave(told=False)
    await asyncio.wait(tasks)
    for _ in range(2):
        lane.leave(told=False)
    assert numbers(lane) == (0, 0, 0)


async def test_nobody_overtakes_who_waits() -> None:
    lane = Lane(1)
    _, waiting = await turns(lane, 2)
    lane.leave(told=False)
    # It has its place, though it has not run yet.
    late = asyncio.create_task(lane.enter())
    await asyncio.sleep(0)
    await waiting
    assert not late.done()
    assert numbers(lane) == (1, 1, 0)
    lane.leave(told=False)
    await late
    lane.leave(told=False)


async def test_no_limit() -> None:
    lane = Lane(0)
    await asyncio.gather(*await turns(lane, 100))
    assert numbers(lane) == (0, 100, 0)


@pytest.mark.parametrize(("size", "entered"), [(3, 3), (0, 5), (1, 1)])
async def test_another_size(size: int, entered: int) -> None:
    lane = Lane(1)
    tasks = await turns(lane, 5)
    lane.size = size
    lane.admit()
    await asyncio.sleep(0)
    assert sum(task.done() for task in tasks) == entered
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert numbers(lane) == (0, entered, 0)


async def test_who_gives_up_at_any_moment_leaves_no_trace() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        lane = Lane(1)
        await lane.enter()
        asyncio.get_running_loop().call_later(0.01, lambda: lane.leave(told=False))
        hit = await cancel_at(lane.enter(), at, moment)
        async with asyncio.timeout(10):
            # There is room for one, whatever became of the one before.
            if not hit:
                lane.leave(told=False)
            await lane.enter()
        assert numbers(lane) == (0, 1, 0)
        return hit

    assert await cancel_everywhere(scenario) == 1


async def test_one_that_gives_up_lets_the_next_one_in() -> None:
    lane = Lane(1)
    _, second, third = await turns(lane, 3)
    lane.leave(told=False)
    second.cancel()
    await asyncio.wait([second, third])
    assert second.cancelled()
    assert not third.cancelled()
    assert numbers(lane) == (0, 1, 0)
