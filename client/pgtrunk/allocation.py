"""Which connection takes the next stream, when a further one is opened, and who waits: decided here, done elsewhere.

Each method reports one event and returns what is to be done about it, in order. A session goes to the first link with
room, so that slots freed on earlier links are used again and flushes stay full; a further link is dialled only for
those whom the open and the dialled ones cannot take; whoever is left waits, in order of arrival and without being
overtaken. A link that the gateway has asked to be left counts no more, but until another is open for its sessions it
stays as it is; then they may move, and the last one's end is its own. It knows no sockets, tasks or clocks: `now`
(seconds of a monotonic clock), jitter and ids are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from pgtrunk.backoff import Backoff
from pgtrunk.decisions import (
    Decision,
    Dial,
    Full,
    HangUp,
    LinkGone,
    Refusal,
    Refuse,
    Shut,
    Unreachable,
    Vacate,
    W,
    WakeAt,
)
from pgtrunk.errors import CertificateError
from pgtrunk.link import Link, Peer, Slot

__all__ = ["Allocation", "Rules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an allocation goes by."""

    connections: int = 4
    """QUIC connections at most."""
    streams_per_connection: int = 100
    """Sessions at most on each of them."""
    patience: float = 10.0
    """Seconds after which an outage counts as one: from then on, callers are refused without waiting."""
    linger: float = 5.0
    """Seconds that a connection without streams is kept. Half of QUIC's idle timeout: no stream may be opened on a
    connection that the gateway is just about to forget."""
    stable: float = 5.0
    """Seconds that a connection must have lived for earlier failures to be forgotten."""
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class Outage:
    """The gateway cannot be reached, or a connection to it was lost."""

    since: float
    retry_at: float
    cause: BaseException

    @property
    def is_final(self) -> bool:
        """Whether waiting will not cure it: a wrong certificate stays wrong, and a fault of ours stays one."""
        return isinstance(self.cause, CertificateError) or not isinstance(self.cause, OSError)


