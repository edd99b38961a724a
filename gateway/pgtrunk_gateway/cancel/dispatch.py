"""What is done with cancel requests: those of clients, and those for clients that are gone.

Which session a key means is the registry's knowledge, how Postgres is told the carrier's. Here is decided what a
request comes to, and whether it is looked at at all: wrong keys are counted by address, as failed logins are, and by
the same limit, but apart from them. Whoever guesses keys is slowed down, and nobody behind the same address is kept
from logging in for it. A right key gives no failure back, since a cancel costs nothing: who has a session of his own
would buy guesses with it. Nor does a key count that is right but late, or that is a peer's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from pgtrunk_gateway.auth import LoginLimiter
from pgtrunk_gateway.cancel.carrier import Carrier, is_over
from pgtrunk_gateway.cancel.ended import EndedKeys
from pgtrunk_gateway.cancel.keys import peer_of
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.cancel.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pgtrunk.wire.startup import CancelRequest
    from pgtrunk_gateway.cancel.keys import CancelKey
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import SocketTuner

__all__ = ["Cancellable", "Dispatcher"]

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two requests to end the same query."""


class Cancellable(Protocol):
    """A session, as far as a cancel is concerned."""

    backend: Backend | None

    @property
    def waits(self) -> bool:
        """Whether :meth:`cancel` would end something."""
        ...

    def cancel(self) -> None:
        """A request that waits for a backend is refused."""


class Dispatcher:
    """The cancels of one gateway.

    ``timeout``: seconds for one to have its effect (cancel_wait_timeout; 0: no limit). ``limiter``: for wrong keys.
    ``peers``: the numbers of other gateways (``[peers]``).
    """

    def __init__(
        self,
        *,
        peer_id: int,
        random: Callable[[int], bytes],
        timeout: float,
        tune: SocketTuner,
        long_keys: bool = True,
        limiter: LoginLimiter | None = None,
        peers: Collection[int] = (),
    ) -> None:
        self.registry: Registry[Cancellable] = Registry(peer_id, random, long_keys=long_keys)
        self.limiter = limiter if limiter is not None else LoginLimiter()
        self.received = 0
        """Requests of clients; once none is under way, as many as ``outcomes`` has."""
        self.outcomes: Counter[Outcome] = Counter()
        self._carrier = Carrier(timeout=timeout, tune=tune)
        self._peers = peers
        self._ended = EndedKeys()
        self._chases: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Cancels under way."""
        return len(self._carrier)

    @property
    def sent(self) -> int:
        """Requests that Postgres has been told, the gateway's own among them."""
        return self._carrier.sent

    def configure(
        self,
        *,
        peer_id: int,
        timeout: float,
        long_keys: bool = True,
        failures: int = 10,
        window: float = 60.0,
        peers: Collection[int] = (),
    ) -> None:
        """After a reload: as at the start. ``failures`` wrong keys within ``window`` seconds (login_failure_*)."""
        self.registry.peer_id = peer_id
        self.registry.long_keys = long_keys
        self.limiter.limit, self.limiter.window = failures, window
        self._carrier.timeout = timeout
        self._peers = peers

    def register(self, session: Cancellable, *, long: bool = False) -> CancelKey:
        return self.registry.register(session, long=long)

    def forget(self, key: CancelKey) -> None:
        self.registry.forget(key)
        self._ended.add(key)

    # -- clients' requests ---------------------------------------------------------------------------------------------

    async def serve(self, request: CancelRequest, address: str | None = None) -> None:
        """Acts on a client's request, and returns when it has had its effect: clients wait for the connection's end.

        ``address``: the client's IP address; None on a unix socket, where nothing is limited.
        """
        self.received += 1
        if self.limiter.allow(address, asyncio.get_running_loop().time()):
            self.outcomes[Outcome.LIMITED] += 1
            return
        session = self.registry.find(request.pid, request.secret)
        if session is None:
            self.outcomes[self._unknown(request, address)] += 1
            return
        backend = session.backend
        if backend is not None and backend.replies.queue:
            task = self._carrier.start(backend)
            task.add_done_callback(self._carried)
            # The client may go away; the cancel goes on.
            await asyncio.wait([task])
            return
        self.outcomes[Outcome.REFUSED if session.waits else Outcome.IDLE] += 1
        session.cancel()

    def _carried(self, task: asyncio.Task[Outcome]) -> None:
        is_told = not task.cancelled() and task.exception() is None
        self.outcomes[task.result() if is_told else Outcome.FAILED] += 1

    def _unknown(self, request: CancelRequest, address: str | None) -> Outcome:
        if self._ended.has(request.pid, request.secret):
            return Outcome.ENDED
        peer = peer_of(request.pid)
        if peer in self._peers and peer != self.registry.peer_id:
            # Where several share a port, most cancels come to the wrong one.
            log.debug("cancel request with the key of peer %d", peer)
            return Outcome.UNKNOWN
        now = asyncio.get_running_loop().time()
        self.limiter.failed(address, now)
        log.info("%s: cancel request with an unknown key (pid %d)", address or "unix", request.pid)
        if self.limiter.allow(address, now):
            log.warning("%s: too many of them, the next are not looked at (login_failure_limit)", address)
        return Outcome.UNKNOWN

    # -- the gateway's own ---------------------------------------------------------------------------------------------

    def cancel(self, backend: Backend) -> None:
        """Sees to it in the background that ``backend`` does not go on with what was sent to it so far.

        Postgres forgets a request that arrives before the query does. A client that cancels may ask again; here nobody
        is left who would, so it is asked until the query has ended.
        """
        chase = self._chase(backend, backend.lease, backend.replies.batch, self._carrier.start(backend))
        task = asyncio.get_running_loop().create_task(chase, name=f"end S-{backend.id}")
        self._chases.add(task)
        task.add_done_callback(self._chases.discard)

    async def _chase(self, backend: Backend, lease: int, batch: int, request: asyncio.Task[Outcome]) -> None:
        pause = _FIRST_PAUSE
        while True:
            await asyncio.wait([request])
            await asyncio.sleep(pause)
            # A further batch is the ROLLBACK that comes after the end of what ran.
            if is_over(backend, lease) or backend.replies.batch != batch:
                return
            request = self._carrier.start(backend)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def close(self, patience: float = 0.0) -> None:
        """Ends what is under way, and has not come to its own end after ``patience`` seconds."""
        under_way: set[asyncio.Task[Any]] = {*self._carrier.tasks, *self._chases}
        if under_way:
            await asyncio.wait(under_way, timeout=patience)
        # Those who chase first: they start the others.
        await _end(self._chases)
        await _end(self._carrier.tasks)


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
