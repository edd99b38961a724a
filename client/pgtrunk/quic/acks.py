"""When to acknowledge, and telling the peer the truth about it.

An acknowledgement waits up to ``ack_delay`` for data to ride on: half of all packets carry nothing else otherwise. It
does not wait where that would slow the peer's recovery or its slow start. RFC 9000 sections 13.2 and 18.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioquic._buffer import Buffer
from aioquic.quic.connection import ACK_FRAME_CAPACITY
from aioquic.quic.packet import pull_quic_transport_parameters, push_quic_transport_parameters
from aioquic.quic.packet_builder import QuicPacketBuilderStop

from .streams import StreamTable

if TYPE_CHECKING:
    from aioquic.quic.packet_builder import QuicPacketBuilder
    from aioquic.quic.recovery import QuicPacketSpace

__all__ = ["ACK_EVERY", "Acknowledging"]

ACK = 0x02

ACK_EVERY = 8
"""Packets after which an acknowledgement waits no longer. RFC 9000 suggests 2 and allows more; 8 of an initial window
of 10 keep the peer's slow start going, and where answers follow, one packet carries them all."""


class Acknowledging(StreamTable):
    """The part of a connection that decides when ACK frames are due."""

    _remote_max_datagram = 65527
    """Octets of UDP payload that the peer takes (max_udp_payload_size, RFC 9000 section 18.2)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._ack_delay = self.limits.ack_delay
        self._unacknowledged = 0

    def _note_received(self, space: QuicPacketSpace, packet_number: int, now: float) -> None:
        """An ack-eliciting packet came; ``largest_received_packet`` is still that of those before it."""
        self._unacknowledged += 1
        if packet_number != space.largest_received_packet + 1 or self._unacknowledged >= ACK_EVERY:
            # A gap or a late packet: the peer learns of a loss from this, or that there was none.
            space.ack_at = now
        elif space.ack_at is None:
            space.ack_at = now + self._ack_delay

    def _serialize_transport_parameters(self) -> bytes:
        """aioquic says 25 ms, whatever it does."""
        data = super()._serialize_transport_parameters()
        parameters = pull_quic_transport_parameters(Buffer(data=data))
        parameters.max_ack_delay = self.limits.max_ack_delay
        buf = Buffer(capacity=len(data) + 8)
        push_quic_transport_parameters(buf, parameters)
        return buf.data

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        """aioquic takes the peer's max_ack_delay over into loss detection, but not its exponent."""
        super()._parse_transport_parameters(data, from_session_ticket)
        parameters = pull_quic_transport_parameters(Buffer(data=data))
        if not from_session_ticket and parameters.ack_delay_exponent is not None:
            self._remote_ack_delay_exponent = parameters.ack_delay_exponent
        if parameters.max_udp_payload_size is not None:
            self._remote_max_datagram = parameters.max_udp_payload_size
        self._feed_starved()

    def _write_ack_frame(self, builder: QuicPacketBuilder, space: QuicPacketSpace, now: float) -> None:
        self._unacknowledged = 0
        packet = builder._packet
        if len(space.ack_queue) != 1 or self._quic_logger is not None or packet is None:
            super()._write_ack_frame(builder, space, now)
            return
        # One range, as long as nothing is missing. What builder.start_frame does for a frame that elicits no ACK; it
        # looks the type up in sets of enum members, whose hash is a Python call.
        if builder.remaining_buffer_space < ACK_FRAME_CAPACITY:
            raise QuicPacketBuilderStop
        (acked,) = space.ack_queue
        delay = int((now - (space.largest_received_time or now)) * 1e6) >> self._local_ack_delay_exponent
        packet.delivery_handlers.append((self._on_ack_delivery, (space, space.largest_received_packet)))
        buf = builder._buffer
        buf.push_uint8(ACK)
        buf.push_uint_var(acked.stop - 1)
        buf.push_uint_var(delay)
        buf.push_uint8(0)
        buf.push_uint_var(acked.stop - 1 - acked.start)
        space.ack_at = None
