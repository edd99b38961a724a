"""Tells clients how long their queries waited and ran here: one STATS a second for each connection that has had some.

What is told is in :class:`~pgtrunk_gateway.stats.stages.StageTimes`, one for each connection, to which its sessions
append. Only clients that have said that they want it are told, see ARCHITECTURE.md (formats).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from pgtrunk.quic.control import WANTS_STATS, Stage, Stats
from pgtrunk_gateway.stats.stages import STAGES, StageTimes

if TYPE_CHECKING:
    from pgtrunk.quic.driver import ConnectionDriver

__all__ = ["INTERVAL", "StageReports"]

INTERVAL: Final = 1.0
"""Seconds between two reports."""

KEPT: Final = 10_000
"""Times that are kept for a client that has not said yet whether it wants them."""


class StageReports:
    """Of all connections of a front. Nothing runs where there are none."""

    def __init__(self) -> None:
        self.drivers: Callable[[], Iterable[ConnectionDriver]] = tuple
        """The connections that there are."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, driver: ConnectionDriver) -> None:
        """A stream of this connection is about to become a session, perhaps its first."""
        if STAGES in driver.extra or not driver.control.agreed:
            return
        driver.extra[STAGES] = StageTimes()
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        """No more reports."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._report)

    def _report(self) -> None:
        self._timer = None
        reporting = [driver for driver in self.drivers() if STAGES in driver.extra]
        for driver in reporting:
            report(driver)
        if reporting:
            self._arm()


def report(driver: ConnectionDriver) -> None:
    """Tells one client, if there is something to tell. What a client does not want is forgotten."""
    times: StageTimes = driver.extra[STAGES]
    hello = driver.control.hello
    if not times or (hello is None and len(times) < KEPT):
        # Sessions can be faster than the first word on the control stream.
        return
    waits, executions = times.take()
    if hello is not None and hello.features & WANTS_STATS:
        driver.control.send(Stats(Stage.of(waits), Stage.of(executions)))
