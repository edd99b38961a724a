"""A fleet that is leaving, as the next one knows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Outgoing"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """How datagrams reach its workers."""

    generation: int
    count: int
    outlets: Mapping[int, int]
    """Descriptors to write to, by workers; those that have ended may be missing."""

    def as_body(self) -> Body:
        """As it travels."""
        return {
            "generation": self.generation,
            "count": self.count,
            "outlets": {str(index): descriptor for index, descriptor in self.outlets.items()},
        }

    @classmethod
    def from_body(cls, body: Body) -> Outgoing:
        """The other way."""
        return cls(body["generation"], body["count"], {int(index): each for index, each in body["outlets"].items()})
