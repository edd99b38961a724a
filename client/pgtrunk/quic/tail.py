"""The redundant tail of a connection: remembers small frames when they leave, and puts them back when a copy is due.

A copy is stream data once more in the queue of its stream. It leaves in a new packet, which is paced, counted in the
congestion window and acknowledged like any other, so both ends stay within RFC 9000 and RFC 9002. When and whether is
decided in redundancy.py. As long as no loss is seen, nothing here runs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from aioquic.quic.packet import pull_ack_frame
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.tls import Epoch

from .acks import Acknowledging
from .redundancy import (
    DELTA,
    FLOOR_DATAGRAMS,
    SHARE,
    SMALL,
    PathMemory,
    RedundancyFigures,
    Turn,
    is_slow,
    pays,
    turn_of,
)
from .stream import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioquic._buffer import Buffer
    from aioquic.quic.connection import QuicReceiveContext
    from aioquic.quic.packet_builder import QuicSentPacket

    from .stream import Stream

__all__ = ["Repeating"]

FRAME_COST = 12
"""Octets of a STREAM frame before its data, about."""

PACKET_COST = 100
"""Octets of a datagram that are not left for copies: header, tag, an ACK frame."""

MOST_SUSPECTS = 32
ACK_FRAMES = (0x02, 0x03)


class Original(NamedTuple):
    """A frame that left, and what of it may be sent once more."""

    at: float
    number: int
    """Its packet's."""
    stream: Stream
    start: int
    stop: int
    fin: bool