class Allocation(Generic[W]):
    """The links of one trunk, and those who wait for a slot on them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.links: dict[int, Link] = {}
        self.failures = 0
        """Failures in a row, forgotten once a connection has proved stable."""
        self._sessions: dict[int, W] = {}  # by number, in order
        self._cancels: dict[int, W] = {}
        self._outage: Outage | None = None
        self._reached = False
        self._shut = False
        self._ids = 0
        self._expected = rules.streams_per_connection
        self._replace_at = 0.0

    @property
    def waiting(self) -> int:
        """Sessions that wait for a slot."""
        return len(self._sessions)

    def __repr__(self) -> str:
        staying = self._staying()
        ready = sum(link.is_ready for link in staying)
        connecting = f", {len(staying) - ready} connecting" if len(staying) > ready else ""
        leaving = f", {len(self.links) - len(staying)} leaving" if len(self.links) > len(staying) else ""
        sessions = sum(link.sessions for link in self.links.values())
        most = self.rules.connections * self.rules.streams_per_connection
        return (
            f"[connections: {ready} ready{connecting}{leaving}, of {self.rules.connections} | "
            f"streams: {sessions} in use, of {most} | {self.waiting} waiting]"
        )

    # Events: what happened.

    def enqueue(self, waiter: W, now: float) -> tuple[Decision[W], ...]:
        """Somebody wants a slot; a waiter that comes back with its old number gets its old place."""
        queue = self._sessions if waiter.link is None else self._cancels
        in_order = not queue or waiter.number > next(reversed(queue))
        queue[waiter.number] = waiter
        if not in_order:
            ordered = sorted(queue.items())
            queue.clear()
            queue.update(ordered)
        return self.decide(now)

    def withdraw(self, waiter: W, now: float) -> tuple[Decision[W], ...]:
        """Somebody gave up."""
        self._forget(waiter)
        return self.decide(now)

    def expire(self, waiter: W, now: float) -> tuple[Decision[W], ...]:
        """The deadline of somebody has passed."""
        why = self._why(waiter, now)
        if not self._forget(waiter):
            return ()
        return (Refuse(waiter, why), *self.decide(now))

    def opened(self, slot: Slot) -> None:
        """The stream of a granted slot was opened."""
        link = self.links.get(slot.link)
        if link is not None:
            link.open(slot)

    def release(self, slot: Slot, now: float) -> tuple[Decision[W], ...]:
        """A slot is free again: its stream has ended, or was never opened. Reported twice, it counts once."""
        link = self.links.get(slot.link)
        if link is None:
            return ()
        link.give_back(slot, now)
        return self.decide(now)

    def connected(self, number: int, peer: Peer, now: float) -> tuple[Decision[W], ...]:
        """A dialled connection is ready."""
        link = self.links.get(number)
        if link is None:
            return ()
        link.ready(peer, now)
        self._outage, self._reached = None, True
        self._expected = max(1, link.room)
        return self.decide(now)

    def failed(self, number: int, cause: BaseException, now: float, jitter: float) -> tuple[Decision[W], ...]:
        """A dialled connection did not come to be."""
        self.links.pop(number, None)
        self._count_failure(cause, now, jitter)
        return self.decide(now)

    def leave(self, number: int, now: float, delay: float) -> tuple[Decision[W], ...]:
        """The gateway has asked for a ready connection to be left. If nobody needs another one sooner, it is dialled in
        ``delay`` seconds, so that the clients of one gateway do not all come to the next at once."""
        link = self.links.get(number)
        if link is None or link.is_leaving:
            return ()
        link.is_leaving = True
        self._replace_at = now + delay
        return self.decide(now)

    def may_leave(self, number: int) -> bool:
        """Whether idle sessions of this link may end, to be opened anew: it is to be left, and there is another."""
        link = self.links.get(number)
        return link is not None and link.is_leaving and any(each.is_ready for each in self._staying())

    def lost(self, number: int, cause: BaseException, now: float, jitter: float) -> tuple[Decision[W], ...]:
        """A ready connection has ended. One without streams is no loss: that is how idle ones end."""
        link = self.links.pop(number, None)
        if link is None:
            return ()
        # Several links lost at once are one failure, or the second would double the wait. One that was to be left is
        # none.
        if not link.is_idle and not link.is_leaving and self._outage is None:
            self._count_failure(cause, now, jitter, lived=now - link.since)
        return self.decide(now)

    def shut(self, now: float) -> tuple[Decision[W], ...]:
        """The trunk is being closed: nobody waits any longer, nothing is dialled."""
        self._shut = True
        self.links.clear()
        return self.decide(now)

    # The decision.

    def decide(self, now: float) -> tuple[Decision[W], ...]:
        """Hands free slots over and returns what else is to be done. Called without an event, it loses nothing."""
        self._serve_cancels()
        self._serve_sessions()
        hang_ups = self._hang_ups(now)
        decisions: list[Decision[W]] = [*self._dials(now), *self._refusals(now), *hang_ups, *self._moves()]
        decisions.append(WakeAt(self._next_look(now)))
        return tuple(decisions)

    def _serve_cancels(self) -> None:
        # Before the sessions: a cancel is what frees a slot that all the sessions wait for.
        for waiter in list(self._cancels.values()):
            link = self.links.get(-1 if waiter.link is None else waiter.link)
            if link is not None and link.credit > 0:
                self._hand_over(link, waiter)

    def _serve_sessions(self) -> None:
        while self._sessions:
            link = next((link for link in self.links.values() if link.room), None)
            if link is None:
                return
            self._hand_over(link, next(iter(self._sessions.values())))

    def _hand_over(self, link: Link, waiter: W) -> None:
        self._forget(waiter)
        self._ids += 1
        slot = link.grant(self._ids, session=waiter.link is None)
        if not waiter.offer(slot):
            # It gave up and has not been able to say so yet. An idle link stays as idle as it was.
            link.give_back(slot, link.idle_since)

    def _dials(self, now: float) -> list[Dial]:
        dials: list[Dial] = []
        while self._needs_link(now) and self._may_dial(now):
            self._ids += 1
            ready = sum(link.is_ready for link in self._staying())
            self.links[self._ids] = Link(self._ids, self.rules.streams_per_connection, now)
            dials.append(Dial(self._ids, len(self._sessions), ready, self.failures))
        return dials

    def _staying(self) -> list[Link]:
        return [link for link in self.links.values() if not link.is_leaving]

    def _needs_link(self, now: float) -> bool:
        dialled = sum(not link.is_ready for link in self.links.values())
        wanted = len(self._sessions) > dialled * self._expected
        return not self._shut and (wanted or (self._lacks_another() and now >= self._replace_at))

    def _lacks_another(self) -> bool:
        """Whether there are sessions that are to move, and nowhere to move to."""
        return not self._staying() and any(link.sessions for link in self.links.values())

    def _may_dial(self, now: float) -> bool:
        if len(self._staying()) >= self.rules.connections:
            return False
        if self._outage is not None and now - self._outage.retry_at >= self.rules.patience:
            # Nobody has tried for so long that what was known is out of date.
            self._outage, self.failures = None, 0
        if self._outage is None:
            return True
        # One probe at a time finds out whether the gateway is back; the rest follow when it is.
        return now >= self._outage.retry_at and all(link.is_ready for link in self.links.values())

    def _refusals(self, now: float) -> list[Refuse[W]]:
        refused = [
            Refuse(waiter, self._why(waiter, now)) for waiter in self._cancels.values() if self._is_orphan(waiter)
        ]
        if self._is_hopeless(now):
            refused += [Refuse(waiter, self._why(waiter, now)) for waiter in self._sessions.values()]
        for refusal in refused:
            self._forget(refusal.waiter)
        return refused

    def _is_orphan(self, waiter: W) -> bool:
        return waiter.link not in self.links

    def _is_hopeless(self, now: float) -> bool:
        """Whether it is clear that waiting is in vain.

        Nothing is open or being tried, and either waiting cures nothing, or the gateway was never reached (the
        address is wrong, rather than the gateway restarting), or it has been away for longer than callers wait.
        """
        if self._shut:
            return True
        if self._outage is None or self._staying():
            return False
        return self._outage.is_final or not self._reached or now >= self._outage.since + self.rules.patience

    def _hang_ups(self, now: float) -> list[HangUp]:
        idle = [link for link in self.links.values() if link.is_leaving and link.is_idle]
        idle += [link for link in self._spare() if now >= link.idle_since + self.rules.linger]
        for link in idle:
            del self.links[link.number]
        return [HangUp(link.number, now - link.idle_since) for link in idle]

    def _moves(self) -> list[Vacate]:
        due = [link for link in self.links.values() if not link.is_told and self.may_leave(link.number)]
        for link in due:
            link.is_told = True
        return [Vacate(link.number) for link in due]

    def _spare(self) -> list[Link]:
        # While somebody waits, a link may be idle only because the gateway allows no streams on it yet.
        return [] if self._sessions else [link for link in self._staying() if link.is_idle]

    def _next_look(self, now: float) -> float | None:
        times = [link.idle_since + self.rules.linger for link in self._spare()]
        if self._lacks_another() and now < self._replace_at:
            times.append(self._replace_at)
        if self._outage is not None and now < self._outage.retry_at and self._needs_link(now):
            times.append(self._outage.retry_at)
            times += [] if self._staying() or not self._sessions else [self._outage.since + self.rules.patience]
        return min(times, default=None)

    # Book-keeping.

    def _forget(self, waiter: W) -> bool:
        queue = self._sessions if waiter.link is None else self._cancels
        return queue.pop(waiter.number, None) is not None

    def _count_failure(self, cause: BaseException, now: float, jitter: float, lived: float = 0.0) -> None:
        ready = [link for link in self._staying() if link.is_ready]
        stable = max([lived, *(now - link.since for link in ready)]) >= self.rules.stable
        self.failures = 1 if stable else self.failures + 1
        since = now if self._outage is None or ready else self._outage.since
        self._outage = Outage(since, now + self.rules.backoff.delay(self.failures, jitter), cause)

    # Why somebody is refused.

    def _why(self, waiter: W, now: float) -> Refusal:
        if self._shut:
            return Shut()
        if waiter.link is not None and self._is_orphan(waiter):
            return LinkGone()
        ready = [link for link in self._staying() if link.is_ready]
        return self._full(waiter, ready, now) if ready else self._unreachable(waiter, now)

    def _full(self, waiter: W, ready: list[Link], now: float) -> Full:
        return Full(
            waited=now - waiter.since,
            waiting=len(self._sessions),
            oldest=now - min((first.since for first in self._sessions.values()), default=now),
            ready=len(ready),
            connections=self.rules.connections,
            sessions=sum(link.sessions for link in ready),
            streams_per_connection=self.rules.streams_per_connection,
            limited_by_gateway=sum(link.is_limited_by_gateway for link in ready),
            cause=None if self._outage is None else self._outage.cause,
        )

    def _unreachable(self, waiter: W, now: float) -> Unreachable:
        outage = self._outage
        return Unreachable(
            waited=now - waiter.since,
            failures=0 if outage is None else self.failures,
            down=now - (outage.since if outage is not None else min((x.since for x in self._staying()), default=now)),
            retry_in=None if outage is None or self._staying() else max(0.0, outage.retry_at - now),
            cause=None if outage is None else outage.cause,
        )
