"""What the console needs of a fleet, to speak for all of it: implemented beyond the console, by who knows the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.operations import Operations
    from pgtrunk_gateway.console.registry import Show

__all__ = ["Collected", "Others"]


class Collected(NamedTuple):
    """A show of the whole fleet."""

    rows: Sequence[Row]
    remarks: Sequence[str]
    """Which workers are missing, and why."""


class Others(Protocol):
    """The other workers."""

    def command(self) -> Operations:
        """The fleet, as one command steers it, and as its cancel takes it back."""
        ...

    async def collect(self, show: Show, *, by_worker: bool) -> Collected:
        """The rows of all workers, merged; ``by_worker``: one by one, with the number of the worker behind them."""
        ...

    def deserted(self) -> None:
        """The last session at this worker's console has left, while the gateway is suspended."""
