"""What SHOW STATS makes of the counters: totals and averages, as PgBouncer computes them. Pure; times are given.

An average goes from the last but one full period to now, so it is taken over one to two periods (stats_period); the log
has it for the period that has just ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.stats.counters import PoolStats

__all__ = ["Averages", "Figures", "total"]

_MICROS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Totals, or averages: counts and octets per second, times per query, transaction and lease. Microseconds.

    In PgBouncer's order: a row of SHOW STATS is :meth:`row` of the totals, then of the averages.
    """

    server_assignment_count: int = 0
    xact_count: int = 0
    query_count: int = 0
    client_bytes: int = 0
    server_bytes: int = 0
    xact_time: int = 0
    query_time: int = 0
    wait_time: int = 0
    client_parse_count: int = 0
    server_parse_count: int = 0
    bind_count: int = 0
    client_login_count: int = 0

    @classmethod
    def of(cls, stats: PoolStats, leases: int = 0) -> Figures:
        """The totals of a pool."""
        return cls(
            server_assignment_count=leases,
            xact_count=stats.xact_count,
            query_count=stats.query_count,
            client_bytes=stats.received,
            server_bytes=stats.sent,
            xact_time=_micros(stats.xact_time),
            query_time=_micros(stats.query_time),
            wait_time=_micros(stats.wait_time),
            client_parse_count=stats.client_parse_count,
            server_parse_count=stats.server_parse_count,
            bind_count=stats.bind_count,
            client_login_count=stats.login_count,
        )

    @classmethod
    def between(cls, old: Figures, new: Figures, seconds: float) -> Figures:
        """The averages of what has happened between two totals."""
        if seconds <= 0:
            return cls()
        # A pool that was forgotten took its counts along.
        grown = {name: max(getattr(new, name) - getattr(old, name), 0) for name in cls.__slots__}
        rates = {name: int(count / seconds) for name, count in grown.items()}
        for time, count in _TIMES.items():
            rates[time] = grown[time] // grown[count] if grown[count] else 0
        return cls(**rates)

    def __add__(self, other: Figures) -> Figures:
        return Figures(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def row(self) -> tuple[int, ...]:
        return astuple(self)


_TIMES = {"xact_time": "xact_count", "query_time": "query_count", "wait_time": "server_assignment_count"}
"""What each of the times is an average over."""


def _micros(seconds: float) -> int:
    return max(int(seconds * _MICROS), 0)


def total(figures: Mapping[str, Figures]) -> Figures:
    """The totals over all databases."""
    return sum(figures.values(), Figures())


class Averages:
    """Remembers the totals by database at the end of the last two periods; "" stands for all of them."""

    def __init__(self, now: float) -> None:
        self._older: Mapping[str, Figures] = {}
        self._newer: Mapping[str, Figures] = {}
        self._older_at = self._newer_at = now

    def tick(self, figures: Mapping[str, Figures], now: float) -> Figures:
        """A period has ended -> its averages, over all databases."""
        self._older, self._older_at = self._newer, self._newer_at
        self._newer = {**figures, "": total(figures)}
        self._newer_at = now
        return self._since_older("", self._newer[""], now)

    def of(self, database: str, totals: Figures, now: float) -> Figures:
        """The averages of a database, whose totals by now are these."""
        return self._since_older(database, totals, now)

    def _since_older(self, database: str, totals: Figures, now: float) -> Figures:
        return Figures.between(self._older.get(database, Figures()), totals, now - self._older_at)
