"""What becomes of first packets: they begin a connection, wait for that, have to prove their address, or are refused.

    of a first packet                           answer
    its token is none of ours, or out of date   a close, INVALID_TOKEN
    nobody may come in any more, or no room     a close, CONNECTION_REFUSED
    `Admission` admits it, and it is its turn   a connection begins
    it admits it, and others are before it      it waits in the `Anteroom`; so does who waits for others to be done
    it wants to know its address                Retry
    it is one too many                          none

It is somebody's turn once in each turn of the event loop (``world.later``): a handshake is a long time for those who
are here. No sockets and no clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # its public home, though it only re-exports it
from aioquic.quic.packet import QuicErrorCode, QuicHeader, QuicPacketType, pull_quic_header

from pgtrunk.quic.config import CID_LENGTH
from pgtrunk_gateway.quic.admission import Admission, HalfOpen, RateLimit, Verdict, site_of
from pgtrunk_gateway.quic.anteroom import Anteroom, Entry
from pgtrunk_gateway.quic.retry import RetryTokens, packed_address
from pgtrunk_gateway.quic.sealing import NONCE_SIZE
from pgtrunk_gateway.quic.stateless import FIRST_DATAGRAM_SIZE, close_packet, retry_packet

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.quic.demux import DemuxCounters
    from pgtrunk_gateway.quic.udp import Path

__all__ = ["REFUSALS_PER_SECOND", "Opening", "Reception", "read_initial"]

MIN_FIRST_ID = 8
"""Octets that a client's first destination id must have (RFC 9000 section 7.2)."""

REFUSALS_PER_SECOND = 200.0
"""Closes in answer to Initial packets: each costs a derivation of keys, some ten times what Retry costs."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A connection that a client may begin."""

    destination_id: bytes
    """Where its first packets go, until it knows an id of ours."""
    original_id: bytes
    """Where its very first packet went: the same, unless it was sent to prove its address."""
    retry_id: bytes | None
    """The id that our Retry packet gave it; None where there was none."""
    half_open: HalfOpen
    """Its entry in the admission's count; whoever opens it ends it."""


class World(Protocol):
    """What a reception asks for; as in `Surroundings`."""

    @property
    def has_room(self) -> Callable[[], bool]: ...
    @property
    def reply(self) -> Callable[[bytes, Path], object]: ...
    @property
    def new_id(self) -> Callable[[], bytes]: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def entropy(self) -> Callable[[int], bytes]: ...
    @property
    def later(self) -> Callable[[], object] | None: ...


