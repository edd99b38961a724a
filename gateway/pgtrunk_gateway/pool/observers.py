"""Those who wait until something is true of a pool: its verbs, mostly. They are told when it may be, not when it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Observers"]


class Observers:
    """Of one pool. ``changed`` is called when there are some, and when one has gone."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._changed = changed

    def __len__(self) -> int:
        return len(self._waiting)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when ``condition`` holds. The caller sets the deadline."""
        if condition():
            return
        observer = condition, asyncio.get_running_loop().create_future()
        self._waiting.append(observer)
        self._changed()
        try:
            await observer[1]
        finally:
            self._waiting.remove(observer)
            self._changed()

    def tell(self) -> None:
        """Something has changed."""
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)
