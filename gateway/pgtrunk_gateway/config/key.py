"""What is known of one key. The registry of all keys is in `keys`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .kinds import Kind, Unit, Value

__all__ = ["Key"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of one section."""

    name: str
    kind: Kind
    default: str = ""
    """As it would stand in a file."""
    acted_on: bool = False
    """Whether the gateway does what the key says. The others are read and checked, and then only remarked on."""
    serious: bool = False
    """Whether not acting on it weakens safety or a limit: the remark is a warning then."""
    changeable: bool = True
    """Whether a reload is enough; `False`: only a restart brings the new value."""
    ours: bool = False
    """Whether PgBouncer does not know it."""
    units: Unit = ""
    """Unit of the value where its kind leaves that open."""

    @property
    def unit(self) -> Unit:
        """What the value counts; "" for none."""
        return self.units or self.kind.unit

    @property
    def default_value(self) -> Value:
        """The default as the settings hold it."""
        return self.kind.read(self.default)