class Repeating(Acknowledging):
    """The part of a connection that sends small data twice."""

    _handlers: dict[int, Any]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repeats = False
        """Whether losses were seen lately. All of this is off otherwise."""
        self.path = PathMemory()
        self._repeated = RedundancyFigures()
        self._originals: deque[Original] = deque()
        self._copy_at: float | None = None
        self._suspects: list[int] = []
        self._rtt_told = 0.0
        self.use_path(self.path, 0.0)

    def use_path(self, path: PathMemory, now: float) -> None:
        """Share what is known of losses with all connections to the same address."""
        self.path.leave(self)
        self.path = path
        self._originals.clear()
        self._copy_at = None
        path.join(self, now, listens=self.limits.redundancy == "auto")

    def leave_path(self) -> None:
        """The connection is over."""
        self.path.leave(self)
        self.repeats = False

    @property
    def redundancy_figures(self) -> RedundancyFigures:
        """What came of it so far."""
        figures = RedundancyFigures()
        figures.add(self._repeated)
        figures.spurious += sum(stream.sender.acked_again for stream in self._streams.values())
        return figures

    def _on_forget(self, stream: Stream) -> None:
        self._repeated.spurious += stream.sender.acked_again

    # -- what leaves

    def _note_sent(self, first: int, now: float) -> None:
        """Remember the small frames of the packets from number ``first`` on, which have just left."""
        loss = self._loss
        if not self._handshake_confirmed or not pays(loss._rtt_min):
            return
        if loss._rtt_latest != self._rtt_told:
            self._rtt_told = loss._rtt_latest
            self.path.sample(now, loss._rtt_latest, loss._rtt_min)
        is_congested = self.path.is_congested(now)
        sent, delivered = self._app_space.sent_packets, self._on_data_delivered
        for number in range(first, self._packet_number):
            packet = sent.get(number)
            if packet is None or not packet.is_ack_eliciting:
                continue
            self.path.sent()
            for handler, frame in packet.delivery_handlers:
                if handler == delivered:
                    self._note_frame(Original(now, number, *frame), is_congested=is_congested)
        self._set_copy_time()

    def _note_frame(self, original: Original, *, is_congested: bool) -> None:
        sender = original.stream.sender
        start, stop = max(original.start, sender.seen), original.stop
        fin = original.fin and not sender.fin_seen
        if stop <= start and not fin:
            return  # a copy itself, or sent again after a loss
        sender.seen = max(stop, sender.seen)
        sender.fin_seen |= fin
        if stop - start > SMALL:
            return
        self._repeated.eligible += 1
        if is_congested or not self.path.admits(original.at):
            self._repeated.suppressed_guard += 1
        else:
            self._originals.append(original._replace(start=start, fin=fin))

    # -- what leaves again

    def _repeat(self, now: float) -> None:
        """Put back what is due, before a datagram is written. ``_copy_at`` is when to come again."""
        if not self._originals:
            if not self.path.is_hot(now):
                self.repeats = False
            return
        ride = self._room_to_ride(now)
        next_number = self._packet_number
        while self._originals:
            first = self._originals[0]
            size = first.stop - first.start + FRAME_COST
            is_neighbour = next_number <= first.number + 1
            if turn_of(now - first.at, rides=size <= ride, is_neighbour=is_neighbour) is Turn.WAIT:
                break
            self._originals.popleft()
            if self._put_back(first, size, now):
                ride -= size
        self._set_copy_time()

    def _put_back(self, original: Original, size: int, now: float) -> bool:
        stream, loss = original.stream, self._loss
        if not stream.sender.is_open(original.start, original.stop, original.fin):
            return False
        if self.path.is_congested(now):
            self._repeated.suppressed_guard += 1
            return False
        waiting = sum(stop - start + FRAME_COST for each in self._ready for start, stop in each.sender._lost)
        if loss.bytes_in_flight + waiting + size > loss.congestion_window * SHARE:
            self._repeated.suppressed_window += 1
            return False
        stream.sender.requeue(original.start, original.stop, original.fin)
        self._repeated.copies += 1
        self.activate(stream)
        return True

    def _room_to_ride(self, now: float) -> int:
        """Octets for copies in the datagram that leaves now in any case; 0 where none does."""
        ack_at = self._app_space.ack_at
        if not self._ready and (ack_at is None or ack_at > now):
            return 0
        room = self._max_datagram_size - PACKET_COST
        for stream in self._ready:
            room -= FRAME_COST + stream.sender.waiting
            if room <= 0:
                return 0
        return room

    def _set_copy_time(self) -> None:
        self._copy_at = self._originals[0].at + DELTA if self._originals else None
        if self._copy_at is not None and (self._pacing_at is None or self._copy_at < self._pacing_at):
            # aioquic's name for when to look again whether something may leave.
            self._pacing_at = self._copy_at

    # -- what becomes of it

    def _on_data_delivered(self, delivery: QuicDeliveryState, stream: Stream, start: int, stop: int, fin: bool) -> None:
        sender = stream.sender
        if delivery is QuicDeliveryState.ACKED:
            if sender.on_acked(start, stop, fin):
                self._settle(stream)
            if stream.low_mark >= len(sender._buffer):
                stream.low_mark = NEVER
                self.writable.append(stream)
        else:
            sender.on_lost(start, stop, fin)
            if not sender.buffer_is_empty:
                self.activate(stream)

    # -- what congestion control tells

    def losses_seen(self, now: float, packets: int) -> None:
        """Packets are taken for lost."""
        self._repeated.losses += packets
        if self.limits.redundancy == "auto":
            self.path.lost(now, packets, queued=self._is_queued)

    @property
    def _is_queued(self) -> bool:
        return is_slow(self._loss._rtt_latest, self._loss._rtt_min)

    def least_window(self, now: float) -> int:
        """Datagrams under which the window need not go now."""
        if self.limits.redundancy == "off" or not pays(self._loss._rtt_min) or self._is_queued:
            return 0
        return 0 if self.path.is_congested(now) else FLOOR_DATAGRAMS

    def packets_gone(self, packets: Sequence[QuicSentPacket], *, expired: bool) -> None:
        """Packets are taken for lost, or have ``expired``: what probing.py looks at."""

    def packets_expired(self, packets: Iterable[QuicSentPacket]) -> None:
        """A probe timeout has given these up. They may be late and no more, as on a busy machine: the next
        acknowledgement says so."""
        self._suspects += [packet.packet_number for packet in packets if packet.epoch is Epoch.ONE_RTT]
        del self._suspects[:-MOST_SUSPECTS]
        if self._suspects:
            self._handlers.update(dict.fromkeys(ACK_FRAMES, self._judge_suspects))

    def _judge_suspects(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        """Take in an ACK frame: a suspect that it spans and does not name is lost."""
        start = buf.tell()
        self._handle_ack_frame(context, frame_type, buf)
        end = buf.tell()
        buf.seek(start)
        acked, _ = pull_ack_frame(buf)
        buf.seek(end)
        largest = acked.bounds().stop - 1
        lost = [number for number in self._suspects if number < largest and number not in acked]
        self._suspects = [number for number in self._suspects if number > largest]
        if lost:
            self.losses_seen(context.time, len(lost))
        if not self._suspects:
            self._handlers.update(dict.fromkeys(ACK_FRAMES, self._handle_ack_frame))
