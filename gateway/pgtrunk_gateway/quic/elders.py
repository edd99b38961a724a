"""Connections of earlier generations: those of workers that were here before, at the same sockets, and are leaving.

When one fleet of workers takes over from another, the new ones read all datagrams, and the old ones go on with the
connections that they have. What a new worker does not know it hands to them, by what is in the connection id: its
generation, and its bucket among as many workers as there were then. While a connection begins its client uses an id
that it has made up; those that were in use at the moment of the change are remembered one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk.quic.config import CID_LENGTH
from pgtrunk_gateway.quic.connection_id import GENERATIONS, bucket_of, generation_of
from pgtrunk_gateway.quic.demux import is_late
from pgtrunk_gateway.quic.forwarding import Forwarded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgtrunk_gateway.quic.udp import Path

__all__ = ["MOST_ELDERS", "Elder", "Elders"]

MOST_ELDERS = GENERATIONS - 1
"""Generations that may be leaving at a time: an id tells no more of them apart."""


@dataclass(frozen=True, slots=True)
class Elder:
    """A fleet of ``count`` workers that is leaving."""

    generation: int
    count: int


class Elders:
    """Those there are. ``send`` brings a frame (forwarding.py) to a worker of a generation, and says whether there is
    any; it never waits and never raises."""

    def __init__(
        self,
        elders: Sequence[Elder],
        send: Callable[[int, int, bytes], bool],
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self.close = close
        """Nothing is sent any more."""
        self.passed_on = 0
        """Datagrams."""
        self._by_bits = {elder.generation % GENERATIONS: elder for elder in elders}
        self._send = send
        self._beginning: Mapping[bytes, tuple[int, int]] = {}

    def begins(self, ids: Mapping[bytes, tuple[int, int]]) -> None:
        """These ids, whoever made them up, are of connections that have just begun; with generation and worker."""
        self._beginning = ids

    def owner(self, connection_id: bytes, data: bytes) -> tuple[int, int] | None:
        """Generation and worker that a datagram belongs to, which is not known here; None: to none of them."""
        if is_late(data):
            if len(connection_id) != CID_LENGTH:
                return None
            elder = self._by_bits.get(generation_of(connection_id))
            return None if elder is None else (elder.generation, bucket_of(connection_id) % elder.count)
        return self._beginning.get(connection_id)

    def take(self, connection_id: bytes, data: bytes, path: Path) -> bool:
        """Hands on a datagram that is not known here -> whether it is theirs, and they are still there."""
        owner = self.owner(connection_id, data)
        if owner is None:
            return False
        taken = self._send(*owner, Forwarded.of(data, path, path.endpoint.number).encode())
        self.passed_on += taken
        return taken
