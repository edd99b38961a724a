"""What a pool does about its backends, and why: pure functions of a :class:`Situation`.

Rules:

1.  As many connections are opened at once as sessions wait that no idle backend or connection under way will serve, and
    as there is room for (PgBouncer opens one at a time).
2.  Below the minimum, connections are opened unasked, in a pool that somebody uses.
3.  After a failure nothing is opened until ``retry_at``; each further failure doubles the pause, up to ``retry``. Then
    one connection tries for all pools of that server (``admits``).
4.  An idle backend is closed when it has been idle too long, unless that would leave fewer than the minimum; when it is
    too old, whatever the number; and when there are more than the pool may have, since it has become smaller.
5.  Lifetimes are spread (``lifetime_jitter``), so that backends opened together do not end together.
6.  A backend that has been idle for ``check_delay`` is stale: it is checked before a session gets it. The one that was
    used last is checked first, and none is opened where a check may do.
7.  The reserve is for those who have waited longer than ``reserve_timeout``, one backend for each of them.
8.  A pool that is paused has no idle backends, and opens none.
9.  Where a limit over several pools is reached (max_db_connections, max_user_connections), a pool in which sessions
    wait has the backends of others closed that have been idle longest, one of each limit in its way, or none at all
    (:func:`to_evict`).
10. Under such a limit a pool without any backend, whose sessions wait longest, gets the place of a backend that becomes
    free elsewhere, even if sessions wait for it there too (:func:`gives_way`): else it could wait for ever. A pool that
    has a backend does not: that would cost a connection per transaction. Nor does one that needs a place under another
    limit as well: two could go on closing each other's backends, and nobody would be served.
11. Where limits hold for several workers together, a pool opens what it was given places for, and says how many more it
    wants (:class:`~pgtrunk_gateway.pool.allowance.Allowance`); rules 9 and 10 are the bank's then, for all workers, and
    so is what is left of the reserve. Of the minimum each worker keeps a part.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgtrunk_gateway.pool.limits import PoolLimits

__all__ = [
    "Check",
    "Close",
    "Connect",
    "Idle",
    "Situation",
    "Stale",
    "Wake",
    "decide",
    "expires_at",
    "gives_way",
    "pause_after",
    "to_evict",
]

_FIRST_PAUSE = 0.1
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle backend: its id, since when it is idle, and when its life ends (times of the loop's clock)."""

    id: int
    since: float
    expires: float = float("inf")
    stale: bool = False
    """To be checked before anybody gets it."""


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
    checking: int = 0
    """Backends that run a query of the gateway's own, and are free after it."""
    waiting: int = 0
    """Sessions that wait for a backend, or for their pool's first login."""
    overdue: int = 0
    """Those of them who have waited for reserve_timeout."""
    retry_at: float = 0.0
    """No connection before this time."""
    admits: int | None = None
    """How many connections the server's state admits now; None: any number."""
    used: bool = True
    """Whether the pool has sessions, or is kept for its own sake."""
    paused: bool = False
    shared_floor: int | None = None
    """How many backends are not closed for being idle, where the minimum is for several workers together."""

    @property
    def floor(self) -> int:
        """How many backends are not closed for being idle."""
        return self.limits.minimum if self.shared_floor is None else self.shared_floor


@dataclass(frozen=True, slots=True)
class Connect:
    """Open ``count`` backends at once, ``reserve`` of them from the reserve."""

    count: int
    reason: str
    reserve: int = 0
    waited_for: bool = True
    """Whether a session waits for them."""
    late: int = field(default=0, compare=False)
    """How many are for sessions that may have something of the reserve, where what is left of it is not known here."""
    short: int = field(default=0, compare=False)
    """How many no session waits for."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the idle backend with this id."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The idle backend with this id is to be checked before anybody gets it."""

    id: int


