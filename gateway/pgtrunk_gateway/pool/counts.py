"""What a pool counts: totals since it was made, and its backends by state, as SHOW POOLS has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk_gateway.pool.backend import BackendState

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["PoolCounters", "PoolCounts", "count"]

_TESTED = frozenset({BackendState.CHECKING, BackendState.RESETTING, BackendState.RECOVERING})


@dataclass(slots=True)
class PoolCounters:
    """Totals since the pool was made."""

    leases: int = 0
    waits: int = 0
    """Leases that had to wait."""
    opened: int = 0
    closed: int = 0
    failed: int = 0
    """Connections that could not be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """Backends now, by PgBouncer's states."""

    active: int
    """Leased."""
    being_canceled: int
    """Those with a cancel request under way, beside whatever else they are."""
    idle: int
    used: int
    """Idle, and to be checked before a session gets them."""
    tested: int
    """Being checked, reset, or recovered from a session that vanished."""
    login: int
    """Being opened, or running connect_query."""


def count(backends: Iterable[Backend], opening: int, idle: int, stale: int) -> PoolCounts:
    """The counts of a pool's backends; ``opening`` have none yet, ``idle`` and ``stale`` are the pool's own lists'."""
    every = list(backends)
    return PoolCounts(
        active=sum(backend.holder is not None for backend in every),
        being_canceled=sum(backend.cancels > 0 for backend in every),
        idle=idle,
        used=stale,
        tested=sum(backend.state in _TESTED for backend in every),
        login=opening + sum(backend.state is BackendState.STARTING for backend in every),
    )
