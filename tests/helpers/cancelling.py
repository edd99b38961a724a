"""Cancels a coroutine at a chosen await, every time at the same one.

At each await there are two moments in which a cancellation can come: while what is awaited is pending, and after it is
done but before the task has run again. The second is where leases are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from itertools import count
from typing import Any, Literal

Moment = Literal["pending", "done"]
MOMENTS: tuple[Moment, ...] = ("pending", "done")


class CancelAt:
    """Awaits ``coroutine`` and cancels the awaiting task at its ``at``-th suspension, counted from 1."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, moment: Moment) -> None:
        self._coroutine = coroutine
        self._at = at
        self._moment = moment
        self.hit = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._coroutine.__await__()
        send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        for number in count(1):
            try:
                awaited = send()
            except StopIteration as stop:
                return stop.value
            if number == self._at:
                self.hit = True
                self._cancel(task, awaited)
            try:
                yield awaited
            except BaseException as exc:
                send = lambda exc=exc: steps.throw(exc)  # type: ignore[misc]  # noqa: E731
            else:
                send = lambda: next(steps)  # noqa: E731
        return None

    def _cancel(self, task: asyncio.Task[Any], awaited: asyncio.Future[Any] | None) -> None:
        if self._moment == "pending" or awaited is None:
            task.cancel()
        else:
            # Runs before the task's own wake-up, which is added after this.
            awaited.add_done_callback(lambda _: task.cancel())


async def cancel_at(coroutine: Coroutine[Any, Any, Any], at: int, moment: Moment) -> bool:
    """Runs a coroutine to its end and returns whether it was cancelled on the way; its other errors are raised."""
    attempt = CancelAt(coroutine, at, moment)

    async def run() -> None:
        await attempt

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return attempt.hit


async def cancel_everywhere(scenario: Callable[[int, Moment], Awaitable[bool]]) -> int:
    """Runs ``scenario(at, moment)`` for each await there is, until one reports that it was not reached.

    Returns how many awaits were found.
    """
    for at in count(1):
        hits = [await scenario(at, moment) for moment in MOMENTS]
        if not any(hits):
            return at - 1
    raise AssertionError("unreachable")
