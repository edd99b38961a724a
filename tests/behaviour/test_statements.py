"""What follows a session from backend to backend: its transactions get another one each time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from behaviour.fronts import Front
from behaviour.statement_conversations import STATEMENTS
from behaviour.test_conversations import CONVERSATIONS, MODELLED, Stage, t
from behaviour.wire import wires
from helpers.processes import gateway_process
from helpers.transcript import line
from pgtrunk.wire.frontend import query

if TYPE_CHECKING:
    from helpers.site import Site

__all__ = ["t"]

BACKENDS: Final = 3
FOLLOWING: Final = [
    name
    for name in CONVERSATIONS
    if name.startswith(
        ("settings: ", "roles: ", "startups: ", "pins: ", "states: ", "transactions: ", "pipelines: ", "drivers: ")
    )
]


@pytest.fixture(scope="module", params=[200, 2], ids=["200", "2"])
def turning(site: Site, request: pytest.FixtureRequest) -> Iterator[Front]:
    """A gateway that uses its backends in turn; each keeps so many statements."""
    with gateway_process(
        site, server_round_robin=1, default_pool_size=BACKENDS, max_prepared_statements=request.param
    ) as gateway:
        yield Front("127.0.0.1", gateway.port())


@pytest_asyncio.fixture
async def stage(site: Site, fronts: dict[str, Front], said: dict[str, list[str]], turning: Front) -> Stage:
    """With all backends open."""
    async with wires(turning) as wire:
        sessions = [await wire.log_in() for _ in range(BACKENDS)]
        await asyncio.gather(*(session.ask(query(b"begin; select 1")) for session in sessions))
        await asyncio.gather(*(session.ask(query(b"rollback")) for session in sessions))
    return Stage(site, {**fronts, "turning": turning}, said)


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    return {}


async def test_each_transaction_has_another_backend(stage: Stage) -> None:
    async with wires(stage.fronts["turning"]) as wire:
        session = await wire.log_in()
        pids = set()
        for _ in range(BACKENDS):
            session.send(query(b"select pg_backend_pid()"))
            pids |= {line(each.kind, each.body) for each in await session.until_ready() if each.kind == "D"}
    assert len(pids) == BACKENDS


@pytest.mark.parametrize(
    "name",
    [
        *(f"statements: {name}" for name in STATEMENTS),
        *MODELLED,
        *FOLLOWING[::2],
        *(pytest.param(name, marks=pytest.mark.long) for name in FOLLOWING[1::2]),
    ],
)
async def test_nobody_sees_the_backends_change(stage: Stage, name: str) -> None:
    await stage.compare(name, "turning")
