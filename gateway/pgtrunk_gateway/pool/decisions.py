"""What a pool does about its backends, and why: pure functions of a :class:`Situation`.

Rules:

1.  As many connections are opened at once as sessions wait that no idle backend or connection under way will serve, and
    as there is room for (PgBouncer opens one at a time).
2.  Below the minimum, connections are opened unasked.
3.  After a failure nothing is opened until ``retry_at``; each further failure doubles the pause, up to ``retry``.
4.  An idle backend is closed when it has been idle too long, unless that would leave fewer than the minimum; and when
    it is too old, whatever the number.
5.  Lifetimes are spread (``lifetime_jitter``), so that backends opened together do not end together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgtrunk_gateway.pool.limits import PoolLimits

__all__ = ["Close", "Connect", "Idle", "Situation", "Wake", "decide", "expires_at", "pause_after"]

_FIRST_PAUSE = 0.1
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle backend: its id, since when it is idle, and when its life ends (times of the loop's clock)."""

    id: int
    since: float
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a decision depends on."""

    now: float
    limits: PoolLimits
    idle: Sequence[Idle] = ()
    """Least recently used first."""
    busy: int = 0
    """Backends that are leased, or recover from their last session."""
    connecting: int = 0
    waiting: int = 0
    """Sessions that wait for a backend, or for their pool's first login."""
    retry_at: float = 0.0
    """No connection before this time."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Open ``count`` backends at once."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the idle backend with this id."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Decide again at this time."""

    at: float


Decision = Connect | Close | Wake


def decide(situation: Situation) -> list[Decision]:
    """What to do now; at most one :class:`Wake`, the last."""
    closes, kept = _closes(situation)
    connect = _connect(situation, kept)
    decisions: list[Decision] = [*closes]
    if connect is not None and situation.now >= situation.retry_at:
        decisions.append(connect)
    wake = _wake(situation, kept, connect)
    if wake is not None:
        decisions.append(Wake(wake))
    return decisions


def _closes(situation: Situation) -> tuple[list[Close], list[Idle]]:
    limits, now = situation.limits, situation.now
    total = len(situation.idle) + situation.busy + situation.connecting
    closes, kept = [], []
    for backend in situation.idle:
        if now >= backend.expires:
            closes.append(Close(backend.id, "server lifetime over"))
            total -= 1
        elif limits.idle_timeout and now - backend.since >= limits.idle_timeout and total > limits.minimum:
            closes.append(Close(backend.id, "server idle timeout"))
            total -= 1
        else:
            kept.append(backend)
    return closes, kept


def _connect(situation: Situation, kept: Sequence[Idle]) -> Connect | None:
    limits = situation.limits
    total = len(kept) + situation.busy + situation.connecting
    room = max(0, limits.size - total) if limits.size else situation.waiting + limits.minimum
    unserved = situation.waiting - situation.connecting - len(kept)
    missing = limits.minimum - total
    if unserved > 0 and room:
        return Connect(min(max(unserved, missing), room), f"{situation.waiting} sessions wait")
    if missing > 0 and room:
        return Connect(min(missing, room), f"min_pool_size = {limits.minimum}")
    return None


def _wake(situation: Situation, kept: Sequence[Idle], connect: Connect | None) -> float | None:
    limits = situation.limits
    times = [backend.expires for backend in kept]
    total = len(kept) + situation.busy + situation.connecting
    if limits.idle_timeout and total > limits.minimum:
        times += [backend.since + limits.idle_timeout for backend in kept]
    if connect is not None and situation.now < situation.retry_at:
        times.append(situation.retry_at)
    return min(times, default=None)


def expires_at(born: float, limits: PoolLimits, luck: float) -> float:
    """When a backend born at ``born`` ends its life; ``luck`` in [0, 1) spreads it over the last fifth."""
    return born + limits.lifetime * (1 - _JITTER * luck)


def pause_after(failures: int, limits: PoolLimits) -> float:
    """Seconds without connections after so many failures in a row."""
    return min(limits.retry, _FIRST_PAUSE * 2 ** min(failures - 1, 30)) if failures else 0.0
