"""Carries cancel requests to Postgres.

A CancelRequest names a process, not a query: Postgres cancels whatever that backend runs when the signal arrives. So a
backend with a cancel on its way is not given to another session until Postgres has closed the connection that carried
it, by which time the signal has been sent; and a cancel whose session no longer holds the backend when the connection
is there is not sent at all.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.registry import Registry
from pgtrunk_gateway.errors import BackendUnavailable
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.pool.connect import SocketTuner, dial_like

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.cancel.keys import CancelKey
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["Cancellable", "Dispatcher"]

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two requests to end the same query."""

_LOOK = 0.005
"""Seconds between two looks at whether settings have been made: they take no longer than a round trip."""

_FOREVER = 3600.0
"""Seconds; cancel_wait_timeout = 0 switches it off, but nobody else gets the backend meanwhile."""


class Cancellable(Protocol):
    """A session, as far as a cancel is concerned."""

    backend: Backend | None

    def cancel(self) -> None:
        """A request that waits for a backend is refused."""


class Dispatcher:
    """The cancels of one gateway. ``timeout``: seconds for one to reach Postgres (cancel_wait_timeout)."""

    def __init__(self, *, peer_id: int, random: Callable[[int], bytes], timeout: float, tune: SocketTuner) -> None:
        self.registry: Registry[Cancellable] = Registry(peer_id, random)
        self.sent = 0
        self.ignored = 0
        """Requests with a wrong key, for a session that runs nothing, or overtaken by the end of the query."""
        self._timeout = timeout or _FOREVER
        self._tune = tune
        self._tasks: set[asyncio.Task[None]] = set()
        self._chases: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Cancels under way."""
        return len(self._tasks)

    def configure(self, *, peer_id: int, timeout: float) -> None:
        """After a reload: new keys have this number, and requests this many seconds (0: no limit)."""
        self.registry.peer_id = peer_id
        self._timeout = timeout or _FOREVER

    def register(self, session: Cancellable) -> CancelKey:
        return self.registry.register(session)

    def forget(self, key: CancelKey) -> None:
        self.registry.forget(key)

    async def serve(self, request: CancelRequest) -> None:
        """Acts on a client's request, and returns when it has had its effect: clients wait for the connection's end."""
        session = self.registry.find(request.pid, request.secret)
        if session is None:
            self.ignored += 1
            log.info("cancel request with an unknown key (pid %d)", request.pid)
            return
        backend = session.backend
        if backend is None:
            session.cancel()
        elif backend.replies.queue:
            task = self._start(backend)
            # The client may go away; the cancel goes on.
            await asyncio.wait([task])
        else:
            self.ignored += 1

    def cancel(self, backend: Backend) -> None:
        """Sees to it in the background that ``backend`` does not go on with what was sent to it so far.

        Postgres forgets a request that arrives before the query does. A client that cancels may ask again; here nobody
        is left who would, so it is asked until the query has ended.
        """
        chase = self._chase(backend, backend.lease, backend.replies.batch, self._start(backend))
        task = asyncio.get_running_loop().create_task(chase, name=f"end S-{backend.id}")
        self._chases.add(task)
        task.add_done_callback(self._chases.discard)

    async def _chase(self, backend: Backend, lease: int, batch: int, request: asyncio.Task[None]) -> None:
        pause = _FIRST_PAUSE
        while True:
            await asyncio.wait([request])
            await asyncio.sleep(pause)
            # A further batch is the ROLLBACK that comes after the end of what ran.
            if _is_over(backend, lease) or backend.replies.batch != batch:
                return
            request = self._start(backend)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _start(self, backend: Backend) -> asyncio.Task[None]:
        # Counted before the first await, or the backend could be given away in between.
        backend.cancels += 1
        task = asyncio.get_running_loop().create_task(self._run(backend, backend.lease), name=f"cancel S-{backend.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, backend: Backend, lease: int) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._carry(backend, lease)
        except BackendUnavailable as error:
            log.warning("S-%d: cancel request failed: %s", backend.id, error)
        except TimeoutError:
            log.warning("S-%d: cancel request failed: cancel_wait_timeout = %g s", backend.id, self._timeout)
        finally:
            backend.cancel_ended()

    async def _carry(self, backend: Backend, lease: int) -> None:
        if backend.key is None:
            log.warning("S-%d: the server gave no key to cancel with", backend.id)
            return
        connection = _Connection()
        transport = await dial_like(backend.transport, backend.target, connection, self._tune)
        try:
            while backend.is_setting:  # noqa: ASYNC110 - an event would cost every lease that has none of it
                # What is cancelled is the client's request. Without its settings it would run under others.
                await asyncio.sleep(_LOOK)
            if _is_over(backend, lease):
                self.ignored += 1
                return
            transport.write(CancelRequest(backend.key.pid, backend.key.secret).encode())
            self.sent += 1
            await connection.closed
        finally:
            transport.abort()

    async def close(self, patience: float = 0.0) -> None:
        """Ends what is under way, and has not come to its own end after ``patience`` seconds."""
        if self._tasks or self._chases:
            await asyncio.wait(self._tasks | self._chases, timeout=patience)
        # Those who chase first: they start the others.
        for tasks in (self._chases, self._tasks):
            ending = list(tasks)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


def _is_over(backend: Backend, lease: int) -> bool:
    """Whether there is nothing any more that the holder of this lease could want to cancel."""
    return backend.lease != lease or not backend.runs or backend.state is BackendState.CLOSED


class _Connection(asyncio.Protocol):
    """Postgres says nothing to a cancel request; it closes the connection when the signal has been sent."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
