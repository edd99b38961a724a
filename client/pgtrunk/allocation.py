"""Which connection takes the next stream, when a further one is opened, and who waits: decided here, done elsewhere.

Each method reports one event and returns what is to be done about it, in order. A session goes to the first link with
room, so that slots freed on earlier links are used again and flushes stay full; a further link is dialled only for
those whom the open and the dialled ones cannot take; whoever is left waits, in order of arrival and without being
overtaken.

Two kinds of links are avoided, and count no more. One that is to be left, by the gateway's wish or for its age: until
another is open for its sessions it stays as it is; then they may move, and the last one's end is its own. And one that
owes an answer, which is suspect: the same, but when it is heard from again all is as it was. While one is suspect a
single link is dialled at a time. If the gateway was merely busy, the old ones are heard from when the new one is open,
and nothing has doubled; if the way is dead, there is one new link for each.

It knows no sockets, tasks or clocks: `now` (seconds of a monotonic clock), jitter and ids are arguments.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Generic

from pgtrunk.decisions import (
    Decision,
    Dial,
    HangUp,
    Keep,
    LinkGone,
    Refusal,
    Refuse,
    Replaced,
    Shut,
    Vacate,
    W,
    WakeAt,
)
from pgtrunk.link import Link, Peer, Slot
from pgtrunk.links import Links
from pgtrunk.need import Need
from pgtrunk.outage import Reach, was_forgotten
from pgtrunk.queues import Queues
from pgtrunk.reasons import full, unreachable
from pgtrunk.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Allocation", "Rules"]


class Allocation(Generic[W]):
    """The links of one trunk, and those who wait for a slot on them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.links = Links()
        self.reach = Reach(rules)
        self._queues: Queues[W] = Queues()
        self._shut = False
        self._ids = 0
        self._need = Need(rules, self.links, self.reach, self._queues)

    @property
    def waiting(self) -> int:
        """Sessions that wait for a slot."""
        return len(self._queues.sessions)

    def __repr__(self) -> str:
        links, rules = self.links, self.rules
        ready = len(links.ready)
        others = {"connecting": links.connecting, "suspect": len(links.suspects), "leaving": len(links.leaving)}
        more = "".join(f", {count} {state}" for state, count in others.items() if count)
        return (
            f"[connections: {ready} ready{more}, of {rules.connections} | "
            f"streams: {links.sessions} in use, of {rules.connections * rules.streams_per_connection} | "
            f"{self.waiting} waiting]"
        )

    # Events: what happened.

    def enqueue(self, waiter: W, now: float) -> tuple[Decision[W], ...]:
        """Somebody wants a slot; a waiter that comes back with its old number gets its old place."""
        self._queues.add(waiter)
        return self.decide(now)

    def withdraw(self, waiter: W, now: float) -> tuple[Decision[W], ...]:
        """Somebody gave up."""
        self._queues.forget(waiter)
        return self.decide(now)

    def expire(self, waiter: W, now: float) -> tuple[Decision[W], ...]:
        """The deadline of somebody has passed."""
        why = self._why(waiter, now)
        if not self._queues.forget(waiter):
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

    def connected(
        self, number: int, peer: Peer, now: float, jitter: float, *, early: bool = False
    ) -> tuple[Decision[W], ...]:
        """A dialled connection is ready; ``early``: though the gateway has not answered, see `answered`."""
        link = self.links.get(number)
        if link is None:
            return ()
        link.ready(peer, now)
        link.expires_at = self.rules.expiry(now, jitter)
        if not early:
            self.reach.reached()
        self._need.expected = max(1, link.room)
        old = None if link.replaces is None else self.links.get(link.replaces)
        if old is None or old.is_leaving:
            return self.decide(now)
        old.is_leaving = True
        return (Replaced(old.number, number, now - old.since), *self.decide(now))

    def failed(self, number: int, cause: BaseException, now: float, jitter: float) -> tuple[Decision[W], ...]:
        """A dialled connection did not come to be."""
        self.links.pop(number, None)
        self._count_failure(cause, now, jitter)
        return self.decide(now)

    def answered(self, now: float) -> tuple[Decision[W], ...]:
        """The gateway has answered on a connection that was early. If it ends without that, it has `failed`."""
        self.reach.reached()
        return self.decide(now)

    def leave(self, number: int, now: float, delay: float) -> tuple[Decision[W], ...]:
        """The gateway has asked for a ready connection to be left. If nobody needs another one sooner, it is dialled in
        ``delay`` seconds, so that the clients of one gateway do not all come to the next at once."""
        link = self.links.get(number)
        if link is None or link.is_leaving:
            return ()
        link.is_leaving = True
        self._need.calm_at = now + delay
        return self.decide(now)

    def suspect(self, number: int, now: float, delay: float) -> tuple[Decision[W], ...]:
        """A ready connection owes an answer. If nobody needs another one sooner, it is dialled in ``delay`` seconds:
        a gateway that is merely busy is not helped by all of its clients at once."""
        link = self.links.get(number)
        if link is None or link.is_suspect:
            return ()
        link.is_suspect, link.suspect_since = True, now
        self._need.calm_at = now + delay
        return self.decide(now)

    def heard(self, number: int, now: float) -> tuple[Decision[W], ...]:
        """A connection that was suspect has answered."""
        link = self.links.get(number)
        if link is None or not link.is_suspect:
            return ()
        link.is_suspect = False
        link.is_told = link.is_told and link.is_leaving
        self.reach.heard()
        return self.decide(now)

    def may_leave(self, number: int) -> bool:
        """Whether idle sessions of this link may end, to be opened anew: it is avoided, and there is another."""
        link = self.links.get(number)
        return link is not None and link.is_avoided and bool(self.links.ready)

    def adopt(self, replaces: int, now: float) -> int:
        """A connection was opened that nobody has asked for, since another would be better there. Returns the number
        under which it is to be reported."""
        self._ids += 1
        self.links[self._ids] = Link(self._ids, self.rules.streams_per_connection, now, replaces=replaces)
        return self._ids

    def lost(
        self, number: int, cause: BaseException, now: float, jitter: float, *, elsewhere: bool = False
    ) -> tuple[Decision[W], ...]:
        """A ready connection has ended. One without streams is no loss: that is how idle ones end; nor is one where
        there is another gateway to go to (``elsewhere``), which is then gone to at once."""
        link = self.links.pop(number, None)
        if link is None:
            return ()
        if elsewhere:
            # At once is for those who wait.
            self._need.calm_at = max(self._need.calm_at, now + self.rules.backoff.calm(1, jitter))
        # One that was to be left is none either, nor one that others already stand in for.
        is_missed = (not link.is_idle or link.is_kept) and not link.is_leaving and not elsewhere
        is_stood_in_for = link.is_suspect and bool(self.links.usable)
        # Several links lost at once are one failure, or the second would double the wait. But a gateway that
        # says that it is there is news.
        is_news = now >= self.reach.next_try(calm=True) or (was_forgotten(cause) and self.reach.failures > 1)
        if is_missed and not is_stood_in_for and is_news:
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
        return (
            *self._dials(now),
            *self._refusals(now),
            *hang_ups,
            *self._moves(),
            *self._keeps(),
            WakeAt(self._next_look(now)),
        )

    def _serve_cancels(self) -> None:
        # Before the sessions: a cancel is what frees a slot that all the sessions wait for.
        for waiter in list(self._queues.cancels.values()):
            link = self.links.get(-1 if waiter.link is None else waiter.link)
            if link is not None and link.takes_cancels:
                self._hand_over(link, waiter)

    def _serve_sessions(self) -> None:
        sessions = self._queues.sessions
        while sessions:
            link = self.links.first_with_room()
            if link is None:
                return
            self._hand_over(link, next(iter(sessions.values())))

    def _hand_over(self, link: Link, waiter: W) -> None:
        self._queues.forget(waiter)
        self._ids += 1
        slot = link.grant(self._ids, session=waiter.link is None)
        if not waiter.offer(slot):
            # It gave up and has not been able to say so yet. An idle link stays as idle as it was.
            link.give_back(slot, link.idle_since)

    # What is dialled.

    def _dials(self, now: float) -> Iterator[Dial]:
        if self._shut:
            return
        while self._need.is_due(now):
            yield self._dial(now)
        old = self._need.replacement(now)
        if old is not None:
            yield self._dial(now, replaces=old.number)

    def _dial(self, now: float, replaces: int | None = None) -> Dial:
        self._ids += 1
        ready = len(self.links.ready)
        self.links[self._ids] = Link(self._ids, self.rules.streams_per_connection, now, replaces=replaces)
        return Dial(self._ids, self.waiting, ready, self.reach.failures, replaces)

    # Who is refused, and what is closed, kept and left.

    def _refusals(self, now: float) -> list[Refuse[W]]:
        queues = self._queues
        refused = [
            Refuse(waiter, self._why(waiter, now)) for waiter in queues.cancels.values() if self._is_orphan(waiter)
        ]
        if self._is_hopeless(now):
            refused += [Refuse(waiter, self._why(waiter, now)) for waiter in queues.sessions.values()]
        for refusal in refused:
            queues.forget(refusal.waiter)
        return refused

    def _why(self, waiter: W, now: float) -> Refusal:
        if self._shut:
            return Shut()
        if waiter.link is not None and self._is_orphan(waiter):
            return LinkGone()
        if self.links.ready:
            return full(waiter, now, self.rules, self.links, self.reach, self._queues)
        return unreachable(waiter, now, self.links, self.reach)

    def _is_orphan(self, waiter: W) -> bool:
        return waiter.link not in self.links

    def _is_hopeless(self, now: float) -> bool:
        return self._shut or (self.reach.is_hopeless(now) and not self.links.usable)

    def _hang_ups(self, now: float) -> list[HangUp]:
        over: list[HangUp] = []
        for link in list(self.links.values()):
            if link.is_idle and self._is_over(link, now):
                del self.links[link.number]
                over.append(HangUp(link.number, now - link.idle_since))
        return over

    def _is_over(self, link: Link, now: float) -> bool:
        """Whether an idle link is to be closed."""
        if link.is_leaving:
            return True
        ready, rules = self.links.ready, self.rules
        if link.is_suspect:
            # It may be heard from again, as long as nothing is there in its place.
            return len(ready) >= max(1, rules.min_connections)
        if link.is_kept:
            return False
        # More than there may be are links that were suspect, and are back.
        is_late = not self.waiting and now >= min(link.idle_since + rules.max_idle, link.expires_at)
        return is_late or len(ready) > rules.connections

    def _moves(self) -> list[Vacate]:
        avoided = [link for link in self.links.values() if link.is_avoided and not link.is_told]
        due = [link for link in avoided if self.may_leave(link.number)]
        for link in due:
            link.is_told = True
        return [Vacate(link.number) for link in due]

    def _keeps(self) -> Iterator[Keep]:
        if not self.rules.min_connections:
            return
        first = self.links.ready[: self.rules.min_connections]
        for link in self.links.values():
            # A suspect one stays what it was: it would never be heard from again.
            kept = link in first or (link.is_kept and link.is_suspect and not link.is_leaving)
            if link.is_kept is not kept:
                link.is_kept = kept
                yield Keep(link.number, kept)

    def _next_look(self, now: float) -> float | None:
        if self._shut:
            return None
        ready = self.links.ready
        # While somebody waits, a link may be idle only because the gateway allows no streams on it yet.
        spare = [] if self.waiting else [link for link in ready if link.is_idle and not link.is_kept]
        times = [link.idle_since + self.rules.max_idle for link in spare]
        times += [link.expires_at for link in ready if now < link.expires_at < inf]
        times += self._need.times(now)
        return min(times, default=None)

    def _count_failure(self, cause: BaseException, now: float, jitter: float, lived: float = 0.0) -> None:
        ready = self.links.ready
        lived = max([lived, *(now - link.since for link in ready)])
        self.reach.failed(cause, now, jitter, lived=lived, others_ready=bool(ready))
