"""Waiting until all workers have come to rest, behind a command that has taken effect at once: PAUSE waits for backends
to come back, SUSPEND for buffers to become empty, WAIT_CLOSE for connections to end.

Who waits asks again and again, and each question has its deadline: so nobody keeps anything for who has gone, and who
is cancelled only asks no more. A worker that has come to rest once is not asked again; one that has gone is at rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

__all__ = ["PATIENCE", "until_settled"]

PATIENCE: Final = 2.0
"""Seconds that a worker waits before it answers that it has not come to rest yet."""
_BREATH: Final = 0.1
"""Seconds between two questions, where a worker is too busy to answer any."""


async def until_settled(
    ask: Callable[[Sequence[int] | None, float], Awaitable[Sequence[int]]], timeout: float = 0.0
) -> bool:
    """``ask`` those workers (None: all) whether they are at rest within so many seconds -> those that are not.

    Returns whether all are, after ``timeout`` seconds at most (0: no limit).
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    left: Sequence[int] | None = None
    while True:
        patience = min(PATIENCE, max(deadline - loop.time(), 0.0)) if timeout else PATIENCE
        left = await ask(left, patience)
        if not left:
            return True
        if timeout and loop.time() >= deadline:
            return False
        await asyncio.sleep(_BREATH)
