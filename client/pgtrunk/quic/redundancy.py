"""When small messages are sent twice: what a path's losses say, the guard, and whose turn it is. Decisions only.

At 1 % loss the slowest hundredth of all queries is those that lost a packet with nothing behind it: the sender learns
of that after two round trips at the earliest. So what is small, and unacknowledged a few milliseconds after it left,
leaves once more, in a new packet like any other (tail.py). This file knows no packet, no stream and no clock.

Rule 1: copies are sent for ``HOLD`` seconds after a loss on the path, seen by any connection with that address. Where
        nothing is lost nothing is added; the first loss after a clean time is not protected. A loss that shows with a
        slow round trip is a full queue's, however short that is, and begins nothing.
Rule 2: the guard. While a queue stands (all round trips of a tenth of a second took more than 1.25 times the least
        and 5 ms), or more than ``MOST_LOSS`` of the packets are lost, losses are taken for congestion: no copies until
        that has been over for 5 seconds, 10 if it comes again within a minute, and so on up to 60, and until another
        loss is seen that is no queue's. After a clean time and after each pause copies begin with one message in eight
        and double every half second, so that a path which cannot carry them shows it by a small queue. What it could
        not carry is not tried again soon: copies stay below a quarter of that share, which doubles every minute.
Rule 3: no copies where the acknowledgement comes as soon as the copy would: the least round trip time is below three
        times ``DELTA``.
Rule 4: no copies in the second half of the congestion window.
Rule 5: a copy leaves ``DELTA`` after its original; earlier only in a datagram that leaves anyway and has room for it,
        and never in the one right behind the original, since losses come in bursts:

        age of the original    a datagram with room leaves    one has left in between    turn
        below MIN_GAP          -                              -                          WAIT
        below DELTA            no                             -                          WAIT
        below DELTA            yes                            no                         WAIT
        below DELTA            yes                            yes                        GO
        DELTA and more         -                              -                          GO
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from enum import Enum, auto
from math import inf, log2
from typing import Literal, Protocol

__all__ = ["PathMemory", "Paths", "Redundancy", "RedundancyFigures", "Turn", "is_slow", "pays", "turn_of"]

Redundancy = Literal["auto", "off"]
"""auto: by the rules above; off: nothing is sent twice but what was lost."""

DELTA = 0.004
"""Seconds between an original and its copy: p99 at 1 % loss is one round trip and this. Less saves no more than it
costs, since fewer copies find a datagram to ride in; 8 ms are better under bursts of losses that last 5 ms."""

MIN_GAP = 0.0005
"""Seconds before a copy may ride."""

SMALL = 1000
"""Bytes of a frame that is sent twice. Doubling full packets made answers of 4 kB slower: it costs the window."""

SHARE = 0.5
"""The part of the congestion window in which copies may be in flight."""

HOLD = 10.0
"""Seconds after a loss in which copies are sent."""

FLOOR_DATAGRAMS = 16
"""Under the congestion window while copies are sent and the guard is silent. At the minimum of two datagrams that
RFC 9002 recommends there is no room for a copy, and one busy connection at 1 % loss collapses."""

MOST_LOSS = 0.08
AVERAGED = 512
"""Packets over which the share of lost ones is averaged: bursts of three at 3 % are no congestion yet."""

STANDING, LEAST_SAMPLES = 0.1, 4
"""Seconds, and round trips measured in them, that must all have been slow. A smoothed round trip time would not do: on
a busy machine half of all acknowledgements come late, and no queue is the reason."""

STALE = 1.0
"""Seconds without a sample after which slow round trips are forgotten."""

LEAST_PAUSE, MOST_PAUSE = 5.0, 60.0
"""Seconds without copies after the guard has spoken, at first and at most."""

FIRST_SHARE, DOUBLING = 0.125, 0.5
"""The share of messages that is copied at first, and the seconds in which it doubles."""

FALLING, RISING = 0.25, 60.0
"""What is left of the share of messages that may be copied when the guard speaks, and the seconds in which it doubles.
A share that was too much already stood in the queue for some tenths of a second; once in some seconds that is p99."""

MOST_PATHS = 1024
"""Addresses that one process remembers, beside those that have connections."""

TIMER_ERROR = 1e-6
"""Seconds by which a timer may seem early: sums of floating-point numbers."""


@dataclass(slots=True)
class RedundancyFigures:
    """What came of it. Frames, but for ``losses``: packets. They only grow."""

    eligible: int = 0
    """Small frames that left for the first time while copies were being sent."""
    copies: int = 0
    suppressed_guard: int = 0
    """Copies that were due and not sent: the guard took losses for congestion, or they had only just begun."""
    suppressed_window: int = 0
    """Copies that were due and not sent: half the congestion window was in flight."""
    spurious: int = 0
    """Frames acknowledged a second time: the copy came, and the original too."""
    losses: int = 0
    """Packets lost, as loss detection has it; those of a probe timeout only where an acknowledgement confirms it."""

    def add(self, other: RedundancyFigures) -> None:
        """Add another's to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Member(Protocol):
    """A connection, to its path's memory."""

    repeats: bool
    """Set by the memory when losses begin; the connection itself takes it back, see ``PathMemory.is_hot``."""

    @property
    def redundancy_figures(self) -> RedundancyFigures: ...