class Reception:
    """``begin`` makes a connection, and gives it the datagrams that came for it."""

    def __init__(
        self,
        admission: Admission,
        tokens: RetryTokens,
        world: World,
        counters: DemuxCounters,
        begin: Callable[[Opening, list[tuple[bytes, Path]]], object],
    ) -> None:
        self.is_accepting = True
        """Whether connections may begin."""
        self._admission = admission
        self._tokens = tokens
        self._world = world
        self._counters = counters
        self._begin = begin
        self._refusals = RateLimit(REFUSALS_PER_SECOND)
        self._anteroom = Anteroom()
        self._turn_is_used = False
        """Whether the next one has to wait for another turn of the loop, which will come."""

    @property
    def waiting(self) -> int:
        """Handshakes that have not begun."""
        return len(self._anteroom)

    def first(self, initial: QuicHeader, data: bytes, path: Path) -> None:
        """An Initial packet of no known connection."""
        if self.is_accepting and self._anteroom.more(initial.destination_cid, data, path):
            # Nobody says when there is memory again: who sends again has another look taken.
            self._use_turn()
            return
        if not self.is_accepting or not self._world.has_room():
            self._refuse(initial, path, QuicErrorCode.CONNECTION_REFUSED)
            return
        original_id = None
        if initial.token:
            original_id = self._tokens.take(
                initial.token, path, destination_id=initial.destination_cid, now=self._world.clock()
            )
            if original_id is None:
                self._refuse(initial, path, QuicErrorCode.INVALID_TOKEN)
                return
        self._judge(initial, data, path, original_id)

    def also(self, destination_id: bytes, data: bytes, path: Path) -> bool:
        """A packet that is no first one, and of no known connection -> whether it is of one that waits."""
        return self._anteroom.more(destination_id, data, path)

    def next_turn(self) -> None:
        """The loop has turned: the next one may begin."""
        self._turn_is_used = False
        if not self.is_accepting:
            return
        self._counters.over_limit += self._anteroom.forget_late(self._world.clock())
        if self._admission.is_full:
            return
        for entry in self._anteroom.firsts():
            if self._admission.may_begin(entry.site, proved=entry.proved) and self._world.has_room():
                self._anteroom.take(entry)
                self._open(entry)
                return

    def forget_all(self) -> None:
        """Nobody hears any more of those that wait."""
        self._anteroom = Anteroom()

    def is_over(self) -> None:
        """A handshake is: somebody may begin in its place."""
        if len(self._anteroom):
            self._use_turn()

    def _judge(self, initial: QuicHeader, data: bytes, path: Path, original_id: bytes | None) -> None:
        entry = Entry(
            destination_id=initial.destination_cid,
            site=site_of(packed_address(path)),
            proved=original_id is not None,
            original_id=original_id,
            since=self._world.clock(),
            datagrams=[(data, path)],
        )
        verdict = self._admission.judge(entry.site, proved=entry.proved, waiting=len(self._anteroom))
        if verdict is Verdict.ADMIT and not self._turn_is_used and not len(self._anteroom):
            self._open(entry)
        elif verdict is Verdict.RETRY:
            self._ask_to_retry(initial, path)
        elif verdict is Verdict.DROP or self._world.later is None or not self._anteroom.enter(entry):
            self._counters.over_limit += 1
        else:
            self._use_turn()

    def _open(self, entry: Entry) -> None:
        opening = Opening(
            destination_id=entry.destination_id,
            original_id=entry.destination_id if entry.original_id is None else entry.original_id,
            retry_id=None if entry.original_id is None else entry.destination_id,
            half_open=self._admission.begin(entry.site, proved=entry.proved),
        )
        self._use_turn()
        self._counters.opened += 1
        self._begin(opening, entry.datagrams)

    def _use_turn(self) -> None:
        if not self._turn_is_used and self._world.later is not None:
            self._turn_is_used = True
            self._world.later()

    def _refuse(self, initial: QuicHeader, path: Path, error: QuicErrorCode) -> None:
        if not self._refusals.allows(self._world.clock()):
            self._counters.over_limit += 1
            return
        self._counters.refused += 1
        answer = close_packet(
            version=initial.version or 0,
            destination_id=initial.destination_cid,
            source_id=initial.source_cid,
            error=error,
        )
        self._world.reply(answer, path)

    def _ask_to_retry(self, initial: QuicHeader, path: Path) -> None:
        world = self._world
        retry_id = world.new_id()
        token = self._tokens.give(
            path,
            original_id=initial.destination_cid,
            retry_id=retry_id,
            now=world.clock(),
            nonce=world.entropy(NONCE_SIZE),
        )
        self._counters.retries += 1
        answer = retry_packet(
            version=initial.version or 0,
            destination_id=initial.destination_cid,
            source_id=initial.source_cid,
            retry_id=retry_id,
            token=token,
        )
        world.reply(answer, path)


def read_initial(data: bytes) -> QuicHeader | None:
    """Reads what may begin a connection; None for everything else (RFC 9000 sections 7.2 and 14.1)."""
    if len(data) < FIRST_DATAGRAM_SIZE:
        return None
    try:
        header = pull_quic_header(Buffer(data=data), host_cid_length=CID_LENGTH)
    except ValueError:
        return None
    is_first = header.packet_type is QuicPacketType.INITIAL and len(header.destination_cid) >= MIN_FIRST_ID
    return header if is_first else None
