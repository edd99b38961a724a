"""What is done with cancel requests: those of clients, and those for clients that are gone.

Which session a key means is the registry's knowledge, how Postgres is told the carrier's, how another gateway is the
forwarder's. Here is decided what a request comes to, and whether it is looked at at all. In this order:

1. whoever has shown too many wrong keys lately is not heard;
2. a key of a session of this process is acted on, or is too late (``ENDED``);
3. one whose pid has the number of a peer is forwarded there, if it has a hop left, and never one with our own number;
4. the other workers of the fleet are asked whose key it is, and the one whose it is acts. It asks nobody in its turn;
5. else the key is wrong.

Wrong keys are counted by address, as failed logins are, and by the same limit, but apart from them, by the process that
the client came to. Whoever guesses keys is slowed down, and nobody behind the same address is kept from logging in for
it. A right key gives no failure back, since a cancel costs nothing: who has a session of his own would buy guesses with
it. Nor does a key count that is right but late, that is a peer's, or that a peer has passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from pgtrunk_gateway.auth import LoginLimiter
from pgtrunk_gateway.cancel.carrier import Carrier
from pgtrunk_gateway.cancel.chaser import Chaser
from pgtrunk_gateway.cancel.ended import EndedKeys
from pgtrunk_gateway.cancel.forwarder import Forwarder
from pgtrunk_gateway.cancel.guesses import Guesses
from pgtrunk_gateway.cancel.keys import as_minted, hops, peer_of
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.cancel.registry import Registry
from pgtrunk_gateway.cancel.whereabouts import Whereabouts
from pgtrunk_gateway.errors import GatewayError, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pgtrunk.wire.startup import CancelRequest
    from pgtrunk_gateway.cancel.keys import CancelKey
    from pgtrunk_gateway.cancel.lane import Lane
    from pgtrunk_gateway.cancel.peer import Peer
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import SocketTuner

__all__ = ["Cancellable", "Dispatcher", "Siblings"]

log = logging.getLogger(__name__)

_FOREVER: Final = 3600.0
"""Seconds for a sibling where cancel_wait_timeout = 0."""
_NO_PEERS: Final[Mapping[int, Peer]] = {}


class Cancellable(Protocol):
    """A session, as far as a cancel is concerned."""

    backend: Backend | None

    @property
    def waits(self) -> bool:
        """Whether :meth:`cancel` would end something."""
        ...

    def cancel(self) -> None:
        """A request that waits for a backend is refused."""


class Siblings(Protocol):
    """The other workers of a fleet."""

    async def owner(self, request: CancelRequest) -> int | None:
        """The worker whose key that is; None: nobody's. Raises :class:`WorkerLost` where one of them did not say."""
        ...

    async def cancel(self, worker: int, request: CancelRequest, *, timeout: float) -> Outcome:
        """Has it act, and returns when that has had its effect. Raises a :class:`GatewayError`, also after ``timeout``
        seconds."""
        ...


