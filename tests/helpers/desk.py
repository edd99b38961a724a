"""An allocation with a clock of our own, and what it decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from pgtrunk.allocation import Allocation, Rules
from pgtrunk.backoff import Backoff
from pgtrunk.decisions import Dial, Refuse, WakeAt

if TYPE_CHECKING:
    from pgtrunk.link import Slot

__all__ = ["Desk", "Peer", "Waiter", "desk", "kinds", "links", "open_desk", "refusals"]


@dataclass
class Peer:
    stream_credit: int = 1000


@dataclass(eq=False)
class Waiter:
    number: int
    link: int | None = None
    since: float = 0.0
    willing: bool = True
    slot: Slot | None = None

    def offer(self, slot: Slot) -> bool:
        if self.willing:
            self.slot = slot
        return self.willing


@dataclass
class Desk:
    """An allocation, its clock, and what it has decided."""

    core: Allocation[Waiter]
    now: float = 0.0
    peers: dict[int, Peer] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: count(1))

    def ask(self, *, link: int | None = None, willing: bool = True) -> tuple[Waiter, tuple[Any, ...]]:
        waiter = Waiter(next(self.numbers), link, self.now, willing)
        return waiter, self.core.enqueue(waiter, self.now)

    def asks(self, how_many: int) -> list[Waiter]:
        return [self.ask()[0] for _ in range(how_many)]

    def connect(self, link: int, credit: int = 1000, jitter: float = 0.0) -> tuple[Any, ...]:
        self.peers[link] = Peer(credit)
        return self.core.connected(link, self.peers[link], self.now, jitter)

    def session(self) -> Slot:
        waiter, _ = self.ask()
        assert waiter.slot is not None
        self.open(waiter.slot)
        return waiter.slot

    def open(self, slot: Slot) -> None:
        self.peers[slot.link].stream_credit -= 1
        self.core.opened(slot)

    def close(self, slot: Slot) -> tuple[Any, ...]:
        self.peers[slot.link].stream_credit += 1
        return self.core.release(slot, self.now)


def desk(connections: int = 2, streams: int = 2, **rules: Any) -> Desk:
    rules = {"backoff": Backoff(base=1.0, ceiling=8.0), "max_lifetime": None} | rules
    return Desk(Allocation(Rules(connections=connections, streams_per_connection=streams, **rules)))


def open_desk(connections: int = 2, streams: int = 2, credit: int = 1000, **rules: Any) -> Desk:
    """A desk whose first connection is open and whose first caller has come and gone."""
    it = desk(connections, streams, **rules)
    waiter, decisions = it.ask()
    it.connect(decisions[0].link, credit)
    assert waiter.slot is not None
    it.open(waiter.slot)
    it.close(waiter.slot)
    return it


def links(decisions: tuple[Any, ...]) -> list[int]:
    return [decision.link for decision in decisions if isinstance(decision, Dial)]


def refusals(decisions: tuple[Any, ...]) -> list[tuple[Waiter, Any]]:
    return [(decision.waiter, decision.why) for decision in decisions if isinstance(decision, Refuse)]


def kinds(decisions: tuple[Any, ...]) -> list[Any]:
    return [decision for decision in decisions if not isinstance(decision, WakeAt)]
