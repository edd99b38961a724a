"""A worker as those of the supervisor's side see it who decide about places."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pgtrunk_gateway.fleet.bus import Answer
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Colleague", "Customer", "Heir"]


class Colleague(Protocol):
    """What reaches a worker: its bus, or the supervisor of the fleet that it is of."""

    @property
    def is_open(self) -> bool: ...

    def tell(self, kind: str, body: Body | None = None) -> None: ...

    async def ask(self, kind: str, body: Body | None = None, *, timeout: float) -> Body: ...


@dataclass(eq=False, slots=True)
class Customer:
    """A worker, from its start to its end. Another with the same index is another one."""

    number: int
    index: int
    """Less than 0: of a fleet that is leaving."""
    bus: Colleague
    opened: dict[int, Body] = field(default_factory=dict)
    """What cancels its connections to Postgres, by the backends' ids."""


class Heir(Protocol):
    """The next supervisor, which decides for the workers of this one."""

    def say(self, number: int, kind: str, body: Body) -> Answer | Awaitable[Answer]:
        """What a worker says."""
        ...

    def died(self, number: int) -> None:
        """It has gone."""
