"""The clock of the averages: every stats_period it ends a period, and logs what it was like (log_stats)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pgtrunk_gateway.stats.averages import Averages, Figures

__all__ = ["Recorder", "summary"]

log = logging.getLogger(__name__)

_SHORTEST: Final = 1.0
"""Seconds. stats_period = 0 would have no end."""


class Clock(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle: ...


class Recorder:
    """``read`` gives the totals by database, ``period`` the seconds until the next end, ``logs`` whether to log."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, Figures]],
        *,
        period: Callable[[], float],
        logs: Callable[[], bool],
        clock: Clock | None = None,
    ) -> None:
        self.read = read
        self._period = period
        self._logs = logs
        self._clock = clock or asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._averages = Averages(self._clock.time())

    def start(self) -> None:
        self._timer = self._clock.call_later(max(self._period(), _SHORTEST), self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def averages(self, database: str, totals: Figures) -> Figures:
        """Those of a database by now, "" for all of them; ``totals`` are its own."""
        return self._averages.of(database, totals, self._clock.time())

    def _tick(self) -> None:
        averages = self._averages.tick(self.read(), self._clock.time())
        if self._logs():
            log.info("%s", summary(averages))
        self.start()


def summary(averages: Figures) -> str:
    """PgBouncer's line, which tools read."""
    return (
        f"stats: {averages.xact_count} xacts/s, {averages.query_count} queries/s, "
        f"{averages.client_parse_count} client parses/s, {averages.server_parse_count} server parses/s, "
        f"{averages.bind_count} binds/s, {averages.client_login_count} client logins/s, "
        f"in {averages.client_bytes} B/s, out {averages.server_bytes} B/s, "
        f"xact {averages.xact_time} us, query {averages.query_time} us, wait {averages.wait_time} us"
    )
