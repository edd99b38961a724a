"""Waiting for what nothing announces: a condition is looked at until it holds. The deadline is for what hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["until", "until_blocking"]

_PATIENCE: Final = 30.0
"""Seconds; no measure of anything, only less than a test may take."""
_LOOK: Final = 0.005


async def until(condition: Callable[[], object], seconds: float = _PATIENCE) -> None:
    """Returns when ``condition`` is true; fails after ``seconds``, with what it was at the end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (last := condition()):
        if loop.time() > deadline:
            raise AssertionError(f"still {last!r} after {seconds:g} s")
        await asyncio.sleep(_LOOK)


def until_blocking(condition: Callable[[], object], seconds: float = _PATIENCE) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + seconds
    while not (last := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {last!r} after {seconds:g} s")
        time.sleep(_LOOK)
