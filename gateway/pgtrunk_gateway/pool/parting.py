"""The ends of connections, where it matters when Postgres has ended its side: its process counts there until then.

A connection in which nothing runs is left open behind Terminate, until Postgres hangs up; it does so when its process
is out of all lists. Of one that was cut off Postgres may not know before it has something to say: what runs there is
cancelled. Nothing tells when a process has ended whose connection is gone, so those get a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.errors import GatewayError
from pgtrunk_gateway.pool.connect import SocketTuner, dial_like

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["EXIT", "HangUp", "Parting"]

log = logging.getLogger(__name__)

EXIT: Final = 0.25
"""Seconds that a Postgres process has to end behind a cancel, or behind the end of its connection."""
_PATIENCE: Final = 5.0
"""Seconds for Postgres to hang up."""
_LAST: Final = 0.5
"""The same, at the end of the gateway."""


class HangUp(asyncio.Protocol):
    """A connection on which nothing more is said or listened to. Its future is done when it has ended."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class Parting:
    """All connections of a worker that are about to end. In each call ``gone`` is told when Postgres has ended too."""

    def __init__(self, tune: SocketTuner) -> None:
        self._tune = tune
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.Transport] = set()
        """Those that wait for Postgres to hang up."""
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._tasks)

    def part(self, backend: Backend, gone: Callable[[], None]) -> None:
        """``backend`` has just been closed, or lost."""
        if backend.hung_up:
            gone()
        elif backend.transport.is_closing():
            self._begin(self._cut_off(backend), f"cut off S-{backend.id}", gone)
        else:
            # Here and not in the task, so that nothing of it reaches the backend any more.
            hang_up = HangUp()
            backend.transport.set_protocol(hang_up)
            backend.transport.resume_reading()
            self._transports.add(backend.transport)
            self._begin(self._linger(backend.transport, hang_up), f"linger S-{backend.id}", gone)

    def unopened(self, gone: Callable[[], None]) -> None:
        """A connection was given up before its login was complete, or refused."""
        self._begin(asyncio.sleep(EXIT), "given up", gone)

    async def close(self) -> None:
        """Ends all of it, very soon; nobody is told any more."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for transport in self._transports:
            transport.abort()
        self._transports.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, run: Coroutine[Any, Any, None], name: str, gone: Callable[[], None]) -> None:
        task = self._loop.create_task(run, name=name)
        self._tasks.add(task)
        # Not a `finally` in the task: one that is cancelled before its first step never gets there.
        task.add_done_callback(partial(self._ended, gone))

    def _ended(self, gone: Callable[[], None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (fault := task.exception()) is not None:
            # A fault of ours; what it was for must not be held for ever.
            log.error("%s failed", task.get_name(), exc_info=fault)
        gone()

    async def _linger(self, transport: asyncio.Transport, hang_up: HangUp) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await hang_up.closed
        except TimeoutError:
            log.warning("the server has not closed a connection within %g s after Terminate", _PATIENCE)
        finally:
            self._transports.discard(transport)
            transport.abort()

    async def _cut_off(self, backend: Backend) -> None:
        if backend.key is not None:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._cancel(backend, CancelRequest(backend.key.pid, backend.key.secret))
            except (GatewayError, OSError, TimeoutError) as error:
                log.info("S-%d: what it was at when it was cut off is not cancelled: %s", backend.id, error)
        await asyncio.sleep(EXIT)

    async def _cancel(self, backend: Backend, request: CancelRequest) -> None:
        # Its secret is that process' own: another that got its number would not listen.
        hang_up = HangUp()
        transport = await dial_like(backend.transport, backend.target, hang_up, self._tune)
        try:
            transport.write(request.encode())
            await hang_up.closed
        finally:
            transport.abort()
