"""Carries cancel requests to Postgres, each by a connection of its own.

A CancelRequest names a process, not a query: Postgres cancels whatever that backend runs when the signal arrives. Four
rules keep it from everybody but the session that asked, and Postgres from a storm:

Rule 1: a backend with a request on its way is not given to another session until Postgres has closed the connection
    that carried it, by which time the signal has been sent.
Rule 2: a request whose session no longer holds the backend when the connection is there, or waits for nothing, is not
    sent at all.
Rule 3: where Postgres does not close the connection within cancel_wait_timeout, it may still act on what it was told.
    The backend is then closed when it is free: the next session gets another one, and a late signal hits nobody.
Rule 4: a request that has not been sent yet speaks for all that come meanwhile, and no more than ``_ABREAST`` wait for
    Postgres to hang up; the next waits for one of these. So however often a client asks, the connections are few.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.errors import BackendUnavailable
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.pool.connect import SocketTuner, dial_like

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["UNCONFIRMED", "Carrier", "is_over"]

log = logging.getLogger(__name__)

UNCONFIRMED: Final = "cancel_wait_timeout: the server has not said that it is done with a cancel request"
"""Why a backend is closed, by rule 3."""

_ABREAST: Final = 2
"""One, and one more for whoever asks again since nothing has come of the first."""

_LOOK: Final = 0.005
"""Seconds between two looks at whether settings have been made: they take no longer than a round trip."""

_FOREVER: Final = 3600.0
"""Seconds; cancel_wait_timeout = 0 switches it off, but nobody else gets the backend meanwhile."""


def is_over(backend: Backend, lease: int) -> bool:
    """Whether there is nothing any more that the holder of this lease could want to cancel."""
    return backend.lease != lease or not backend.runs or backend.state is BackendState.CLOSED


@dataclass(slots=True)
class _Lane:
    """The requests to one backend that are on their way."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ABREAST))
    """For those that Postgres is to be told of, or has been told of and has not hung up on."""
    unsent: asyncio.Task[Outcome] | None = None
    """The one that Postgres has not been told of yet."""
    count: int = 0


class Carrier:
    """Those of one gateway. ``timeout``: seconds for one to have its effect (cancel_wait_timeout; 0: no limit)."""

    def __init__(self, *, timeout: float, tune: SocketTuner) -> None:
        self.timeout = timeout
        self.sent = 0
        """Requests that Postgres has been told."""
        self.tasks: set[asyncio.Task[Outcome]] = set()
        """Those under way."""
        self._tune = tune
        self._lanes: dict[int, _Lane] = {}

    def __len__(self) -> int:
        return len(self.tasks)

    def start(self, backend: Backend) -> asyncio.Task[Outcome]:
        """Has Postgres cancel what ``backend`` runs -> what becomes of it; it goes on without whoever asked for it."""
        lane = self._lanes.setdefault(backend.id, _Lane())
        if lane.unsent is not None:
            return lane.unsent
        # Counted before the first await, or the backend could be given away in between.
        backend.cancels += 1
        lane.count += 1
        run = self._run(backend, backend.lease, lane)
        task = asyncio.get_running_loop().create_task(run, name=f"cancel S-{backend.id}")
        lane.unsent = task
        self.tasks.add(task)
        # Not a `finally` in the task: one that is cancelled before its first step never gets there.
        task.add_done_callback(partial(self._ended, backend, lane))
        return task

    async def _run(self, backend: Backend, lease: int, lane: _Lane) -> Outcome:
        timeout = self.timeout or _FOREVER
        try:
            if backend.key is None:
                log.warning("S-%d: the server gave no key to cancel with", backend.id)
                return Outcome.FAILED
            request = CancelRequest(backend.key.pid, backend.key.secret)
            async with asyncio.timeout(timeout), lane.places:
                return await self._carry(backend, lease, request, lane)
        except BackendUnavailable as error:
            log.warning("S-%d: cancel request failed: %s", backend.id, error)
        except TimeoutError:
            if lane.unsent is not asyncio.current_task():
                log.warning("S-%d: cancel request not confirmed: cancel_wait_timeout = %g s", backend.id, timeout)
                backend.retire(UNCONFIRMED)
                return Outcome.UNCONFIRMED
            log.warning("S-%d: cancel request failed: cancel_wait_timeout = %g s", backend.id, timeout)
        finally:
            # At once: what runs from now on, it has not spoken for.
            if lane.unsent is asyncio.current_task():
                lane.unsent = None
        return Outcome.FAILED

    async def _carry(self, backend: Backend, lease: int, request: CancelRequest, lane: _Lane) -> Outcome:
        connection = _Connection()
        transport = await dial_like(backend.transport, backend.target, connection, self._tune)
        try:
            if backend.is_setting:
                await _settings_made(backend)
            if is_over(backend, lease):
                return Outcome.OVERTAKEN
            transport.write(request.encode())
            self.sent += 1
            # One that comes from now on is meant for what runs then.
            lane.unsent = None
            await connection.closed
        finally:
            transport.abort()
        return Outcome.CARRIED

    def _ended(self, backend: Backend, lane: _Lane, task: asyncio.Task[Outcome]) -> None:
        self.tasks.discard(task)
        if lane.unsent is task:
            lane.unsent = None
        lane.count -= 1
        if not lane.count:
            self._lanes.pop(backend.id, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # A fault of ours: it ends this request, and is logged with all that is known.
            log.error("S-%d: cancel request failed", backend.id, exc_info=fault)
        backend.cancel_ended()


async def _settings_made(backend: Backend) -> None:
    """What is cancelled is the client's request. Without its settings it would run under others."""
    while backend.is_setting:  # noqa: ASYNC110 - an event would cost every lease that has none of it
        await asyncio.sleep(_LOOK)
    # Postgres forgets a cancel that comes while it reads the request, which it begins to only now.
    await asyncio.sleep(_LOOK)


class _Connection(asyncio.Protocol):
    """Postgres says nothing to a cancel request; it closes the connection when the signal has been sent."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
