"""Accepts TCP and unix connections for all workers, and hands each to the worker with the fewest sessions.

Nobody but the supervisor listens. So a worker that dies takes no connection with it but those that it serves, and load
follows sessions: by chance, as where each worker listens for itself (SO_REUSEPORT), or by who wakes first, as where all
share one socket, some tens of sessions are spread badly. While no worker can take one, connections wait here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.fleet.hand import Handed

if TYPE_CHECKING:
    import socket

    from pgtrunk_gateway.fleet.hand import Hand

__all__ = ["Acceptor", "Choice"]

log = logging.getLogger(__name__)

_AHEAD: Final = 64
"""Connections that one worker may have on their way to it. One that is stuck gets no more."""
_BURST: Final = 64
"""Connections that are accepted before the loop looks at anything else."""
_ROOM: Final = 1024
"""Connections that wait here when no worker takes any; further ones wait in the kernel's queue (listen_backlog)."""
_LOOK: Final = 0.02
"""Seconds between two looks whether a worker has room again: nobody says so."""
_HOLD_OFF: Final = 1.0
"""Seconds for which nothing is accepted after an error; asyncio's own servers do the same."""


def spare_files() -> int:
    """How many files this process may open besides those that it has (ulimit -n)."""
    # Not on every system; and where it is not, there are no workers.
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - len(os.listdir("/proc/self/fd"))


class Choice:
    """Which worker gets the next connection. Pure.

    A worker counts what it has taken and what sessions it has; here is counted what was passed to it. What is on its
    way is the difference, and counts as a session: those who connect at once are spread as evenly as those who come one
    by one.
    """

    def __init__(self, sessions: Callable[[int], int], taken: Callable[[int], int]) -> None:
        self._sessions = sessions
        self._taken = taken
        self._passed: dict[int, int] = {}
        self._held: set[int] = set()
        self._last = -1

    def join(self, index: int) -> None:
        """Worker ``index`` serves from now on; nothing is on its way to it."""
        self._passed[index] = self._taken(index)

    def leave(self, index: int) -> None:
        """It does not any more."""
        self._passed.pop(index, None)
        self._held.discard(index)

    def hold(self, index: int) -> None:
        """It serves, and shall get none until `release`."""
        self._held.add(index)

    def release(self, index: int) -> None:
        """It may get some again."""
        self._held.discard(index)

    def took_back(self, index: int, count: int) -> None:
        """So many that it had been given are not on their way to it any more."""
        self._passed[index] -= count

    def passed(self, index: int) -> None:
        """It has been given one."""
        self._passed[index] += 1
        self._last = index

    @property
    def there(self) -> list[int]:
        """The workers that serve."""
        return list(self._passed)

    def under_way(self, index: int) -> int:
        """Connections that it has been given, and has not counted yet."""
        return self._passed[index] - self._taken(index)

    def order(self) -> list[int]:
        """Whom to ask, best first; among equals it goes round. Empty: nobody can take one now."""
        return [index for _, _, index in sorted(self._candidates())]

    def _candidates(self) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for index in self._passed.keys() - self._held:
            # Before the sessions, which the worker writes first: so none is left out, though one may count twice.
            under_way = self.under_way(index)
            if under_way < _AHEAD:
                behind_last = (index - self._last - 1) % (max(self._passed) + 1)
                found.append((under_way + self._sessions(index), behind_last, index))
        return found


