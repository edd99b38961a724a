"""Commands at all consoles at once, files that change, workers that die and come back: at the end all are alike."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.crews import Crew, ask
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.consoles import Visitor
    from helpers.crews import Worker

COUNT: Final = 3
COMMANDS: Final = (
    "PAUSE", "RESUME", "PAUSE shop", "RESUME shop", "KILL other", "RESUME other", "DISABLE shop", "ENABLE shop",
    "SUSPEND", "RECONNECT", "RELOAD", "RELOAD", "SET default_pool_size = {}", "SET reserve_pool_size = {}",
    "SHOW POOLS",
)  # fmt: skip
STEPS: Final = 60


def is_like(worker: Worker, crew: Crew) -> bool:
    """Whether all that stands in the fleet is in force at a worker."""
    standing, gateway = crew.face.standing, worker.gateway
    databases = gateway.pools.databases
    expected = standing.loaded(str(crew.ini)).config
    return (
        gateway.operations.state == standing.state
        and {name for name, state in databases.items() if state.paused} == standing.paused_databases
        and {name for name, state in databases.items() if state.disabled} == standing.disabled_databases
        and gateway.config.default_pool_size == expected.default_pool_size
        and gateway.config.reserve_pool_size == expected.reserve_pool_size
    )


class Play:
    """One run of it."""

    def __init__(self, crew: Crew, seed: int) -> None:
        self.crew = crew
        self.random = random.Random(seed)
        self.asking: set[asyncio.Task[Any]] = set()
        self.gone: set[asyncio.Task[Any]] = set()
        """Those whose worker has died: they have no answer."""
        self.at: dict[asyncio.Task[Any], int] = {}

    async def step(self) -> None:
        index = self.random.randrange(COUNT)
        worker = self.crew.workers.get(index)
        if worker is None:
            await self.crew.hire(index)
            return
        match self.random.randrange(10):
            case 0:
                self.gone |= {task for task, at in self.at.items() if at == index}
                await worker.die()
            case 1:
                good = self.random.random() < 0.7
                self.crew.write("" if good else "nonsense\n", default_pool_size=self.random.randrange(1, 99))
            case _:
                visitor = await worker.enter()
                command = self.random.choice(COMMANDS).format(self.random.randrange(1, 99))
                task = asyncio.create_task(self.command(visitor, command))
                self.at[task] = index
                self.asking.add(task)

    async def command(self, visitor: Visitor, command: str) -> None:
        await ask(visitor, command)
        if self.random.random() < 0.3:
            visitor.leave()

    async def end(self) -> None:
        """All have their answers, and as many workers are there as should be."""
        for task in self.gone:
            task.cancel()
        await asyncio.gather(*self.gone, return_exceptions=True)
        await asyncio.gather(*(self.asking - self.gone))
        for index in range(COUNT):
            if index not in self.crew.workers:
                await self.crew.hire(index)


@pytest.mark.parametrize("seed", range(8))
async def test_all_workers_are_alike_at_the_end(tmp_path: Path, seed: int) -> None:
    async with Crew(tmp_path, COUNT) as crew:
        play = Play(crew, seed)
        for _ in range(STEPS):
            await play.step()
            if play.random.random() < 0.3:
                await asyncio.sleep(0.01)
        await play.end()
        await until(lambda: all(is_like(worker, crew) for worker in crew.workers.values()))
