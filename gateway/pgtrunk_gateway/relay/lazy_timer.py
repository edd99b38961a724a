"""A timer for what is nearly always over in time.

It is set once, and looks when it fires how long there is still to wait; whoever starts anew need not touch it. So a
session that asks a thousand times a second pays for a timer once per timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["LazyTimer"]


class LazyTimer:
    """``due`` gives the loop's time at which it is too late as things are, None where nothing is waited for."""

    __slots__ = ("_due", "_handle", "_late", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, due: Callable[[], float | None], late: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._due = due
        self._late = late
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Something begins, or began, that may be too late one day."""
        if self._handle is None and (due := self._due()) is not None:
            self._handle = self._loop.call_at(due, self._fired)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fired(self) -> None:
        self._handle = None
        due = self._due()
        if due is None:
            return
        if due > self._loop.time():
            self._handle = self._loop.call_at(due, self._fired)
        else:
            self._late()
