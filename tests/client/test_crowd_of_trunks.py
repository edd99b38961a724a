"""A thousand trunks that lose their gateway at once, in virtual time: what it sees of them when it is back.

The gateway makes one handshake after the other, in order, and each costs it some milliseconds of Python. The real thing
is measured elsewhere; here it is the clients' part that counts: nobody asks twice while an answer is under way, nobody
comes all at once who need not, and all of them are back in hardly more time than the handshakes take.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from helpers.desk import Desk, links
from pgtrunk.allocation import Allocation, Rules
from pgtrunk.errors import GatewayUnreachable, SessionLost

TRUNKS = 1000
COST = 0.004
"""Seconds of the gateway's time that a handshake takes."""
CONNECT_TIMEOUT = 5.0
LOST, UNANSWERED = SessionLost("idle for 10 s"), GatewayUnreachable("no answer")


@dataclass
class Crowd:
    """Trunks, a clock, and a gateway that comes back at ``back_at``."""

    back_at: float
    rules: dict[str, Any]
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    now: float = 0.0
    attempts: int = 0
    timeouts: int = 0
    arrivals: list[float] = field(default_factory=list)
    """When handshakes came to the gateway that is back."""
    ready: list[float] = field(default_factory=list)
    """When trunks had a connection again."""
    _events: list[tuple[float, int, Any]] = field(default_factory=list)
    _count: Any = field(default_factory=itertools.count)
    _free_at: float = 0.0

    def __post_init__(self) -> None:
        self.trunks = [Desk(Allocation(Rules(streams_per_connection=10, **self.rules))) for _ in range(TRUNKS)]
        for trunk in self.trunks:
            waiting = trunk.ask()[0] if not self.rules.get("min_connections") else None
            (first, *_) = trunk.core.links or links(trunk.core.decide(0.0))
            trunk.connect(first, jitter=self.rng.random())
            if waiting is not None:
                assert waiting.slot is not None
                trunk.open(waiting.slot)

    def lose(self, *, waiting: int) -> None:
        """All connections are lost within a tenth of a second, and so many callers of each trunk want another."""
        for trunk in self.trunks:
            self._at(self.rng.random() * 0.1, self._lose, trunk, waiting)

    def run(self, seconds: float) -> None:
        while self._events and self._events[0][0] <= seconds:
            self.now, _, (what, *arguments) = heapq.heappop(self._events)
            what(*arguments)

    def _at(self, when: float, what: Any, *arguments: Any) -> None:
        heapq.heappush(self._events, (when, next(self._count), (what, *arguments)))

    def _lose(self, trunk: Desk, waiting: int) -> None:
        trunk.now = self.now
        for link in list(trunk.core.links):
            self._act(trunk, trunk.core.lost(link, LOST, self.now, self.rng.random()))
        for _ in range(waiting):
            self._act(trunk, trunk.ask()[1])

    def _act(self, trunk: Desk, decisions: tuple[Any, ...]) -> None:
        for link in links(decisions):
            self._dial(trunk, link)
        when = decisions[-1].when
        if when is not None:
            self._at(when, self._look, trunk)

    def _look(self, trunk: Desk) -> None:
        trunk.now = self.now
        self._act(trunk, trunk.core.decide(self.now))

    def _dial(self, trunk: Desk, link: int) -> None:
        self.attempts += 1
        deadline = self.now + CONNECT_TIMEOUT
        # One that began before is heard when its first packet is sent again, which is ever more rarely.
        heard = self.now if self.now >= self.back_at else self.back_at + self.rng.random() * 2.0
        self._at(min(heard, deadline), self._heard, trunk, link, deadline)

    def _heard(self, trunk: Desk, link: int, deadline: float) -> None:
        if self.now >= self.back_at:
            self.arrivals.append(self.now)
            self._free_at = max(self._free_at, self.now) + COST
            if self._free_at <= deadline:
                self._at(self._free_at, self._answered, trunk, link)
                return
        self._at(deadline, self._unanswered, trunk, link)

    def _answered(self, trunk: Desk, link: int) -> None:
        trunk.now = self.now
        if not trunk.core.links.ready:
            self.ready.append(self.now)
        self._act(trunk, trunk.connect(link, jitter=self.rng.random()))

    def _unanswered(self, trunk: Desk, link: int) -> None:
        self.timeouts += 1
        self._act(trunk, trunk.core.failed(link, UNANSWERED, self.now, self.rng.random()))

    def busiest(self, seconds: float) -> int:
        """Handshakes that came within so many seconds, at most."""
        counts = [0]
        first = 0
        for last, when in enumerate(self.arrivals):
            while self.arrivals[first] <= when - seconds:
                first += 1
            counts.append(last - first + 1)
        return max(counts)


def test_a_gateway_that_restarts_at_once_has_each_trunk_back_as_soon_as_its_handshakes_allow() -> None:
    crowd = Crowd(0.0, {"max_lifetime": None})
    crowd.lose(waiting=3)
    crowd.run(60.0)
    assert len(crowd.ready) == TRUNKS
    assert crowd.timeouts == 0
    assert crowd.attempts == TRUNKS, "one connection is enough for those who wait, and nobody asks twice"
    assert max(crowd.ready) <= 1.1 * TRUNKS * COST + 0.3


def test_one_that_is_away_for_a_while_is_not_hammered_and_all_come_back_soon() -> None:
    crowd = Crowd(6.0, {"max_lifetime": None})
    crowd.lose(waiting=1)
    crowd.run(5.9)
    assert crowd.attempts <= 2 * TRUNKS, "one try at a time, each as long as connect_timeout"
    crowd.run(60.0)
    assert len(crowd.ready) == TRUNKS
    assert crowd.attempts <= 3 * TRUNKS
    assert max(crowd.ready) <= 6.0 + 1.5 * TRUNKS * COST


def test_where_nobody_waits_they_come_one_after_the_other() -> None:
    crowd = Crowd(0.0, {"max_lifetime": None, "min_connections": 1})
    crowd.lose(waiting=0)
    crowd.run(60.0)
    assert len(crowd.ready) == crowd.attempts == TRUNKS
    assert crowd.busiest(0.5) <= 0.2 * TRUNKS
    assert max(crowd.ready) <= 6.0


def test_warm_connections_of_a_gateway_that_stays_away_try_ever_more_rarely() -> None:
    crowd = Crowd(1e9, {"max_lifetime": None, "min_connections": 2})
    crowd.lose(waiting=0)
    crowd.run(120.0)
    assert 3 * TRUNKS <= crowd.attempts <= 9 * TRUNKS
