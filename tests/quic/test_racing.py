"""Happy eyeballs: who begins when, who wins, and that nothing is left of the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pgtrunk.errors import GatewayUnreachable
from pgtrunk.quic.racing import ATTEMPT_DELAY, LONGEST_DELAY, SHORTEST_DELAY, Outcome, Pace, attempt_delay, race

NEVER = 60.0


@pytest.mark.parametrize(
    ("round_trip", "delay"),
    [(None, ATTEMPT_DELAY), (0.0002, SHORTEST_DELAY), (0.03, 0.12), (0.2, 0.8), (3.0, LONGEST_DELAY)],
)
def test_an_attempt_is_alone_for_some_round_trips(round_trip: float | None, delay: float) -> None:
    assert attempt_delay(round_trip) == pytest.approx(delay)


def test_the_pace() -> None:
    pace = Pace(now=10.0)
    assert pace.due == 10.0
    pace.begun(0, 10.0, 0.25)
    assert pace.due == 10.25
    pace.begun(1, 10.25, 0.25)
    pace.failed(0, 10.3)  # the latest has its while
    assert pace.due == 10.5
    pace.heard(0)
    assert pace.due == 10.5
    pace.heard(1)
    pace.heard(1)
    assert pace.due == 10.25 + LONGEST_DELAY
    pace.failed(1, 10.4)
    assert pace.due == 10.4


class Runner:
    """An entrant that does what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_heard = False
        self.is_discarded = False
        self.has_begun = asyncio.Event()
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, deadline: float) -> None:
        self.has_begun.set()
        try:
            async with asyncio.timeout_at(deadline):
                await self.result
        except TimeoutError:
            self.discard()
            raise GatewayUnreachable(f"{self.name} is silent") from None
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        self.is_discarded = True

    def win(self) -> None:
        self.result.set_result(None)

    def fail(self) -> None:
        self.result.set_exception(GatewayUnreachable(f"{self.name} failed"))


class Field:
    """Runners, and a race between them."""

    def __init__(self, *names: str, delay: float = NEVER, timeout: float = 30.0, sources: Any = ()) -> None:
        self.runners = {name: Runner(name) for name in names}
        self.left = list(names)
        loop = asyncio.get_running_loop()
        self.race: asyncio.Task[Outcome[str, Runner]] = loop.create_task(
            race(self.next, self.runners.__getitem__, lambda _: delay, deadline=loop.time() + timeout, sources=sources)
        )

    def next(self) -> str | None:
        return self.left.pop(0) if self.left else None

    def __getattr__(self, name: str) -> Runner:
        return self.runners[name]

    async def begun(self, *names: str) -> None:
        async with asyncio.timeout(10):
            for name in names:
                await self.runners[name].has_begun.wait()

    def names_begun(self) -> list[str]:
        return [name for name, runner in self.runners.items() if runner.has_begun.is_set()]


async def test_the_first_wins_and_nobody_else_begins() -> None:
    field = Field("a", "b")
    await field.begun("a")
    field.a.win()
    outcome = await field.race
    assert outcome.winner is not None
    assert outcome.winner.candidate == "a"
    assert field.names_begun() == ["a"]


async def test_the_next_begins_when_the_time_has_come_and_the_losers_are_discarded() -> None:
    field = Field("a", "b", "c", delay=0.01)
    await field.begun("a", "b", "c")
    field.b.win()
    outcome = await field.race
    assert outcome.winner is not None
    assert outcome.winner.candidate == "b"
    assert [runner.is_discarded for runner in field.runners.values()] == [True, False, True]
    assert [attempt.candidate for attempt in outcome.attempts] == ["a", "b", "c"]
    assert all(attempt.error is None for attempt in outcome.attempts)


async def test_the_next_begins_at_once_when_the_latest_has_failed() -> None:
    field = Field("a", "b", "c")
    await field.begun("a")
    field.a.fail()
    await field.begun("b")
    assert field.names_begun() == ["a", "b"]
    field.b.win()
    outcome = await field.race
    assert [str(attempt.error) for attempt in outcome.attempts] == ["a failed", "None"]


async def test_one_that_is_heard_is_alone_for_longer() -> None:
    field = Field("a", "b", delay=0.02)
    field.a.is_heard = True
    await asyncio.sleep(0.2)
    assert field.names_begun() == ["a"]
    field.a.win()
    await field.race


async def test_all_fail() -> None:
    field = Field("a", "b")
    await field.begun("a")
    field.a.fail()
    await field.begun("b")
    field.b.fail()
    outcome = await field.race
    assert outcome.winner is None
    assert [str(attempt.error) for attempt in outcome.attempts] == ["a failed", "b failed"]


async def test_silence_ends_at_the_deadline() -> None:
    field = Field("a", "b", delay=0.01, timeout=0.1)
    outcome = await field.race
    assert outcome.winner is None
    assert [str(attempt.error) for attempt in outcome.attempts] == ["a is silent", "b is silent"]


async def test_of_two_that_are_done_at_once_one_wins_and_the_other_is_discarded() -> None:
    field = Field("a", "b", delay=0.01)
    await field.begun("a", "b")
    field.a.win()
    field.b.win()
    outcome = await field.race
    assert outcome.winner is not None
    assert sorted(runner.is_discarded for runner in field.runners.values()) == [False, True]
    assert not outcome.winner.connection.is_discarded


async def test_a_fault_ends_the_race() -> None:
    field = Field("a", "b", delay=0.01)
    await field.begun("a", "b")
    field.a.result.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await field.race
    assert field.b.is_discarded


async def test_cancelled_it_leaves_nothing() -> None:
    field = Field("a", "b", delay=0.01)
    await field.begun("a", "b")
    field.race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await field.race
    assert field.a.is_discarded
    assert field.b.is_discarded
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelled_in_the_turn_in_which_one_wins_it_leaves_nothing() -> None:
    for turns in range(6):
        field = Field("a", "b", delay=0.0)
        await field.begun("a", "b")
        field.a.win()
        for _ in range(turns):
            await asyncio.sleep(0)
        field.race.cancel()
        try:
            outcome = await field.race
        except asyncio.CancelledError:
            assert field.a.is_discarded
        else:
            assert outcome.winner is not None
        assert field.b.is_discarded
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_candidates_that_come_later_take_part() -> None:
    loop = asyncio.get_running_loop()
    source = loop.create_future()
    field = Field(sources=[source])
    field.runners["late"] = Runner("late")
    await asyncio.sleep(0.01)
    assert not field.race.done()
    field.left.append("late")
    source.set_result(None)
    await field.begun("late")
    field.late.win()
    outcome = await field.race
    assert outcome.winner is not None


async def test_sources_that_bring_nothing_end_it() -> None:
    source = asyncio.get_running_loop().create_future()
    field = Field(sources=[source])
    await asyncio.sleep(0)
    source.set_result(None)
    outcome = await field.race
    assert (outcome.winner, outcome.attempts) == (None, [])
