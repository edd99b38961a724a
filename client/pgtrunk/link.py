"""One QUIC connection as the allocation sees it: slots counted against what we and the gateway allow. Pure.

A slot is the right to one stream. It is granted first and opened a moment later, by the task that it was granted to;
in between, the connection's own count of open streams does not know of it, so both stages are kept apart here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

__all__ = ["Link", "Peer", "Slot", "reserve_for"]

CANCEL_RESERVE = 16
"""Streams of a connection that sessions never take, so that a cancel gets through when all is full."""


class Peer(Protocol):
    """What a link asks of its QUIC connection."""

    @property
    def stream_credit(self) -> int:
        """How many more streams may be opened right now under the gateway's MAX_STREAMS (RFC 9000 section 4.6)."""
        ...


@dataclass(frozen=True, slots=True)
class Slot:
    """The right to one stream on one link; ``session`` is False for a cancel, which does not count against the cap."""

    link: int
    number: int
    session: bool = True


def reserve_for(allowed: int) -> int:
    """Returns how many of the ``allowed`` streams of a connection are kept for cancels.

    An eighth, at most `CANCEL_RESERVE`, at least one; but none where the gateway allows a single stream.
    """
    return min(CANCEL_RESERVE, max(1, allowed // 8)) if allowed > 1 else 0


@dataclass(slots=True, eq=False)
class Link:
    """A QUIC connection, from the moment it is dialled until it is gone."""

    number: int
    cap: int
    """Sessions that we put on it at most (``streams_per_connection``)."""
    since: float
    """When it was dialled, and later when it became ready."""
    peer: Peer | None = None
    """None while the handshake runs."""
    reserve: int = 0
    own_limit: str | None = None
    """The setting that bounds its streams in the place of the gateway's MAX_STREAMS, which there is not over TCP."""
    sessions: int = 0
    cancels: int = 0
    idle_since: float = 0.0
    replaces: int | None = None
    """The link that is to be left when this one is ready, since its time is over."""
    expires_at: float = inf
    """When its time is over (``max_lifetime``)."""
    is_kept: bool = False
    """Whether it is one of ``min_connections``: kept alive without streams."""
    is_leaving: bool = False
    """Whether it is to be left, by the gateway's wish (GOAWAY) or for its age: it takes cancels, but no more
    sessions."""
    is_suspect: bool = False
    """Whether it owes an answer, see `pgtrunk.connection.Connection.is_suspect`: no more sessions, for now."""
    suspect_since: float = 0.0
    is_told: bool = False
    """Whether its sessions were told that they may move."""
    granted: set[Slot] = field(default_factory=set)
    opened: set[Slot] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        return self.peer is not None

    @property
    def is_avoided(self) -> bool:
        """Whether it gets no sessions, whatever room it has, and those that may move do."""
        return self.is_leaving or self.is_suspect

    @property
    def is_idle(self) -> bool:
        return self.is_ready and not self.granted and not self.opened

    @property
    def credit(self) -> int:
        """Streams that the gateway allows on top of those opened and of those already promised to somebody."""
        return 0 if self.peer is None else self.peer.stream_credit - len(self.granted)

    @property
    def takes_cancels(self) -> bool:
        """Whether a cancel may be sent now. What bounds sessions by a limit of our own is no reason to withhold it."""
        return self.credit > 0 or (self.peer is not None and self.own_limit is not None)

    @property
    def room(self) -> int:
        """How many more sessions fit; never negative."""
        return 0 if self.is_avoided else max(0, min(self.cap - self.sessions, self.credit - self.reserve))

    @property
    def is_limited_by_gateway(self) -> bool:
        """Whether it is full because of the gateway's MAX_STREAMS, or of its ``own_limit``, not of our own cap."""
        return self.is_ready and not self.is_avoided and self.room == 0 and self.sessions < self.cap

    def ready(self, peer: Peer, now: float) -> None:
        self.peer, self.since, self.idle_since = peer, now, now
        self.own_limit = getattr(peer, "own_limit", None)
        self.reserve = 0 if self.own_limit else reserve_for(peer.stream_credit)

    def grant(self, number: int, *, session: bool) -> Slot:
        slot = Slot(self.number, number, session)
        self.granted.add(slot)
        self._count(slot, 1)
        return slot

    def open(self, slot: Slot) -> None:
        """Notes that the stream of a granted slot now counts in the connection's own ``stream_credit``."""
        self.granted.remove(slot)
        self.opened.add(slot)

    def give_back(self, slot: Slot, now: float) -> None:
        """Frees a slot, granted or opened. A second time does nothing."""
        if slot not in self.granted and slot not in self.opened:
            return
        self.granted.discard(slot)
        self.opened.discard(slot)
        self._count(slot, -1)
        self.idle_since = now

    def _count(self, slot: Slot, by: int) -> None:
        if slot.session:
            self.sessions += by
        else:
            self.cancels += by

    def __repr__(self) -> str:
        if not self.is_ready:
            return f"<Link {self.number} connecting>"
        cancels = f", {self.cancels} cancels" if self.cancels else ""
        limit = ", limited by the gateway" if self.is_limited_by_gateway else ""
        state = "leaving" if self.is_leaving else "suspect" if self.is_suspect else "ready"
        return f"<Link {self.number} {state} [{self.sessions} of {self.cap} streams{cancels}{limit}]>"
