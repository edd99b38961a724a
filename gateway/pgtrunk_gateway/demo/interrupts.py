"""Runs the demonstration's coroutines so that Ctrl-C and SIGTERM, however often they come, end them.

asyncio.run raises a second Ctrl-C between any two lines, its own among them, and a handler that raises SystemExit does
so at once. The callback that ran then is lost, and with it the wake-up of some task, for whose end asyncio.run waits
without a deadline. Here a signal only cancels, and is raised once the loop has come to rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from pgtrunk_gateway.demo.guarded_folder import uninterrupted

__all__ = ["run"]

_PATIENCE: Final = 5.0
"""Seconds that a cancelled coroutine has to end; then it is left as it is, as its process ends too."""

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], patience: float = _PATIENCE) -> T:
    """What ``main`` returns. After a signal it is cancelled, and the signal raised again after its end."""
    runner = asyncio.Runner()
    loop = runner.get_loop()
    task = loop.create_task(main)
    told = asyncio.Event()

    def tell() -> None:
        # In a signal's handler, and so perhaps in the middle of a callback, or after the last.
        if not loop.is_closed():
            loop.call_soon_threadsafe(told.set)

    with uninterrupted(tell):
        try:
            runner.run(_until(task, told, patience))
        finally:
            if task.done():
                runner.close()
            else:
                # Closing the runner would wait for it. Nor does anybody need to hear that it was left.
                loop.set_exception_handler(lambda _loop, _context: None)
                loop.close()
    # A task that was left does not come to this: the signal has been raised.
    return task.result()


async def _until(task: asyncio.Task[Any], told: asyncio.Event, patience: float) -> None:
    """Returns when ``task`` has ended, or has not within ``patience`` of being cancelled."""
    telling = asyncio.create_task(told.wait())
    await asyncio.wait({task, telling}, return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=patience)
