"""Forwards cancel requests to the peers whose keys they show, each by a connection of its own, as PgBouncer does.

A request goes on with the key that the client has shown, and one hop less. The peer says nothing; it closes the
connection when the request has had its effect there, which is what the client waits for, too. No peer is told of more
than ``pool_size`` requests at a time; the next wait for one of these. What is forwarded is not judged: whether the key
was right, only the peer knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.keys import forwarded
from pgtrunk_gateway.cancel.lane import Lane
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.errors import BackendUnavailable

if TYPE_CHECKING:
    from pgtrunk_gateway.cancel.peer import Peer
    from pgtrunk_gateway.inbox import Inbox
    from pgtrunk_gateway.pool.connect import SocketTuner

__all__ = ["Forwarder"]

log = logging.getLogger(__name__)

_FOREVER: Final = 3600.0
"""Seconds; cancel_wait_timeout = 0 switches it off, but no wait is without end."""


class Forwarder:
    """Those of one gateway. ``timeout``: seconds for one to have its effect (cancel_wait_timeout; 0: no limit)."""

    def __init__(self, *, timeout: float, tune: SocketTuner) -> None:
        self.timeout = timeout
        self.lanes: dict[int, Lane] = {}
        """By peer_id, from the first request to a peer on, as PgBouncer's SHOW PEER_POOLS has them."""
        self.tasks: set[asyncio.Task[Outcome]] = set()
        """Those under way."""
        self._tune = tune

    def __len__(self) -> int:
        return len(self.tasks)

    def configure(self, *, timeout: float, peers: Mapping[int, Peer]) -> None:
        """After a reload. What is on its way to a peer that is none any more goes on."""
        self.timeout = timeout
        for peer_id, lane in list(self.lanes.items()):
            if peer_id not in peers:
                del self.lanes[peer_id]
                lane.size = 0
            else:
                lane.size = peers[peer_id].size
            lane.admit()

    def start(self, peer: Peer, request: CancelRequest) -> asyncio.Task[Outcome]:
        """Tells ``peer`` of a client's request -> what becomes of it; it goes on without the client. There must be a
        hop left."""
        lane = self.lanes.get(peer.id)
        if lane is None:
            lane = self.lanes[peer.id] = Lane(peer.size)
        log.debug("forwarding cancellation request to peer %d", peer.id)
        run = self._run(peer, lane, CancelRequest(request.pid, forwarded(request.secret)))
        task = asyncio.get_running_loop().create_task(run, name=f"cancel by peer {peer.id}")
        self.tasks.add(task)
        task.add_done_callback(partial(self._ended, peer))
        return task

    async def _run(self, peer: Peer, lane: Lane, request: CancelRequest) -> Outcome:
        timeout = self.timeout or _FOREVER
        told = False
        try:
            async with asyncio.timeout(timeout):
                await lane.enter()
                try:
                    transport, inbox = await peer.connect(self._tune)
                    try:
                        transport.write(request.encode())
                        told = True
                        lane.tell()
                        await _hung_up(inbox)
                    finally:
                        transport.abort()
                finally:
                    lane.leave(told=told)
        except BackendUnavailable as error:
            log.warning("peer %d: cancel request failed: %s", peer.id, error)
        except TimeoutError:
            words = "not confirmed" if told else "failed"
            log.warning("peer %d: cancel request %s: cancel_wait_timeout = %g s", peer.id, words, timeout)
            return Outcome.UNCONFIRMED if told else Outcome.FAILED
        else:
            return Outcome.FORWARDED
        return Outcome.FAILED

    def _ended(self, peer: Peer, task: asyncio.Task[Outcome]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # A fault of ours: it ends this request, and is logged with all that is known.
            log.error("peer %d: cancel request failed", peer.id, exc_info=fault)


async def _hung_up(inbox: Inbox) -> None:
    """Whatever the peer may say, it is the end of the connection that counts."""
    with contextlib.suppress(OSError):
        while True:
            await inbox.read()
