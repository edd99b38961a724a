"""Which connection a datagram belongs to, and what becomes of those that belong to none.

Short headers are looked up by the eight octets that we issued, without parsing; long ones by their destination id. An
Initial packet of no known connection may begin one, see ``Reception``. What belongs to another worker is handed on to
it, once; to what belongs to a connection that is gone the answer is a stateless reset. Anything else is dropped. No
sockets and no clocks: datagrams and paths come in, answers go out through ``reply``, connections are made by ``open``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pgtrunk.quic.config import CID_LENGTH
from pgtrunk_gateway.quic.reception import Opening, Reception, read_initial
from pgtrunk_gateway.quic.stateless import FIRST_DATAGRAM_SIZE, VERSIONS, version_negotiation_packet

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.quic.admission import Admission
    from pgtrunk_gateway.quic.resets import Resets
    from pgtrunk_gateway.quic.retry import RetryTokens
    from pgtrunk_gateway.quic.udp import Path

__all__ = [
    "Demultiplexer",
    "DemuxCounters",
    "LongHeader",
    "Routed",
    "Surroundings",
    "is_late",
    "read_long",
]

LONG_HEADER = 0x80
_VERSION_NEGOTIATION = 0
_PACKET_TYPE, _HANDSHAKE = 0x30, 0x20
"""Where version 1 has a long header's type, and one of them (RFC 9000 section 17.2)."""


@dataclass(slots=True)
class DemuxCounters:
    """What became of datagrams that belonged to no connection, and of first packets."""

    opened: int = 0
    retries: int = 0
    refused: int = 0
    """First packets answered with a close: CONNECTION_REFUSED or INVALID_TOKEN."""
    negotiated: int = 0
    """Version negotiation packets sent."""
    over_limit: int = 0
    """First packets dropped because too many handshakes are half open or wait, in all or from one address."""
    unknown: int = 0
    """Packets to a connection id that is not, or no longer, in use here."""
    resets: int = 0
    """Of these, answered by a stateless reset."""
    passed_on: int = 0
    """Datagrams of other workers, handed to them."""
    malformed: int = 0
    faults: int = 0
    """Connections given up because of a mistake of ours."""


@dataclass(frozen=True, slots=True)
class LongHeader:
    """The part of a long header that is the same in all versions of QUIC (RFC 8999 section 5.1)."""

    version: int
    destination_id: bytes
    source_id: bytes


class Routed(Protocol):
    """A connection, as seen from here."""

    @property
    def receive(self) -> Callable[[bytes, Path], object]:
        """Takes in a datagram."""
        ...


def _nobody(connection_id: bytes, data: bytes, path: Path) -> bool:
    """There is no other worker."""
    return False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a demultiplexer asks of the world."""

    open: Callable[[Opening, Path], Routed]
    """Makes a connection."""
    has_room: Callable[[], bool]
    """Whether there is memory for one more."""
    reply: Callable[[bytes, Path], object]
    """Sends a datagram that belongs to no connection."""
    fault: Callable[[Routed, Exception], object]
    """Gives up a connection that raised."""
    new_id: Callable[[], bytes]
    clock: Callable[[], float]
    """Seconds since 1970: Retry tokens may come from another machine."""
    entropy: Callable[[int], bytes]
    pass_on: Callable[[bytes, bytes, Path], bool] = _nobody
    """Hands a datagram to the worker that its connection id, which is not known here, leads to. False: to this one."""
    resets: Resets | None = None
    """What answers packets to ids that nobody has; None leaves them without an answer."""
    later: Callable[[], object] | None = None
    """Has ``reception.next_turn`` called in the event loop's next turn; without it nobody waits for one."""


