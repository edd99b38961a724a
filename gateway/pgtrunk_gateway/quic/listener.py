"""A listener: sockets in front, connections behind, and what happens between a first packet and a handshake's end.

It is the shell around ``Demultiplexer`` and ``Admission``: the loop, the clock and the randomness that they are given
come from here. It knows connections by their driver, and sessions not at all.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pgtrunk.closing import close_each
from pgtrunk.errors import SessionLost
from pgtrunk.quic.ending import show
from pgtrunk.quic.logged import new_connection
from pgtrunk.quic.redundancy import Paths
from pgtrunk.quic.sockets import forbids_fragments
from pgtrunk.quic.transport import StreamTransport
from pgtrunk_gateway.quic.accepted import Accepted, Hushed
from pgtrunk_gateway.quic.admission import Admission, AdmissionLimits, HalfOpen, RateLimit
from pgtrunk_gateway.quic.connection_id import ConnectionIds
from pgtrunk_gateway.quic.demux import Demultiplexer, DemuxCounters, Routed, Surroundings
from pgtrunk_gateway.quic.forwarding import Forwarded
from pgtrunk_gateway.quic.renewing import TicketRenewals
from pgtrunk_gateway.quic.resets import Resets
from pgtrunk_gateway.quic.server_tls import HandshakePolicy, ServerContext
from pgtrunk_gateway.quic.steering import ALONE
from pgtrunk_gateway.quic.udp import Endpoint, Path, UdpCounters, open_endpoint

if TYPE_CHECKING:
    import socket

    from aioquic.quic.configuration import QuicConfiguration

    from pgtrunk.errors import TrunkError
    from pgtrunk.quic.config import ByteBudget, QuicLimits
    from pgtrunk.quic.control import Goaway
    from pgtrunk.quic.driver import ConnectionDriver
    from pgtrunk_gateway.quic.admission import RetryMode
    from pgtrunk_gateway.quic.early import HandshakeCounters
    from pgtrunk_gateway.quic.elders import Elders
    from pgtrunk_gateway.quic.identity import Identity
    from pgtrunk_gateway.quic.reception import Opening
    from pgtrunk_gateway.quic.retry import RetryTokens
    from pgtrunk_gateway.quic.steering import Place
    from pgtrunk_gateway.quic.tickets import Tickets

__all__ = ["Acceptor", "Door", "Forward", "Listener"]

Acceptor = Callable[[StreamTransport], asyncio.BaseProtocol]
"""Called once for each stream that a client opens, also for those that a higher id opens along with it. The transport
has no protocol yet: that of the result, whose ``connection_made`` is called right after."""

Forward = Callable[[int, bytes], object]
"""Brings a frame (forwarding.py) to the worker of this number, or loses it; never waits and never raises."""

CLOSE_TIME = 1.0
"""Seconds that ``close`` leaves connections to say goodbye and to answer latecomers, before the sockets go."""

FAILURES_LOGGED_PER_SECOND = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What a listener lets connections in by, loaded and ready."""

    quic: QuicConfiguration
    limits: QuicLimits
    budget: ByteBudget
    admission: AdmissionLimits
    policy: HandshakePolicy
    tokens: RetryTokens
    reset_token: Callable[[bytes], bytes]
    """The token by which the end of a connection is told that nothing is known of any more, from one of its ids."""
    accept: Acceptor
    warnings: tuple[str, ...] = ()