@dataclass(frozen=True, slots=True)
class Check:
    """Check the stale backend with this id now."""

    id: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Decide again at this time."""

    at: float


Decision = Connect | Close | Stale | Check | Wake


def decide(situation: Situation) -> list[Decision]:
    """What to do now; at most one :class:`Wake`, the last."""
    if situation.paused:
        return [Close(backend.id, "pause mode") for backend in situation.idle]
    closes, kept = _closes(situation)
    decisions: list[Decision] = [*closes]
    fresh, stale = _aged(situation, kept)
    decisions += [Stale(backend.id) for backend in stale if not backend.stale]
    coming = situation.connecting + situation.checking
    checks = min(len(stale), max(0, situation.waiting - coming - len(fresh)))
    decisions += [Check(backend.id) for backend in stale[len(stale) - checks :][::-1]]
    connect = _connect(situation, len(kept), coming + len(fresh) + checks)
    if connect is not None and situation.now >= situation.retry_at:
        connect = _admitted(connect, situation.admits)
        if connect is not None:
            decisions.append(connect)
    wake = _wake(situation, kept, fresh, connect)
    if wake is not None:
        decisions.append(Wake(wake))
    return decisions


def _closes(situation: Situation) -> tuple[list[Close], list[Idle]]:
    limits, now = situation.limits, situation.now
    total = _total(situation, len(situation.idle))
    closes, kept = [], []
    for backend in situation.idle:
        if now >= backend.expires:
            reason = "server lifetime over"
        elif limits.idle_timeout and now - backend.since >= limits.idle_timeout and total > situation.floor:
            reason = "server idle timeout"
        elif limits.size and total > limits.size + limits.reserve:
            reason = "too many servers in the pool"
        else:
            kept.append(backend)
            continue
        closes.append(Close(backend.id, reason))
        total -= 1
    return closes, kept


def _aged(situation: Situation, kept: Sequence[Idle]) -> tuple[list[Idle], list[Idle]]:
    """Those that can be given away as they are, and those to be checked first."""
    limits = situation.limits
    if limits.check_query is None:
        return list(kept), []
    before = situation.now - limits.check_delay
    stale = [backend for backend in kept if backend.stale or backend.since <= before]
    return [backend for backend in kept if not backend.stale and backend.since > before], stale


def _total(situation: Situation, idle: int) -> int:
    return idle + situation.busy + situation.checking + situation.connecting


def _connect(situation: Situation, kept: int, serving: int) -> Connect | None:
    """``serving``: backends, had or coming, that serve some of those who wait."""
    limits = situation.limits
    total = _total(situation, kept)
    unserved = max(0, situation.waiting - serving)
    room = max(0, limits.size - total) if limits.size else unserved + limits.minimum
    missing = max(0, limits.minimum - total) if situation.used else 0
    count = min(max(unserved, missing), room)
    reserve = 0
    if limits.size and limits.reserve_timeout and unserved > count:
        late = situation.overdue - serving - count
        reserve = max(0, min(late, limits.size + limits.reserve - max(total + count, limits.size)))
    if not count + reserve:
        return None
    reason = f"{situation.waiting} sessions wait" if unserved else f"min_pool_size = {limits.minimum}"
    count += reserve
    short = count - min(unserved, count)
    late = max(0, min(situation.overdue - serving, count - short)) if limits.reserve_timeout else 0
    return Connect(count, reason, reserve, waited_for=unserved > 0, late=late, short=short)


def _admitted(connect: Connect, admits: int | None) -> Connect | None:
    if admits is None or connect.count <= admits:
        return connect
    if not admits:
        return None
    return replace(
        connect,
        count=admits,
        reserve=min(connect.reserve, admits),
        late=min(connect.late, admits),
        # Who waits goes first.
        short=max(0, connect.short - (connect.count - admits)),
    )


def _wake(situation: Situation, kept: Sequence[Idle], fresh: Sequence[Idle], connect: Connect | None) -> float | None:
    limits = situation.limits
    times = [backend.expires for backend in kept]
    if limits.idle_timeout and _total(situation, len(kept)) > situation.floor:
        times += [backend.since + limits.idle_timeout for backend in kept]
    if limits.check_query is not None:
        times += [backend.since + limits.check_delay for backend in fresh]
    if connect is not None and situation.now < situation.retry_at:
        times.append(situation.retry_at)
    return min(times, default=None)


def to_evict(needs: Iterable[tuple[int, Sequence[Idle]]]) -> list[int] | None:
    """Which backends to close: for each limit that is reached, so many of those that are idle in other pools.

    None: they do not suffice, so none of them is closed.
    """
    chosen: list[int] = []
    for count, idle in needs:
        if count > len(idle):
            return None
        longest = sorted(idle, key=lambda backend: backend.since)
        chosen += [backend.id for backend in longest[:count]]
    return chosen


def gives_way(own_oldest: float, others: Iterable[tuple[float, int]]) -> bool:
    """Whether a backend that is free is closed for a pool that the same limit blocks.

    ``own_oldest``: since when the first session of its own pool waits (infinity: nobody does). ``others``: the same of
    the pools that are blocked, and how many backends each of them has or opens.
    """
    return any(oldest < own_oldest and not backends for oldest, backends in others)


def expires_at(born: float, limits: PoolLimits, luck: float) -> float:
    """When a backend born at ``born`` ends its life; ``luck`` in [0, 1) spreads it over the last fifth."""
    return born + limits.lifetime * (1 - _JITTER * luck)


def pause_after(failures: int, retry: float) -> float:
    """Seconds without connections after so many failures in a row; ``retry``: the longest (server_login_retry)."""
    return min(retry, _FIRST_PAUSE * 2 ** min(failures - 1, 30)) if failures else 0.0
