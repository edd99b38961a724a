"""Happy eyeballs, version 2: several addresses are tried, a little apart, and the first that answers has won.

An attempt has a while in which it is alone (RFC 8305 section 5); then, or as soon as it has failed, the next one begins
beside it. One that has been answered, though its handshake is not complete, is at a gateway that is there and has much
to do: it is alone for longer, or a crowd of clients would become twice as many when the gateway needs it least. Who has
not won says so to its gateway, by a CONNECTION_CLOSE, and is gone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from pgtrunk.closing import close_each
from pgtrunk.errors import TrunkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Attempt", "Entrant", "Outcome", "Pace", "attempt_delay", "race"]

ATTEMPT_DELAY: Final = 0.25
"""Seconds that an attempt is alone, where nothing is known of the way (RFC 8305 section 8)."""

SHORTEST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 2.0
"""Seconds that it is alone at least and at most, where something is; the most also once it has been answered."""

_ROUND_TRIPS: Final = 4
"""A handshake takes one, or two with Retry; the rest is for a gateway that is busy."""


def attempt_delay(round_trip: float | None) -> float:
    """Return the seconds that an attempt is alone, by the round-trip time of the way, None where it is not known."""
    if round_trip is None:
        return ATTEMPT_DELAY
    return min(max(SHORTEST_DELAY, _ROUND_TRIPS * round_trip), LONGEST_DELAY)


class Pace:
    """When the next attempt begins. Pure."""

    def __init__(self, now: float) -> None:
        self.due = now
        self._latest = -1
        self._began = now

    def begun(self, number: int, now: float, delay: float) -> None:
        """An attempt has begun, and is alone for so many seconds."""
        self._latest, self._began, self.due = number, now, now + delay

    def heard(self, number: int) -> None:
        """Its gateway has said something; told again, it changes nothing."""
        if number == self._latest:
            self.due = max(self.due, self._began + LONGEST_DELAY)

    def failed(self, number: int, now: float) -> None:
        """It is over. An earlier one's end is no reason for hurry: the latest has its while."""
        if number == self._latest:
            self.due = min(self.due, now)


class Entrant(Protocol):
    """A connection that is being opened."""

    @property
    def is_heard(self) -> bool:
        """Whether its gateway has said anything."""
        ...

    async def open(self, deadline: float) -> None:
        """Raises `TrunkError`, and leaves nothing behind then, nor when it is cancelled."""
        ...

    def discard(self) -> None:
        """Says goodbye if anybody may listen, and is gone."""
        ...


C = TypeVar("C")
E = TypeVar("E", bound=Entrant)


@dataclass(slots=True, eq=False)
class Attempt(Generic[C, E]):
    """One entrant's way through the race."""

    candidate: C
    connection: E
    began: float
    delay: float
    """Seconds in which no other one began."""
    task: asyncio.Task[None]
    error: TrunkError | None = None
    """Why it failed; None: it has won, or was not done when another had."""


@dataclass(slots=True, eq=False)
class Outcome(Generic[C, E]):
    """What came of a race."""

    winner: Attempt[C, E] | None
    attempts: list[Attempt[C, E]]
    """All that began, in order."""
    ended: float


async def race(
    candidates: Callable[[], C | None],
    start: Callable[[C], E],
    delay: Callable[[C], float],
    *,
    deadline: float,
    sources: Iterable[asyncio.Future[None]] = (),
) -> Outcome[C, E]:
    """Run a race until one has won or all have failed; cancelled, it leaves nothing behind.

    ``candidates`` gives the best of those that have not begun, None: there is none now; ``sources`` are what may yet
    bring some. What they raise, and what attempts raise besides `TrunkError`, is a fault, and raised.
    """
    racing = _Racing(candidates, start, delay, deadline, set(sources))
    try:
        winner = await racing.run()
    except BaseException:
        racing.discard(None)
        await racing.settle()
        raise
    racing.discard(winner)
    try:
        await racing.settle()
    except BaseException:
        if winner is not None:
            winner.connection.discard()
        raise
    return Outcome(winner, racing.attempts, racing.loop.time())


class _Racing(Generic[C, E]):
    def __init__(
        self,
        candidates: Callable[[], C | None],
        start: Callable[[C], E],
        delay: Callable[[C], float],
        deadline: float,
        sources: set[asyncio.Future[None]],
    ) -> None:
        self.attempts: list[Attempt[C, E]] = []
        self.loop = asyncio.get_running_loop()
        self._candidates = candidates
        self._start = start
        self._delay = delay
        self._deadline = deadline
        self._sources = sources
        self._running: dict[asyncio.Future[None], int] = {}
        self._pace = Pace(self.loop.time())

    async def run(self) -> Attempt[C, E] | None:
        while True:
            winner = self._look()
            if winner is not None:
                return winner
            self._begin()
            if not (self._running or self._sources):
                return None
            await asyncio.wait(
                {*self._running, *self._sources}, timeout=self._rest(), return_when=asyncio.FIRST_COMPLETED
            )

    def _look(self) -> Attempt[C, E] | None:
        """Who has won; who else is done, is out."""
        for source in [source for source in self._sources if source.done()]:
            self._sources.discard(source)
            source.result()
        winner = None
        for task, number in list(self._running.items()):
            attempt = self.attempts[number]
            if task.done():
                del self._running[task]
                error = task.exception()
                if error is None:
                    winner = winner or attempt
                elif not isinstance(error, TrunkError):
                    raise error
                else:
                    attempt.error = error
                    self._pace.failed(number, self.loop.time())
            elif attempt.connection.is_heard:
                self._pace.heard(number)
        return winner

    def _begin(self) -> None:
        """Those whose time has come."""
        while (now := self.loop.time()) >= self._pace.due:
            candidate = self._candidates()
            if candidate is None:
                return
            number, delay = len(self.attempts), self._delay(candidate)
            connection = self._start(candidate)
            task = self.loop.create_task(connection.open(self._deadline), name=f"pgtrunk attempt {number}")
            self.attempts.append(Attempt(candidate, connection, now, delay, task))
            self._running[task] = number
            self._pace.begun(number, now, delay)

    def _rest(self) -> float | None:
        """Seconds until the next one may begin; None: it might, if there were one."""
        rest = self._pace.due - self.loop.time()
        return rest if rest > 0 else None

    def discard(self, winner: Attempt[C, E] | None) -> None:
        """All but the winner are out, whether they are done or not."""
        close_each(partial(self._put_out, attempt) for attempt in self.attempts if attempt is not winner)

    @staticmethod
    def _put_out(attempt: Attempt[C, E]) -> None:
        task = attempt.task
        if attempt.error is not None or task.cancel():
            return
        # It is done, though nobody has looked yet.
        if not task.cancelled() and task.exception() is None:
            attempt.connection.discard()

    async def settle(self) -> None:
        """Waits for the turn of the loop in which those that were cancelled go."""
        left = [attempt.task for attempt in self.attempts if not attempt.task.done()]
        if left:
            await asyncio.wait(left)
