"""Stands in for a worker that has died, at its sockets, until its successor is there.

The sockets stay open, and datagrams would wait in them, for a second or for half a minute. Yet all that a successor
could say to the clients that the worker had can be said at once: that their connections are gone. First packets go to a
worker that lives and stands in for it, and so do their copies; and where the kernel spreads datagrams by a hash, those
of the others' connections come here too, and go to them.

It must have let go before the successor reads its first datagram: it would reset the connections that begin there.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pgtrunk.quic.config import CID_LENGTH
from pgtrunk_gateway.quic.demux import LONG_HEADER, is_late, read_long
from pgtrunk_gateway.quic.forwarding import Forwarded
from pgtrunk_gateway.quic.resets import Resets, ResetTokens
from pgtrunk_gateway.quic.stateless import VERSIONS
from pgtrunk_gateway.quic.udp import UdpCounters, open_endpoint

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pgtrunk_gateway.quic.elders import Elders
    from pgtrunk_gateway.quic.listener import Forward
    from pgtrunk_gateway.quic.steering import Place
    from pgtrunk_gateway.quic.udp import Endpoint, Path

__all__ = ["Caretaker"]


class Caretaker:
    """At the sockets of one worker."""

    def __init__(
        self,
        place: Place,
        keys: Sequence[bytes],
        *,
        forward: Forward,
        living: Callable[[], Sequence[int]],
        elders: Elders | None = None,
    ) -> None:
        """Of the worker at ``place``, in a fleet with these keys. ``living`` says which workers are there now."""
        self._elders = elders
        self.udp = UdpCounters()
        self.resets = 0
        """Sent so far."""
        self._place = place
        self._forward = forward
        self._living = living
        self._resets = Resets(ResetTokens(keys), clock=time.time, entropy=os.urandom)
        self._endpoints: list[Endpoint] = []

    async def attach(self, sock: socket.socket) -> None:
        """Receives on one of the worker's sockets, in their order; what is taken over is a descriptor, which may be one
        of several of the same socket."""
        address = sock.getsockname()
        same = [endpoint.number for endpoint in self._endpoints if endpoint.address == address]
        number = same[0] if same else len(self._endpoints)
        self._endpoints.append(await open_endpoint(sock, self._received, self.udp, number))

    def take(self, frame: bytes) -> None:
        """A datagram that another worker has received, for the one that is gone."""
        forwarded = Forwarded.decode(frame)
        if forwarded is not None and forwarded.socket < len(self._endpoints):
            path = self._endpoints[forwarded.socket].path(forwarded.peer, forwarded.local)
            self._received(forwarded.data, path)

    def close(self) -> None:
        """Reads nothing more, from now on."""
        for endpoint in self._endpoints:
            endpoint.close()

    def _received(self, data: bytes, path: Path) -> None:
        if not data:
            return
        connection_id = data[1 : 1 + CID_LENGTH]
        is_gone = True
        if data[0] & LONG_HEADER:
            header = read_long(data)
            if header is None:
                return
            connection_id = header.destination_id
            is_gone = header.version in VERSIONS and is_late(data)
        if self._is_elders(connection_id, data, path):
            return
        owner = self._place.owner(connection_id)
        if owner != self._place.index:
            self._pass_on(owner, data, path)
        elif is_gone:
            answer = self._resets.answer(connection_id, data)
            if answer is not None:
                self.resets += 1
                path.endpoint.send(answer, path)
        elif connection_id and (living := self._living()):
            # Always the same one for the same id, while all live who do: what follows a first packet must find it.
            self._pass_on(living[connection_id[-1] % len(living)], data, path)

    def _is_elders(self, connection_id: bytes, data: bytes, path: Path) -> bool:
        return self._elders is not None and self._elders.take(connection_id, data, path)

    def _pass_on(self, worker: int, data: bytes, path: Path) -> None:
        self._forward(worker, Forwarded.of(data, path, path.endpoint.number).encode())
