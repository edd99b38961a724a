"""A timer that is cheap to move later.

With each packet the next deadline of a connection moves, nearly always away from now. Cancelling and setting a loop
timer each time costs more than letting the old one fire, once in a while, to find that there is nothing to do yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Alarm"]

UVLOOP_EARLY = 0.0005
"""Seconds by which uvloop may call too early, as it rounds to milliseconds: then there is nothing to do yet, the alarm
is set again for no time at all, and so on until it is due, some eight times for each."""


class Alarm:
    """Calls ``callback`` at the time that was last set, or earlier: the callback looks at the clock, and sets it
    again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._early = UVLOOP_EARLY if type(loop).__module__.startswith("uvloop") else 0.0

    def set(self, at: float) -> None:
        """Have the callback called at ``at``, by the loop's clock, at the latest."""
        if self._handle is None:
            self._handle = self._loop.call_at(at + self._early, self._fire)
            self._at = at
        elif at < self._at:
            self._handle.cancel()
            self._handle = self._loop.call_at(at + self._early, self._fire)
            self._at = at

    def cancel(self) -> None:
        """Call nothing any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()