class Acceptor:
    """The supervisor's loop of accept(). ``patience``: seconds for which a connection may wait for a worker."""

    def __init__(self, choice: Choice, hands: Mapping[int, Hand], patience: Callable[[], float]) -> None:
        self._choice = choice
        self._hands = hands
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._listening: dict[int, tuple[str, socket.socket]] = {}
        """By descriptor."""
        self._held_off = False
        # A worker cannot be started without some descriptors, and nobody else would take those that wait.
        self._room = max(1, min(_ROOM, spare_files() // 2))
        self._waiting: deque[tuple[float, Handed]] = deque()
        """With the time until which each may."""
        self._looking = False
        """Whether it will be tried again to give them out."""
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def waiting(self) -> int:
        """Connections that no worker has taken yet."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits here, and nothing is on its way to a worker."""
        return not self._waiting and not any(self._choice.under_way(index) for index in self._choice.there)

    # -- workers -------------------------------------------------------------------------------------------------------

    def join(self, index: int) -> None:
        """Worker ``index`` takes connections from now on."""
        self._choice.join(index)
        self._pass_on()

    def leave(self, index: int) -> None:
        """It is gone: what it has not taken goes to the others."""
        self._choice.leave(index)
        self._take_back(index)

    def hold(self, index: int) -> None:
        """It is there and takes none: it gets no more until `release`, and what it has not taken goes to the others."""
        self._choice.hold(index)
        # It may wake up in this moment. Each one is got by it or by us.
        self._choice.took_back(index, self._take_back(index))

    def release(self, index: int) -> None:
        """It takes connections again."""
        self._choice.release(index)
        self._pass_on()

    def _take_back(self, index: int) -> int:
        left, lost = self._hands[index].take_back()
        deadline = self._loop.time() + self._patience()
        # They have waited longest.
        self._waiting.extendleft((deadline, handed) for handed in reversed(left))
        self._pass_on()
        self._forget(max(0, len(self._waiting) - self._room))
        return len(left) + lost

    # -- sockets -------------------------------------------------------------------------------------------------------

    def listen(self, front: str, listening: socket.socket) -> None:
        """Accepts from a listening socket, for the front of that name."""
        self._listening[listening.fileno()] = (front, listening)
        self._loop.add_reader(listening.fileno(), self._accept, front, listening)

    def stop(self, front: str) -> None:
        """Nothing more is accepted for that front. Its sockets are somebody else's to close."""
        for descriptor, (name, _) in list(self._listening.items()):
            if name == front:
                self._loop.remove_reader(descriptor)
                del self._listening[descriptor]

    def close(self) -> None:
        """Nothing more is accepted, and who waits is not waited with."""
        for descriptor in self._listening:
            self._loop.remove_reader(descriptor)
        self._listening.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for _, handed in self._waiting:
            handed.sock.close()
        self._waiting.clear()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accept(self, front: str, listening: socket.socket) -> None:
        for _ in range(_BURST):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionError:
                # It has hung up meanwhile.
                continue
            except OSError as error:
                # Too many open files, mostly.
                log.error("%s: cannot accept: %s; trying again in %g s", front, error.strerror, _HOLD_OFF)
                self._hold_off(_HOLD_OFF)
                break
            self._waiting.append((self._loop.time() + self._patience(), Handed(front, sock)))
            if len(self._waiting) == 1:
                self._pass_on()
            elif len(self._waiting) >= self._room:
                self._hold_off(_LOOK)
                break

    def _hold_off(self, seconds: float) -> None:
        if not self._held_off:
            self._held_off = True
            for descriptor in self._listening:
                self._loop.remove_reader(descriptor)
            self._later(seconds, self._go_on)

    def _go_on(self) -> None:
        if len(self._waiting) >= self._room:
            self._later(_LOOK, self._go_on)
            return
        self._held_off = False
        for front, listening in self._listening.values():
            self._loop.add_reader(listening.fileno(), self._accept, front, listening)

    def _pass_on(self) -> None:
        """Gives out what waits, in its order, as long as somebody takes it."""
        while self._waiting and self._give(self._waiting[0][1]):
            self._waiting.popleft()
        self._forget_late()
        if self._waiting and not self._looking:
            self._looking = True
            self._later(_LOOK, self._look)

    def _look(self) -> None:
        self._looking = False
        self._pass_on()

    def _give(self, handed: Handed) -> bool:
        for index in self._choice.order():
            if self._hands[index].give(handed):
                self._choice.passed(index)
                return True
        return False

    def _forget_late(self) -> None:
        now, late = self._loop.time(), 0
        while self._waiting and self._waiting[0][0] <= now:
            self._waiting.popleft()[1].sock.close()
            late += 1
        if late:
            log.warning("client_login_timeout: no worker has taken %d connections, which are closed", late)

    def _forget(self, count: int) -> None:
        """Closes those that have waited least."""
        for _ in range(count):
            self._waiting.pop()[1].sock.close()
        if count:
            log.warning("no worker takes connections, and %d too many wait (ulimit -n), which are closed", count)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            act()

        timer = self._loop.call_later(seconds, run)
        self._timers.add(timer)
