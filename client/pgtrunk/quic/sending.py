"""What goes into a packet once the connection has keys for application data.

This replaces aioquic's ``_write_application``: packets are filled from the queues of streams.py, an ACK rides on
whatever leaves anyway, and no packet is started just to find that there is nothing left to put in. RFC 9000 sections
12.4 and 13.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Any

from aioquic.buffer import size_uint_var
from aioquic.quic.connection import (
    ACK_FRAME_CAPACITY,
    PATH_CHALLENGE_FRAME_CAPACITY,
)
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.tls import Epoch

from .keys import PACKETS_PER_KEY
from .pmtu import BASE
from .recovery import BytePacer, FlooredReno
from .short import ShortWay
from .stream_control import StreamControl
from .tail import Repeating

if TYPE_CHECKING:
    from aioquic.quic.connection import NetworkAddress, QuicNetworkPath
    from aioquic.quic.crypto import CryptoPair
    from aioquic.quic.packet_builder import QuicPacketBuilder
    from aioquic.quic.recovery import QuicPacketSpace

    from .stream import Stream

__all__ = ["Sending"]

PING_EVERY = 32
"""Packets with nothing but an ACK, after which one carries a PING too: only what elicits an ACK tells us (and lets
aioquic forget) which of our ACKs arrived. RFC 9000 section 13.2.4."""

LEAST_FRAGMENT = 64
"""Bytes of a message that are worth a frame of their own at the end of a packet."""

NEW_PATH_TIMEOUT = 1.0
"""Seconds; the probe timeout of a path of which nothing is known (RFC 9002 section 6.2.2). Not by our own initial_rtt,
which is for gateways that are near: who goes from a wire to a mobile network has a path ten times as long."""

TAG_SIZE = 16
"""Octets that each cipher suite of TLS 1.3 adds to a packet."""


class Fill(Enum):
    """What became of a stream's turn."""

    DRAINED = auto()
    """Nothing is left to send."""
    BLOCKED = auto()
    """The peer gives no more credit."""
    SERVED = auto()
    """The packet is full, and has some of it."""
    FULL = auto()
    """The packet was full before."""