class Turn(Enum):
    """What becomes of a copy now."""

    GO = auto()
    WAIT = auto()


def turn_of(age: float, *, rides: bool, is_neighbour: bool) -> Turn:
    """Rule 5. ``rides``: a datagram leaves anyway and has room; ``is_neighbour``: it is the one after the original."""
    if age >= DELTA - TIMER_ERROR:
        return Turn.GO
    return Turn.GO if rides and not is_neighbour and age >= MIN_GAP else Turn.WAIT


def pays(rtt_min: float) -> bool:
    """Rule 3. ``rtt_min`` in seconds, infinite before there is a sample."""
    return 3 * DELTA <= rtt_min < inf


def is_slow(rtt: float, rtt_min: float) -> bool:
    """Whether a packet may have waited in a queue, by its round trip time and the connection's least, in seconds."""
    return rtt > 1.25 * rtt_min + 0.005


class PathMemory:
    """What is known of losses on the way to one address, shared by all connections with it.

    Everything here happens after a loss, or at the first look after a clean time; a clean path never comes here.
    """

    def __init__(self) -> None:
        self._members: set[Member] = set()
        self._listening: set[Member] = set()
        self._hot_until = -inf
        self._loss = 0.0
        self._off_until = -inf
        self._pause = 0.0
        self._begun = -inf
        self._slow = 0
        self._slow_since = self._sampled_at = -inf
        self._due = 0.0
        self._most = 1.0
        self._most_at = -inf
        self._awaits_loss = False
        self._gone = RedundancyFigures()

    def __repr__(self) -> str:
        return f"<PathMemory [{len(self._members)} connections, {self._loss:.1%} lost]>"

    @property
    def loss(self) -> float:
        """The average share of packets that are lost, since the last clean time."""
        return self._loss

    @property
    def is_unused(self) -> bool:
        """Whether it has no connection."""
        return not self._members

    def join(self, member: Member, now: float, *, listens: bool = True) -> None:
        """One more connection; where it does not listen it is only counted."""
        self._members.add(member)
        if listens:
            self._listening.add(member)
            member.repeats = self.is_hot(now)

    def leave(self, member: Member) -> None:
        """A connection is over; what it counted stays. A second time does nothing."""
        if member in self._members:
            self._members.remove(member)
            self._listening.discard(member)
            self._gone.add(member.redundancy_figures)

    def is_hot(self, now: float) -> bool:
        """Rule 1: whether a loss was seen lately. A connection that finds it is not sets ``repeats`` back."""
        return now < self._hot_until and not self._awaits_loss

    def lost(self, now: float, packets: int, *, queued: bool = False) -> None:
        """Some connection has lost packets; ``queued``: the round trip that showed it was slow."""
        if queued and not self.is_hot(now):
            return
        if now >= self._hot_until:
            self._loss = 0.0
            self._begun = now
            self._slow = 0
        if not queued:
            if not self.is_hot(now):
                for member in self._listening:
                    member.repeats = True
            self._hot_until = now + HOLD
            self._awaits_loss = False
        self._loss += packets / AVERAGED

    def sent(self) -> None:
        """Some connection has sent a packet, in a time with losses."""
        self._loss -= self._loss / AVERAGED

    def sample(self, now: float, rtt: float, rtt_min: float) -> None:
        """Some connection has measured a round trip, in a time with losses."""
        if not is_slow(rtt, rtt_min):
            self._slow = 0
        elif not self._slow or now - self._sampled_at > STALE:
            self._slow, self._slow_since = 1, now
        else:
            self._slow += 1
        self._sampled_at = now

    @property
    def queue_stands(self) -> bool:
        """Whether all round trips were slow for long enough."""
        return self._slow >= LEAST_SAMPLES and self._sampled_at - self._slow_since >= STANDING

    def is_congested(self, now: float) -> bool:
        """Rule 2."""
        if self._loss > MOST_LOSS or self.queue_stands:
            if now >= self._off_until:
                comes_again = now - self._off_until < MOST_PAUSE
                self._pause = min(2 * self._pause, MOST_PAUSE) if comes_again else LEAST_PAUSE
                if self.queue_stands:
                    self._most, self._most_at = FALLING * self.share(now), now
            self._off_until = now + self._pause
            self._awaits_loss = True
        return now < self._off_until

    def share(self, now: float) -> float:
        """The share of messages that are copied, as it grows from small beginnings: rule 2."""
        doublings = (now - max(self._begun, self._off_until)) / DOUBLING
        share = 1.0 if doublings >= -log2(FIRST_SHARE) else FIRST_SHARE * 2.0 ** max(doublings, 0.0)
        if self._most < 1:
            rises = (now - self._most_at) / RISING
            if rises >= -log2(self._most):
                self._most = 1.0
            else:
                share = min(share, self._most * 2.0**rises)
        return share

    def admits(self, now: float) -> bool:
        """Whether one more message is to be copied."""
        share = self.share(now)
        if share == 1:
            return True
        self._due += share
        if self._due < 1:
            return False
        self._due -= 1
        return True

    def figures(self) -> RedundancyFigures:
        """The sum over all connections that there were."""
        total = RedundancyFigures()
        for each in (self._gone, *(member.redundancy_figures for member in list(self._members))):
            total.add(each)
        return total


class Paths:
    """The memories of a process, by the peer's IP address. Bounded: the one unused for longest goes first.

    Only addresses that have completed a handshake should get here, or strangers could push out all others.
    """

    def __init__(self, limit: int = MOST_PATHS) -> None:
        self._limit = limit
        self._by_host: OrderedDict[str, PathMemory] = OrderedDict()
        self._gone = RedundancyFigures()

    def __len__(self) -> int:
        return len(self._by_host)

    def to(self, host: str) -> PathMemory:
        """The memory of the path to an address, a new one if need be."""
        memory = self._by_host.get(host)
        if memory is None:
            if len(self._by_host) >= self._limit:
                self._forget_one()
            memory = self._by_host[host] = PathMemory()
        self._by_host.move_to_end(host)
        return memory

    def _forget_one(self) -> None:
        for host, memory in self._by_host.items():
            if memory.is_unused:
                self._gone.add(memory.figures())
                del self._by_host[host]
                return

    def figures(self) -> RedundancyFigures:
        """The sum over all paths that there were. May be called from any thread."""
        total = RedundancyFigures()
        for each in (self._gone, *(memory.figures() for memory in list(self._by_host.values()))):
            total.add(each)
        return total
