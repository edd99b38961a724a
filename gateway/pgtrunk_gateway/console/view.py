"""What a show sees: the gateway, read-only and live. Nothing is copied before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.console.operations import Operations
    from pgtrunk_gateway.console.session import ConsoleSession
    from pgtrunk_gateway.fronts.front import Front
    from pgtrunk_gateway.pool.pools import Pools
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.stats.recorder import Recorder

__all__ = ["ALONE", "Place", "View"]


class Place(NamedTuple):
    """Which gateway of a fleet this is."""

    worker: int = 0
    """From 0."""
    generation: int = 0
    """Counts the fleets that had the same ports one after the other."""


ALONE: Final = Place()
"""In no fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    context: Context
    pools: Pools
    operations: Operations
    fronts: Callable[[], Sequence[Front]]
    recorder: Recorder
    """The counters, and their averages."""
    current: Callable[[], Loaded]
    """The configuration as it was loaded."""
    consoles: Collection[ConsoleSession]
    """Sessions at the console, the one that looks among them."""
    now: Callable[[], float]
    """Seconds of the event loop's clock, as sessions and backends keep them."""
    wall: Callable[[], float]
    """Seconds since 1970."""
    place: Place = ALONE
    since: float = 0.0
    """When the gateway started, by :attr:`now`."""

    @property
    def config(self) -> Config:
        return self.context.config

    @property
    def loaded(self) -> Loaded:
        return self.current()

    def userlist(self) -> Iterable[str]:
        """The names in auth_file."""
        return self.context.policy.userlist or ()
