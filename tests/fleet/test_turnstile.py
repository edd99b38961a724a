"""Who comes in the moment in which an answer is there and nobody has been told of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pgtrunk_gateway.fleet.turnstile import Turnstile


class Supervisor:
    """Gives one place for each question."""

    def __init__(self) -> None:
        self.turnstile: Turnstile
        self.asked = 0

    def on(self, kind: str, handler: object) -> None: ...

    def tell(self, kind: str, body: object) -> None: ...

    async def ask(self, kind: str, body: object, *, timeout: float) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(0)
        self.turnstile._credits({"count": 1})
        return {"full": False}


@pytest.mark.timeout(20)
async def test_who_comes_between_an_answer_and_those_who_wait_for_it_waits_too() -> None:
    supervisor = Supervisor()
    turnstile = supervisor.turnstile = Turnstile(cast("Any", supervisor))
    first = asyncio.create_task(turnstile.enter(100))
    await asyncio.sleep(0)
    asking = turnstile._asking
    assert asking is not None
    while not asking.done():
        # As a session's login would, in the same turn of the loop.
        await asyncio.sleep(0)
        if turnstile.store:
            turnstile.store -= 1
    entering = asyncio.create_task(turnstile.enter(100))
    async with asyncio.timeout(10):
        assert await first and await entering
    await turnstile.close()


async def test_a_done_question_is_not_awaited_again() -> None:
    supervisor = Supervisor()
    turnstile = supervisor.turnstile = Turnstile(cast("Any", supervisor))
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    done.set_result(False)
    turnstile._asking = cast("asyncio.Task[bool]", done)
    async with asyncio.timeout(10):
        assert await turnstile.enter(100)
    assert supervisor.asked >= 1
    await turnstile.close()