class Demultiplexer:
    """The table of connection ids of one listener."""

    def __init__(self, admission: Admission, tokens: RetryTokens, world: Surroundings) -> None:
        self.counters = DemuxCounters()
        self.reception = Reception(admission, tokens, world, self.counters, self._begin)
        """Who receives first packets."""
        self._world = world
        self._routes: dict[bytes, Routed] = {}
        self._ids: defaultdict[Routed, set[bytes]] = defaultdict(set)

    def __len__(self) -> int:
        """Connection ids in use."""
        return len(self._routes)

    def __contains__(self, connection_id: bytes) -> bool:
        return connection_id in self._routes

    # The table

    def ids_of(self, connection: Routed) -> set[bytes]:
        """Those of a connection, its client's own choice among them."""
        return set(self._ids.get(connection, ()))

    def add(self, connection_id: bytes, connection: Routed) -> None:
        """Has packets to an id go to a connection."""
        self._routes[connection_id] = connection
        self._ids[connection].add(connection_id)

    def remove(self, connection_id: bytes) -> None:
        """An id is retired."""
        connection = self._routes.pop(connection_id, None)
        if connection is not None:
            self._ids[connection].discard(connection_id)

    def forget(self, connection: Routed) -> None:
        """A connection is gone, and all its ids with it."""
        for connection_id in self._ids.pop(connection, ()):
            del self._routes[connection_id]

    # Datagrams

    def datagram_received(self, data: bytes, path: Path, *, was_passed_on: bool = False) -> None:
        """Takes in a datagram, from a socket or from another worker. Never raises, whatever is in it."""
        if not data:
            self.counters.malformed += 1
        elif data[0] & LONG_HEADER:
            self._long(data, path, was_passed_on)
        else:
            connection_id = data[1 : 1 + CID_LENGTH]
            connection = self._routes.get(connection_id)
            if connection is not None:
                self._deliver(connection, data, path)
            elif not self._passes_on(connection_id, data, path, was_passed_on):
                self._unknown(connection_id, data, path)

    def _deliver(self, connection: Routed, data: bytes, path: Path) -> None:
        try:
            connection.receive(data, path)
        except Exception as exc:
            # A mistake in one connection, ours or aioquic's, ends that connection. It must not take with it the
            # datagrams of others that were read together with this one.
            self.counters.faults += 1
            self._world.fault(connection, exc)

    def _passes_on(self, connection_id: bytes, data: bytes, path: Path, was_passed_on: bool) -> bool:
        # Once only: whatever two workers may think of whose an id is, a datagram must not go back and forth.
        if was_passed_on or not self._world.pass_on(connection_id, data, path):
            return False
        self.counters.passed_on += 1
        return True

    def _unknown(self, connection_id: bytes, data: bytes, path: Path) -> None:
        """A packet of an established connection to an id that nobody has: who sent it is told so, in a reset."""
        self.counters.unknown += 1
        resets = self._world.resets
        answer = resets.answer(connection_id, data) if resets is not None else None
        if answer is not None:
            self.counters.resets += 1
            self._world.reply(answer, path)

    def _long(self, data: bytes, path: Path, was_passed_on: bool) -> None:
        header = read_long(data)
        if header is None:
            self.counters.malformed += 1
        elif header.version not in VERSIONS:
            self._negotiate(header, data, path)
        elif (connection := self._routes.get(header.destination_id)) is not None:
            self._deliver(connection, data, path)
        elif not self._passes_on(header.destination_id, data, path, was_passed_on):
            self._first(header.destination_id, data, path)

    def _negotiate(self, header: LongHeader, data: bytes, path: Path) -> None:
        # Never in answer to such a packet itself, or two servers would go on for ever; never to less than a client's
        # first datagram, or a small forged packet would make a larger one.
        if header.version == _VERSION_NEGOTIATION or len(data) < FIRST_DATAGRAM_SIZE:
            self.counters.unknown += 1
            return
        self.counters.negotiated += 1
        answer = version_negotiation_packet(destination_id=header.destination_id, source_id=header.source_id)
        self._world.reply(answer, path)

    def _first(self, destination_id: bytes, data: bytes, path: Path) -> None:
        initial = read_initial(data)
        if initial is not None:
            self.reception.first(initial, data, path)
        elif self.reception.also(destination_id, data, path):
            # Early data, mostly.
            pass
        elif is_late(data):
            # Its sender knows our id, and may know its token: there is no use in waiting for the rest of a handshake.
            self._unknown(destination_id, data, path)
        else:
            self.counters.unknown += 1

    def _begin(self, opening: Opening, datagrams: list[tuple[bytes, Path]]) -> None:
        connection = self._world.open(opening, datagrams[0][1])
        # The client's own choice stays in the table until the connection is gone: copies of its first packets would
        # begin another one otherwise.
        self.add(opening.destination_id, connection)
        for data, path in datagrams:
            self._deliver(connection, data, path)


def read_long(data: bytes) -> LongHeader | None:
    """Reads a long header of any version; None where the datagram ends before the header does."""
    source_at = 6 + data[5] if len(data) > 5 else 0
    end = source_at + 1 + data[source_at] if 0 < source_at < len(data) else 0
    if not 0 < end <= len(data):
        return None
    return LongHeader(int.from_bytes(data[1:5], "big"), data[6:source_at], data[source_at + 1 : end])


def is_late(data: bytes) -> bool:
    """Says whether a packet of version 1 can only come once its connection has begun: it goes to an id of ours."""
    return not data[0] & LONG_HEADER or data[0] & _PACKET_TYPE == _HANDSHAKE
