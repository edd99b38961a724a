"""What the workers of a fleet have counted, so that nothing of it is lost with one that dies. Pure.

Each tells its totals every few seconds, and before it shows them: so no total that was ever shown becomes less. What a
worker that is killed has counted since it last told is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pgtrunk_gateway.stats.averages import Figures

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Ledger", "as_totals", "from_totals"]


class Ledger:
    """Totals by database, as :class:`~pgtrunk_gateway.stats.recorder.Recorder` reads them."""

    def __init__(self) -> None:
        self.departed: dict[str, Figures] = {}
        """Of workers that have gone."""
        self._told: dict[int, Mapping[str, Figures]] = {}

    def tell(self, index: int, totals: Mapping[str, Figures]) -> None:
        """What worker ``index`` has counted by now."""
        self._told[index] = totals

    def leave(self, index: int) -> None:
        """It has gone."""
        _add(self.departed, self._told.pop(index, {}))

    def read(self) -> dict[str, Figures]:
        """The totals of the fleet, since it started."""
        totals = dict(self.departed)
        for told in self._told.values():
            _add(totals, told)
        return totals


def as_totals(figures: Mapping[str, Figures]) -> Body:
    """As they travel."""
    return {database: list(each.row()) for database, each in figures.items()}


def from_totals(body: Mapping[str, Sequence[int]]) -> dict[str, Figures]:
    """The other way."""
    return {database: Figures(**dict(zip(Figures.__slots__, row, strict=True))) for database, row in body.items()}


def _add(totals: dict[str, Figures], more: Mapping[str, Figures]) -> None:
    for database, each in more.items():
        totals[database] = totals.get(database, Figures()) + each
