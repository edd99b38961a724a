"""Acts on what a `Watch` finds: a stuck worker gets no connections, a hung one is killed and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk_gateway.fleet.board import Field
from pgtrunk_gateway.fleet.watch import LOOK, Finding, Watch

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.acceptor import Acceptor
    from pgtrunk_gateway.fleet.board import Board
    from pgtrunk_gateway.fleet.fleet import Fleet

__all__ = ["Pulse", "Watchdog"]

log = logging.getLogger(__name__)

_BEAT: Final = LOOK / 2
"""Seconds between two counts of a worker."""
_TELLS: Final = 1.0
"""Seconds that a hung worker has to say where it is, before it is killed."""
_WHERE: Final[int] = getattr(signal, "SIGRTMIN", signal.SIGUSR1)
"""Asks it. No service manager sends this one. Faulthandler answers, also where Python code would not get a turn."""


class Victim(Protocol):
    """The process that a post has now."""

    def kill(self, why: str) -> None:
        """Ends it, whatever it does. ``why`` goes to the log."""


class Watchdog:
    """The supervisor's. ``limit``: seconds after which a worker is hung, 0: never. To be closed."""

    def __init__(
        self, board: Board, acceptor: Acceptor, post: Callable[[int], Victim], limit: Callable[[], float]
    ) -> None:
        self._board = board
        self._acceptor = acceptor
        self._post = post
        self._limit = limit
        self._watch = Watch()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK, self._look)
        self._last_words: dict[int, asyncio.TimerHandle] = {}

    def join(self, index: int) -> None:
        """Worker ``index`` serves from now on."""
        self._watch.join(index, self._board.read(index, Field.BEATS))

    def leave(self, index: int) -> None:
        """It does not any more."""
        self._watch.leave(index)
        if (timer := self._last_words.pop(index, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        """Nobody is watched any more."""
        self._timer.cancel()
        for timer in self._last_words.values():
            timer.cancel()
        self._last_words.clear()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK, self._look)
        limit = round(self._limit() / LOOK)
        for index in self._watch.watched:
            finding = self._watch.look(index, self._board.read(index, Field.BEATS), limit)
            if finding is not None:
                self._act(index, finding)

    def _act(self, index: int, finding: Finding) -> None:
        pid = self._board.read(index, Field.PID)
        silent = self._watch.silent(index) * LOOK
        match finding:
            case Finding.STUCK:
                log.warning("worker %d: pid %d does nothing for %g s: it gets no connections", index, pid, silent)
                self._acceptor.hold(index)
            case Finding.AWAKE:
                log.warning("worker %d: pid %d goes on", index, pid)
                self._acceptor.release(index)
            case Finding.HUNG:
                why = f"its event loop had not turned for {silent:g} s (worker_hang_timeout)"
                # A stopped process says nothing. One in an endless loop says where that is.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, _WHERE)
                self._last_words[index] = self._loop.call_later(_TELLS, self._post(index).kill, why)


class Pulse:
    """The worker's: within it, it counts on the board as long as its event loop turns."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._count = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        # To standard error, also where the log goes elsewhere: it is written by no code of Python's.
        faulthandler.register(_WHERE, all_threads=True, chain=False)
        self._beat()

    def _beat(self) -> None:
        self._count += 1
        self._fleet.post(Field.BEATS, self._count)
        self._timer = self._loop.call_later(_BEAT, self._beat)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        faulthandler.unregister(_WHERE)