class Sending(Repeating, ShortWay, StreamControl):
    """The part of a connection that writes application packets."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._acks_alone = 0
        self._renew_keys_at = PACKETS_PER_KEY
        self._challenge_was_small = False
        """Whether the last challenge to the path in use was in a datagram of less than ``BASE`` octets."""
        self._challenged_at = 0.0
        self._begin_congestion()

    def _begin_congestion(self, first: int | None = None) -> None:
        """Nothing is known of the path, by which packets have left from number ``first`` on; None: none has."""
        size, loss = self._max_datagram_size, self._loss
        before = loss._cc
        loss._cc = FlooredReno(max_datagram_size=size, floor=self.limits.congestion_floor, watcher=self)
        loss._cc.lost = before.lost if isinstance(before, FlooredReno) else 0
        self.pacer = loss._pacer = BytePacer(max_datagram_size=size, congestion=loss._cc)
        self._pacing_at = None
        if first is None:
            return
        sent = self._app_space.sent_packets.values()
        loss._cc.bytes_in_flight = sum(p.sent_bytes for p in sent if p.in_flight and p.packet_number >= first)
        loss._rtt_initialized = False
        loss._rtt_latest = loss._rtt_smoothed = loss._rtt_variance = 0.0
        loss._rtt_min = inf

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        """Return (datagram, address) pairs. Free where nothing is due, as after each ACK that came alone."""
        repeats = self.repeats
        if repeats:
            self._repeat(now)
        if self._handshake_confirmed and not self._close_pending and len(self._network_paths) == 1:
            space = self._app_space
            is_idle = not (self._ready or self._probe_due)
            if is_idle and (space.ack_at is None or space.ack_at > now) and not self._has_control(now):
                self._pacing_at = self._copy_at
                return []
        if not repeats:
            return self._datagrams(now)
        number = self._packet_number
        datagrams = self._datagrams(now)
        self._note_sent(number, now)
        return datagrams

    def _write_application(self, builder: QuicPacketBuilder, network_path: QuicNetworkPath, now: float) -> None:
        crypto, packet_type = self._application_keys()
        if crypto is None:
            return
        if self._packet_number >= self._renew_keys_at and self._handshake_confirmed:
            self._renew_keys_at = self._packet_number + PACKETS_PER_KEY
            self.request_key_update()
        space = self._app_space
        size = self._max_datagram_size
        if not network_path.is_validated:
            self._make_room_for_challenge(builder, network_path)
        while True:
            control, data = self._has_control(now), bool(self._ready)
            ack = packet_type is QuicPacketType.ONE_RTT and space.ack_at is not None
            is_due = ack and space.ack_at is not None and space.ack_at <= now
            if control or data:
                self._pacing_at = self.pacer.next_send_time(now)
                if self._pacing_at is not None:
                    control = data = False
            if not (control or data or is_due):
                return
            builder.start_packet(packet_type, crypto)
            if builder.remaining_flight_space < self._least_packet(builder):
                # The congestion window is full: an ACK may leave all the same, but need not before its time.
                control = data = False
                if not is_due:
                    return
            if ack and (len(space.ack_queue) == 1 or not self._has_little_room(builder, network_path)):
                self._write_ack_frame(builder, space, now)
            try:
                if control:
                    self._write_control(builder, network_path, space, now)
                if data:
                    self._write_streams(builder)
            except QuicPacketBuilderStop:
                # A full packet is no reason to stop; one that took nothing is.
                if builder.packet_is_empty:
                    return
            if builder.packet_is_empty:
                return
            self._count_ack_alone(builder, alone=not (control or data))
            self.pacer.charge(size - builder.remaining_buffer_space)

    def _make_room_for_challenge(self, builder: QuicPacketBuilder, path: QuicNetworkPath) -> None:
        """A peer that has moved while the window was full of what went to its old address is asked at once."""
        if not path.local_challenge_sent and builder.max_flight_bytes is not None:
            builder.max_flight_bytes = max(builder.max_flight_bytes, BASE)

    def _has_little_room(self, builder: QuicPacketBuilder, path: QuicNetworkPath) -> bool:
        """Whether all ranges of an ACK could take the room of a challenge."""
        return not (path.is_validated or path.local_challenge_sent) and builder.remaining_flight_space < BASE >> 1

    def _least_packet(self, builder: QuicPacketBuilder) -> int:
        """Octets of window that are worth a packet. Half a datagram, or messages would be cut to fit the window's last
        bytes; less where no ACK would come to open it, or an unvalidated path's limit is the reason."""
        if builder.max_total_bytes is not None:
            # The least packet of a peer that has moved, a PING, lets 87 octets leave; the challenge must be among them.
            return ACK_FRAME_CAPACITY + PATH_CHALLENGE_FRAME_CAPACITY
        if not self._loss.bytes_in_flight:
            return LEAST_FRAGMENT
        return self._max_datagram_size >> 1

    def _application_keys(self) -> tuple[CryptoPair | None, QuicPacketType]:
        crypto: CryptoPair = self._app_crypto
        if crypto.send.is_valid():
            return crypto, QuicPacketType.ONE_RTT
        crypto = self._cryptos[Epoch.ZERO_RTT]
        return (crypto if crypto.send.is_valid() else None), QuicPacketType.ZERO_RTT

    def _count_ack_alone(self, builder: QuicPacketBuilder, *, alone: bool) -> None:
        self._acks_alone = self._acks_alone + 1 if alone else 0
        if self._acks_alone >= PING_EVERY and builder.remaining_flight_space > LEAST_FRAGMENT:
            self._acks_alone = 0
            self._write_ping_frame(builder, comment="ACK-of-ACK trigger")

    # -- control frames: rare, so one look at flags decides whether any is due

    def _has_control(self, now: float) -> bool:
        if self._limits_pending and self._handshake_complete:
            # Not before: early data has to do with the credit that the client remembers.
            self._limits_pending = False
            self._limits_due = self._renew_limits(now)
        path = self._network_paths[0]
        return bool(
            self._indebted
            or self._limits_due
            or self._cids_pending
            or self._probe_pending
            or self._ping_pending
            or self._handshake_done_pending
            or self._retire_connection_ids
            or path.remote_challenges
            or not (path.is_validated or path.local_challenge_sent)
            or not self._app_crypto_stream.sender.buffer_is_empty
        )

    def _write_control(
        self, builder: QuicPacketBuilder, path: QuicNetworkPath, space: QuicPacketSpace, now: float
    ) -> None:
        """Write what is due. Each flag falls after its frame is in: a full packet raises and leaves the rest for the
        next."""
        if self._handshake_complete:
            self._write_path_frames(builder, path, now)
            if self._handshake_done_pending:
                self._write_handshake_done_frame(builder)
                self._handshake_done_pending = False
            if self._cids_pending or self._retire_connection_ids:
                self._write_cid_frames(builder)
            if self._limits_due:
                self._write_connection_limits(builder, space)
        if self._indebted:
            self._write_stream_credit(builder, now)
        if self._ping_pending:
            self._write_ping_frame(builder, self._ping_pending)
            self._ping_pending.clear()
        if self._probe_pending:
            self._write_ping_frame(builder, comment="probe")
            self._probe_pending = False
        crypto_stream = self._app_crypto_stream
        if not crypto_stream.sender.buffer_is_empty and self._app_crypto.send.is_valid():
            self._write_crypto_frame(builder, space, crypto_stream)

    def _write_path_frames(self, builder: QuicPacketBuilder, path: QuicNetworkPath, now: float) -> None:
        if not (path.is_validated or path.local_challenge_sent):
            self._write_path_challenge_frame(builder, path)
            self._challenge_was_small = builder._flight_capacity < BASE
            self._challenged_at = now
            if path.validation_deadline is None:
                # RFC 9000 section 8.2.4: three times the larger of the current and of a new path's probe timeout.
                timeout = max(self._loss.get_probe_timeout(), NEW_PATH_TIMEOUT)
                path.validation_deadline = now + 3 * timeout
        while path.remote_challenges:
            self._write_path_response_frame(builder, path.remote_challenges[0])
            path.remote_challenges.popleft()

    def _write_cid_frames(self, builder: QuicPacketBuilder) -> None:
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                self._write_new_connection_id_frame(builder, connection_id)
        self._cids_pending = False
        while self._retire_connection_ids:
            self._write_retire_connection_id_frame(builder, self._retire_connection_ids[0])
            del self._retire_connection_ids[0]

    # -- streams

    def _write_streams(self, builder: QuicPacketBuilder) -> None:
        """Serve the queue until the packet is full; a stream that was served and has more goes to its end."""
        ready = self._ready
        while ready:
            stream = ready[0]
            if stream.receiver.stop_pending:
                self._write_stop(builder, stream)
            if stream.sender.reset_pending:
                self._write_reset(builder, stream)
            elif not stream.sender.buffer_is_empty:
                fill = self._write_stream_data(builder, stream)
                if fill is Fill.FULL:
                    return
                if fill is Fill.SERVED:
                    self._filled = self._probe_due = True
                    ready.rotate(-1)
                    return
                if fill is Fill.BLOCKED and self._remote_max_data_used >= self._remote_max_data:
                    self._starved[stream] = None
            ready.popleft()
            stream.queued = False

    def _write_stream_data(self, builder: QuicPacketBuilder, stream: Stream) -> Fill:
        """Write a stream's frames. Plain and long, and it looks into the builder: every query passes here, twice."""
        sender = stream.sender
        buf, packet = builder._buffer, builder._packet
        assert packet is not None
        fill = Fill.FULL
        while True:
            highest = sender.highest_offset
            limit = min(stream.max_stream_data_remote, highest + self._remote_max_data - self._remote_max_data_used)
            if sender._lost:
                offset, end = sender._lost[0]
            else:
                offset, end = highest, min(sender._buffer_stop, limit)
            overhead = stream.header_size + (0 if not offset else 2 if 64 <= offset < 16384 else size_uint_var(offset))
            room = builder._flight_capacity - buf.tell() - overhead - TAG_SIZE
            if room < end - offset:
                # A small message is not split for the sake of a packet's last bytes: that costs two frames, and the far
                # end has fast paths for messages that come whole.
                is_scrap = room < LEAST_FRAGMENT or end - offset <= self._max_datagram_size >> 1
                if is_scrap and not builder.packet_is_empty:
                    return fill
            frame = sender.take(room, limit)
            if frame is None:
                return fill if room < LEAST_FRAGMENT else Fill.BLOCKED
            offset, data, fin = frame
            stop = offset + len(data)
            # What builder.start_frame does for a frame that elicits an ACK and fits.
            packet.is_ack_eliciting = packet.in_flight = True
            packet.delivery_handlers.append((self._on_data_delivered, (stream, offset, stop, fin)))
            buf.push_uint_var((0x0E if offset else 0x0A) | fin)  # STREAM with a length; with an offset unless that is 0
            buf.push_uint_var(stream.stream_id)
            if offset:
                buf.push_uint_var(offset)
            buf.push_uint16(stop - offset | 0x4000)
            buf.push_bytes(data)
            if stop > highest:
                self._remote_max_data_used += stop - highest
            if sender.buffer_is_empty:
                return Fill.DRAINED
            fill = Fill.SERVED