class Listener:
    """Open sockets and the connections that came in through them.

    In a fleet each worker has one, with a ``place``, and ``forward`` for what belongs to others; what they forward is
    given to ``take``.
    """

    def __init__(
        self, door: Door, place: Place = ALONE, forward: Forward | None = None, elders: Elders | None = None
    ) -> None:
        self.udp = UdpCounters()
        self.paths = Paths()
        """What its connections know of losses on the way, by the client's address."""
        self.door = door
        self.place = place
        self.loop = asyncio.get_running_loop()
        self.farewell: Callable[[], Goaway] | None = None
        """What clients are told as soon as they can hear it, once all have been asked to move."""
        self._forward = forward
        self._elders = elders
        self._endpoints: list[Endpoint] = []
        self._forbids_fragments = True
        self._admission = Admission(door.admission)
        self._ids = ConnectionIds(os.urandom, buckets=place.buckets, generation=place.generation)
        world = Surroundings(
            open=self._open,
            has_room=lambda: door.budget.admits,
            reply=self._reply,
            fault=self._fault,
            new_id=self._new_id,
            clock=time.time,
            entropy=os.urandom,
            pass_on=self._pass_on,
            resets=Resets(door.reset_token, clock=time.time, entropy=os.urandom),
            later=lambda: self.loop.call_soon(self._demux.reception.next_turn),
        )
        self._demux = Demultiplexer(self._admission, door.tokens, world)
        self._accepted: set[Accepted] = set()
        self._failures = RateLimit(FAILURES_LOGGED_PER_SECOND)
        self._renewals = TicketRenewals(self.loop, lambda: self.drivers, lambda: self.door.policy)
        self._closing: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        where = ", ".join(f"{address[0]} port {address[1]}" for address in self.addresses)
        return (
            f"<Listener {where} [{self.connections} connections, {self.half_open} half open, {self.streams} streams]>"
        )

    # What it shows

    @property
    def addresses(self) -> list[tuple[Any, ...]]:
        """The socket addresses it is bound to."""
        return [endpoint.address for endpoint in self._endpoints]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What works, but should be looked at, a line each: buffers too small, certificates out of date."""
        return self.door.warnings

    @property
    def connections(self) -> int:
        """Connections whose handshake is complete."""
        return sum(accepted.driver.is_ready for accepted in self._accepted)

    @property
    def drivers(self) -> list[ConnectionDriver]:
        """The connections whose handshake is complete."""
        return [accepted.driver for accepted in self._accepted if accepted.driver.is_ready]

    @property
    def half_open(self) -> int:
        """Handshakes in progress."""
        return self._admission.half_open

    @property
    def streams(self) -> int:
        """Open streams, over all connections."""
        return sum(len(accepted.driver.streams) for accepted in self._accepted)

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet consumed, over all connections."""
        return sum(accepted.driver.held_bytes for accepted in self._accepted)

    @property
    def connection_ids(self) -> int:
        """Connection ids in the table."""
        return len(self._demux)

    @property
    def handshakes(self) -> HandshakeCounters:
        """What completed handshakes were."""
        return self.door.policy.counters

    @property
    def counters(self) -> DemuxCounters:
        """What became of first packets, and of those that belonged nowhere."""
        return self._demux.counters

    # What is done with it

    async def attach(self, sock: socket.socket) -> None:
        """Receives on one more bound socket, which it takes over. Of several at one address the first is for sending
        to paths that others tell of."""
        address = sock.getsockname()
        same = [endpoint.number for endpoint in self._endpoints if endpoint.address == address]
        number = same[0] if same else len(self._endpoints)
        self._forbids_fragments = self._forbids_fragments and forbids_fragments(sock)
        self._endpoints.append(await open_endpoint(sock, self._demux.datagram_received, self.udp, number))

    def take(self, frame: bytes) -> None:
        """Takes in a datagram that another worker has received. All sockets must be attached."""
        forwarded = Forwarded.decode(frame)
        if forwarded is None or forwarded.socket >= len(self._endpoints):
            self.counters.malformed += 1
            return
        path = self._endpoints[forwarded.socket].path(forwarded.peer, forwarded.local)
        self._demux.datagram_received(forwarded.data, path, was_passed_on=True)

    def retire(self) -> list[bytes]:
        """Others read the sockets from now on, and hand on what belongs to the connections that are here; they need the
        ids that this returns, which are of those that have just begun."""
        for endpoint in self._endpoints:
            endpoint.deafen()
        self._demux.reception.forget_all()
        now, young = self.loop.time(), self.door.limits.handshake_timeout
        return [
            connection_id
            for accepted in self._accepted
            if not accepted.driver.is_ready or now - accepted.driver.opened_at < young
            for connection_id in self._demux.ids_of(accepted)
        ]

    async def unretire(self) -> None:
        """Reads the sockets again: nobody else does."""
        for endpoint in self._endpoints:
            await endpoint.listen()

    def reload_certificates(self, identity: Identity) -> None:
        """Handshakes that begin from now on are with ``identity``; connections that are there go on."""
        door = self.door
        self.door = replace(
            door,
            quic=identity.presented_by(door.quic),
            policy=replace(door.policy, authority=identity.authority),
            warnings=identity.warnings,
        )

    def reload_limits(self, limits: QuicLimits, retry: RetryMode) -> None:
        """Connections that begin from now on are within ``limits``; those that are there keep theirs."""
        door = self.door
        # A copy: what has been given out already stays as it is.
        quic = copy.copy(door.quic)
        quic.idle_timeout = limits.idle_timeout
        self.door = replace(door, quic=quic, limits=limits, admission=replace(door.admission, retry=retry))
        self._admission.limits = self.door.admission

    def reload_tickets(self, tickets: Tickets, *, early: bool) -> None:
        """Handshakes that begin from now on are resumed by ``tickets``; ``early``: whether early data is taken."""
        self.door = replace(self.door, policy=replace(self.door.policy, tickets=tickets, early=early))

    def stop_accepting(self) -> None:
        """Refuses new connections from now on; those there are go on."""
        self._demux.reception.is_accepting = False

    def close(self) -> None:
        """Closes all connections, and the sockets as soon as they have ended or a second later."""
        self.stop_accepting()
        if self._closing is not None or self._closed.is_set():
            return
        self._closing = self.loop.call_later(CLOSE_TIME, self._finish)
        reason = "the gateway is shutting down"
        close_each(partial(accepted.driver.close, reason=reason) for accepted in list(self._accepted))
        if not self._accepted:
            self._finish()

    async def wait_closed(self) -> None:
        """Returns when everything is closed; ``close`` sees to it that this takes about a second at most."""
        await self._closed.wait()

    def _finish(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._renewals.close()
        if self._closing is not None:
            self._closing.cancel()
        close_each(partial(accepted.driver.abandon, None) for accepted in list(self._accepted))
        close_each(endpoint.close for endpoint in self._endpoints)

    # What the demultiplexer asks for

    def _new_id(self) -> bytes:
        while (connection_id := self._ids()) in self._demux:
            continue
        return connection_id

    def _reply(self, data: bytes, path: Path) -> None:
        path.endpoint.send(data, path)

    def _pass_on(self, connection_id: bytes, data: bytes, path: Path) -> bool:
        if self._elders is not None and self._elders.take(connection_id, data, path):
            return True
        worker = self.place.owner(connection_id)
        if worker == self.place.index or self._forward is None:
            return False
        self._forward(worker, Forwarded.of(data, path, path.endpoint.number).encode())
        return True

    def _open(self, opening: Opening, path: Path) -> Routed:
        door = self.door
        quic = new_connection(
            configuration=door.quic,
            limits=door.limits,
            budget=door.budget,
            new_cid=self._new_id,
            reset_token=door.reset_token,
            make_tls=lambda stock: ServerContext(stock, door.policy),
            original_destination_connection_id=opening.original_id,
            retry_source_connection_id=opening.retry_id,
        )
        quic._logger = Hushed(quic._logger.logger, quic._logger.extra)
        quic.proves_sizes = self._forbids_fragments
        accepted = Accepted(self, quic, opening.half_open, path)
        quic.on_moved = accepted.moved
        self._accepted.add(accepted)
        for connection_id in quic.host_cids:
            self._demux.add(connection_id, accepted)
        return accepted

    def _fault(self, connection: Routed, exc: Exception) -> None:
        assert isinstance(connection, Accepted)
        self.loop.call_exception_handler(
            {"message": f"gave up {connection.driver!r}, which failed on a datagram", "exception": exc}
        )
        connection.driver.abandon(SessionLost("the gateway failed on this connection, and gave it up"))

    # What connections tell

    def settled(self, half_open: HalfOpen) -> None:
        """A handshake is over, one way or the other."""
        self._admission.end(half_open)
        self._demux.reception.is_over()

    def failed(self, driver: ConnectionDriver, error: TrunkError) -> None:
        """A handshake came to nothing."""
        if self._failures.allows(self.loop.time()):
            logger.info("no connection with %s: %s", show(driver.peername), error)

    def gone(self, accepted: Accepted) -> None:
        """A connection has ended for good."""
        self._accepted.discard(accepted)
        self._demux.forget(accepted)
        if self._closing is not None and not self._accepted:
            self._finish()

    def issued(self, connection_id: bytes, accepted: Accepted) -> None:
        """A connection may be called by one more id."""
        self._demux.add(connection_id, accepted)

    def retired(self, connection_id: bytes) -> None:
        """The client has given an id back."""
        self._demux.remove(connection_id)
