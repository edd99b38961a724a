"""A query of the gateway's own, which a backend runs between two sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["Errand"]


@dataclass(frozen=True, slots=True)
class Errand:
    """From which setting it is, and what comes after it."""

    setting: str
    done: Callable[[Backend], None]
    lenient: bool = False
    """Whether an error is only logged; else it closes the backend."""
