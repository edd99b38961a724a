"""One worker's place in the fleet: a process, and another one when that is gone.

A worker that dies is replaced by one of the same number, with the same sockets. The first comes at once; after one that
has died young the next is waited with, longer each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.charter import Charter
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["House", "Post", "next_pause"]

log = logging.getLogger(__name__)

_YOUNG: Final = 30.0
"""Seconds of service behind which a death is no reason to wait with the next."""
_SHORTEST: Final = 1.0
_LONGEST: Final = 30.0
_BEGINS: Final = 120.0
"""Seconds in which a worker must serve: with as many as there may be, on few cores, that is not too long."""
_ENDS: Final = 20.0
"""Seconds for the end of a worker that shall end now; a gateway gives its sessions less."""
_LEAVES: Final = 5.0
"""Seconds from a worker's last word to the end of its process."""


def next_pause(last: float, served: float) -> float:
    """Seconds to wait with the next worker, behind one that has served for ``served`` seconds, and was itself waited
    with for ``last``."""
    if served >= _YOUNG:
        return 0.0
    return min(max(2 * last, _SHORTEST), _LONGEST)


class House(Protocol):
    """What a post is part of."""

    def charter(self, index: int) -> Charter:
        """What the next worker of that number is told."""
        ...

    def enters(self, index: int, bus: Bus) -> None:
        """It is about to start: handlers of what it may say belong on ``bus``."""

    def serves(self, index: int, bus: Bus, pid: int) -> None:
        """It is ready."""

    def leaves(self, index: int) -> None:
        """It is gone, or not to be counted on any more. Comes behind each :meth:`enters`."""


class Post:
    """Of worker number ``index``."""

    def __init__(self, index: int, house: House) -> None:
        self.index = index
        self.restarts = 0
        """Workers that were here before this one."""
        self._house = house
        self._bus: Bus | None = None
        self._patience = Patience.RUNNING
        self._stopped = asyncio.Event()
        """No other worker is to come."""
        self._deadline: asyncio.Timeout | None = None
        """By which the worker must serve, or have ended."""
        self._begun = asyncio.Event()
        """The first worker serves, or there will be none."""
        self._fault = ""
        """What it said before it ended, without having served; or why it was killed."""
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._loop = asyncio.get_running_loop()
        self._life = self._loop.create_task(self._keep(), name=f"worker {index}")

    async def begun(self) -> None:
        """Returns when the first worker serves. Raises :class:`ConfigError` where it cannot."""
        await self._begun.wait()
        if self._fault:
            raise ConfigError(self._fault)

    def stop(self, patience: Patience) -> None:
        """No other worker is to come, and this one ends, as soon as ``patience`` has it."""
        self._patience = max(patience, self._patience)
        self._stopped.set()
        if self._bus is not None:
            self._tell_stop(self._bus)

    def kill(self, why: str) -> None:
        """Ends the worker that is here, whatever it does; another one comes. ``why`` is for the log."""
        if self._process is not None and self._process.returncode is None:
            self._fault = self._fault or why
            self._process.kill()

    async def over(self) -> None:
        """Returns when no worker is here, and none will be."""
        await asyncio.shield(self._life)

    async def close(self) -> None:
        """Ends the worker at once, even where it has not begun to serve."""
        self.stop(Patience.NONE)
        await self.over()

    # -- workers, one after the other ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        pause = 0.0
        try:
            while not self._stopped.is_set():
                self._began = 0.0
                try:
                    end = await self._live()
                except Exception:
                    # The supervisor's own fault, which must cost no more than this worker.
                    log.exception("worker %d: unexpected", self.index)
                    end = "was lost"
                if not self._begun.is_set():
                    self._fault = self._fault or f"worker {self.index}: {end} before it served"
                    return
                if self._stopped.is_set():
                    return
                pause = next_pause(pause, self._loop.time() - self._began if self._began else 0.0)
                if self._fault:
                    end, self._fault = f"{end}: {self._fault}", ""
                log.error("worker %d: %s; the next one starts in %g s", self.index, end, pause)
                self.restarts += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopped.wait()
        finally:
            self._begun.set()

    async def _live(self) -> str:
        """From the start of a worker to its end -> how that came."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        bus = Bus(f"worker {self.index}")
        try:
            charter = self._house.charter(self.index)
            process = _begin(theirs.fileno(), charter)
        except OSError as error:
            ours.close()
            return f"cannot be started: {error.strerror}"
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        bus.on("charter", lambda _: charter.as_body())
        bus.on("ready", lambda _: self._serves(bus, process.pid))
        bus.on("failed", self._failed)
        self._house.enters(self.index, bus)
        self._process = process
        late = False
        try:
            await self._loop.create_unix_connection(lambda: bus, sock=ours)
            self._bus = bus
            async with asyncio.timeout(_BEGINS) as self._deadline:
                if self._stopped.is_set():
                    self._tell_stop(bus)
                await bus.wait_closed()
        except TimeoutError:
            late = True
        finally:
            self._bus = self._deadline = None
            bus.close()
            try:
                self._house.leaves(self.index)
            finally:
                self._process = None
                code = await self._loop.run_in_executor(None, _end, process, 0.0 if late else _LEAVES)
        return f"pid {process.pid} {_told(code, late=late)}"

    def _serves(self, bus: Bus, pid: int) -> None:
        try:
            self._house.serves(self.index, bus, pid)
        except Exception:
            # The supervisor's own fault, which must cost no more than this worker; nor may anybody wait for it.
            log.exception("worker %d: unexpected", self.index)
            bus.close()
            return
        self._began = self._loop.time()
        if self._patience is not Patience.NONE:
            self._due(None)
        self._begun.set()

    def _failed(self, body: Body) -> None:
        self._fault = body["message"]

    def _tell_stop(self, bus: Bus) -> None:
        bus.tell("stop", {"patience": int(self._patience)})
        if self._patience is Patience.NONE:
            # One that does not serve yet has nothing to end.
            self._due(self._loop.time() + (_ENDS if self._began else 0.0))

    def _due(self, when: float | None) -> None:
        # One that expires now can have no other end.
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(when)


def _begin(bus: int, charter: Charter) -> subprocess.Popen[bytes]:
    """Starts a worker, with its end of the bus; returns as soon as it is another program."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "pgtrunk_gateway.fleet.worker", str(bus)],
        stdin=subprocess.DEVNULL,
        pass_fds=(bus, *charter.descriptors),
        # A terminal's Ctrl-C is for the supervisor, which says what becomes of all of them.
        process_group=0,
    )


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Waits for its end, and makes it come after ``seconds`` -> the exit code, or less than 0: the signal."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _told(code: int, *, late: bool) -> str:
    if late:
        return f"did not serve within {_BEGINS:g} s, or did not end within {_ENDS:g} s, and was killed"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
