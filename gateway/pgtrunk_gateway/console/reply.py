"""What a command answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Table

__all__ = ["Reply"]


@dataclass(frozen=True, slots=True)
class Reply:
    """``tag`` is its command tag; ``detail`` belongs to ``notice``."""

    tag: str
    table: Table | None = None
    notice: str | None = None
    detail: str = ""
    warnings: Sequence[str] = ()
    """What is not as it should be, though the command has been run."""