class Dispatcher:
    """The cancels of one gateway process.

    ``timeout``: seconds for one to have its effect (cancel_wait_timeout; 0: no limit). ``limiter``: for wrong keys.
    ``peers``: the other gateways, by peer_id. Sessions that speak protocol 3.2 get long keys if all of these take them.
    """

    def __init__(
        self,
        *,
        peer_id: int,
        random: Callable[[int], bytes],
        timeout: float,
        tune: SocketTuner,
        limiter: LoginLimiter | None = None,
        peers: Mapping[int, Peer] = _NO_PEERS,
    ) -> None:
        self.registry: Registry[Cancellable] = Registry(peer_id, random, long_keys=_all_take_long(peers))
        self.limiter = limiter if limiter is not None else LoginLimiter()
        self.received = 0
        """Requests of clients; once none is under way, as many as ``outcomes`` has."""
        self.outcomes: Counter[Outcome] = Counter()
        self.siblings: Siblings | None = None
        """None: this is the only process."""
        self._carrier = Carrier(timeout=timeout, tune=tune)
        self._forwarder = Forwarder(timeout=timeout, tune=tune)
        self._peers = peers
        self._whereabouts = _whereabouts(peers)
        self._guesses = Guesses(self.limiter, lambda: asyncio.get_running_loop().time())
        self._ended = EndedKeys()
        self._seeking: set[asyncio.Task[Outcome]] = set()
        self._chaser = Chaser(self._carrier)

    def __len__(self) -> int:
        """Cancels under way."""
        return len(self._carrier) + len(self._forwarder) + len(self._seeking)

    @property
    def sent(self) -> int:
        """Requests that Postgres has been told, the gateway's own among them."""
        return self._carrier.sent

    @property
    def lanes(self) -> Mapping[int, Lane]:
        """What is on its way to peers, by peer_id."""
        return self._forwarder.lanes

    def configure(
        self,
        *,
        peer_id: int,
        timeout: float,
        failures: int = 10,
        window: float = 60.0,
        peers: Mapping[int, Peer] = _NO_PEERS,
    ) -> None:
        """After a reload: as at the start. ``failures`` wrong keys within ``window`` seconds (login_failure_*)."""
        self.registry.peer_id = peer_id
        self.registry.long_keys = _all_take_long(peers)
        self.limiter.limit, self.limiter.window = failures, window
        self._carrier.timeout = timeout
        self._forwarder.configure(timeout=timeout, peers=peers)
        self._peers = peers
        self._whereabouts = _whereabouts(peers)

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
        admitted = self._guesses.admit(address)
        if admitted is None:
            acting: Outcome | asyncio.Task[Outcome] = self._start(self._wait_and_look(request, address))
        else:
            acting = self._look(request, address) if admitted else Outcome.LIMITED
        if isinstance(acting, Outcome):
            self.outcomes[acting] += 1
            return
        acting.add_done_callback(self._count)
        # The client may go away; the cancel goes on.
        await asyncio.wait([acting])

    async def _wait_and_look(self, request: CancelRequest, address: str | None) -> Outcome:
        if not await self._guesses.turn(address):
            return Outcome.LIMITED
        return await _outcome(self._look(request, address))

    def _look(self, request: CancelRequest, address: str | None) -> Outcome | asyncio.Task[Outcome]:
        acting = self._act(request) or self._forward(request)
        if acting is not None:
            self._guesses.settle(address, wrong=False)
            return acting
        if self.siblings is None and not self._peers:
            self._is_wrong(request, address)
            return Outcome.UNKNOWN
        return self._start(self._seek(request, address))

    def _act(self, request: CancelRequest) -> Outcome | asyncio.Task[Outcome] | None:
        """What this process does about it; None: nothing, for it does not know the key."""
        secret = as_minted(request.secret)
        session = self.registry.find(request.pid, secret)
        if session is None:
            return Outcome.ENDED if self._ended.has(request.pid, secret) else None
        backend = session.backend
        if backend is not None and backend.replies.queue:
            return self._carrier.start(backend)
        outcome = Outcome.REFUSED if session.waits else Outcome.IDLE
        session.cancel()
        return outcome

    def _forward(self, request: CancelRequest) -> Outcome | asyncio.Task[Outcome] | None:
        """What is done about it where it has the key of a peer; None: nothing."""
        peer = self._peers.get(peer_of(request.pid))
        if peer is None or peer.id == self.registry.peer_id or not peer.takes(request.secret):
            return None
        if not hops(request.secret):
            log.info("failed to forward cancel request to peer %d because its TTL was exhausted", peer.id)
            return Outcome.UNKNOWN
        return self._forwarder.start(peer, request)

    async def _seek(self, request: CancelRequest, address: str | None) -> Outcome:
        """It has a sibling's key, or a wrong one."""
        owner, is_settled = None, False
        try:
            if self.siblings is not None:
                owner = await self.siblings.owner(request)
            if owner is None and not await self._whereabouts.has(address):
                is_settled = True
                self._is_wrong(request, address)
        except WorkerLost as error:
            log.warning("cancel request failed: %s", error)
            return Outcome.FAILED
        finally:
            if not is_settled:
                self._guesses.settle(address, wrong=False)
        if owner is None or self.siblings is None:
            return Outcome.UNKNOWN
        try:
            return await self.siblings.cancel(owner, request, timeout=self._carrier.timeout or _FOREVER)
        except GatewayError as error:
            log.warning("cancel request failed: %s", error)
            return Outcome.FAILED

    def _is_wrong(self, request: CancelRequest, address: str | None) -> None:
        self._guesses.settle(address, wrong=True)
        log.info("%s: cancel request with an unknown key (pid %d)", address or "unix", request.pid)
        if self.limiter.allow(address, asyncio.get_running_loop().time()):
            log.warning("%s: too many of them, the next are not looked at (login_failure_limit)", address)

    def _start(self, seeking: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(seeking, name="cancel")
        self._seeking.add(task)
        task.add_done_callback(self._sought)
        return task

    def _sought(self, task: asyncio.Task[Outcome]) -> None:
        self._seeking.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # A fault of ours: it ends this request, and is logged with all that is known.
            log.error("cancel request failed", exc_info=fault)

    def _count(self, task: asyncio.Task[Outcome]) -> None:
        self.outcomes[_result(task)] += 1

    # -- siblings' requests: whoever asks counts them ------------------------------------------------------------------

    def knows(self, request: CancelRequest) -> bool:
        """Whether a session of this process has that key, or had it lately."""
        secret = as_minted(request.secret)
        return self.registry.find(request.pid, secret) is not None or self._ended.has(request.pid, secret)

    async def act(self, request: CancelRequest) -> Outcome:
        """For a worker that a client has shown a key which is known here."""
        acting = self._act(request)
        return Outcome.ENDED if acting is None else await _outcome(acting)

    # -- the gateway's own ---------------------------------------------------------------------------------------------

    def cancel(self, backend: Backend) -> None:
        """Sees to it in the background that ``backend`` does not go on with what was sent to it so far."""
        self._chaser.start(backend)

    async def close(self, patience: float = 0.0) -> None:
        """Ends what is under way, and has not come to its own end after ``patience`` seconds."""
        under_way: set[asyncio.Task[Any]] = {
            *self._carrier.tasks,
            *self._forwarder.tasks,
            *self._seeking,
            *self._chaser.tasks,
        }
        if under_way:
            await asyncio.wait(under_way, timeout=patience)
        # Those first that start others, or wait for them.
        await _end(self._chaser.tasks)
        await _end(self._seeking)
        await _end(self._carrier.tasks)
        await _end(self._forwarder.tasks)


async def _outcome(acting: Outcome | asyncio.Task[Outcome]) -> Outcome:
    if isinstance(acting, Outcome):
        return acting
    await asyncio.wait([acting])
    return _result(acting)


def _result(task: asyncio.Task[Outcome]) -> Outcome:
    return Outcome.FAILED if task.cancelled() or task.exception() is not None else task.result()


def _all_take_long(peers: Mapping[int, Peer]) -> bool:
    # One that does not would drop what a client of ours asks it to pass on.
    return all(peer.long_keys for peer in peers.values())


def _whereabouts(peers: Mapping[int, Peer]) -> Whereabouts:
    return Whereabouts(peer.target.host for peer in peers.values())


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
