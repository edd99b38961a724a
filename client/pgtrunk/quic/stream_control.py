"""Frames that govern streams rather than fill them: how much the peer may send, and ends before the end.

RFC 9000 sections 4 and 3.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    RESET_STREAM_FRAME_CAPACITY,
    STOP_SENDING_FRAME_CAPACITY,
)
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicDeliveryState

from .streams import StreamTable

if TYPE_CHECKING:
    from aioquic.quic.connection import Limit
    from aioquic.quic.packet_builder import QuicPacketBuilder
    from aioquic.quic.recovery import QuicPacketSpace

    from .stream import Stream

__all__ = ["StreamControl"]

ACKED = QuicDeliveryState.ACKED


class StreamControl(StreamTable):
    """The part of a connection that writes them."""

    _limits_due = False

    # -- credit that we give

    def _renew_limits(self, now: float) -> bool:
        self.credit.renew(now, self._loss._rtt_smoothed)
        return self._local_max_data.value != self._local_max_data.sent or self._should_tell_streams()

    def _should_tell_streams(self) -> bool:
        """MAX_STREAMS in batches, as long as the peer has many left."""
        limit, most = self._local_max_streams_bidi, self.limits.max_streams
        news = limit.value - limit.sent
        return news > 0 and (limit.sent - limit.used <= most // 2 or news >= most // 8)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        if self._local_max_data.value != self._local_max_data.sent:
            self._write_limit(builder, self._local_max_data)
        if self._should_tell_streams():
            self._write_limit(builder, self._local_max_streams_bidi)
        self._limits_due = False

    def _write_limit(self, builder: QuicPacketBuilder, limit: Limit) -> None:
        buf = builder.start_frame(
            limit.frame_type, CONNECTION_LIMIT_FRAME_CAPACITY, self._on_connection_limit_delivery, (limit,)
        )
        buf.push_uint_var(limit.value)
        limit.sent = limit.value

    def _on_connection_limit_delivery(self, delivery: QuicDeliveryState, limit: Limit) -> None:
        super()._on_connection_limit_delivery(delivery, limit)
        if delivery is not ACKED:
            self._limits_pending = True

    def _write_stream_credit(self, builder: QuicPacketBuilder, now: float) -> None:
        while self._indebted:
            stream = next(iter(self._indebted))
            if stream.max_stream_data_local - stream.consumed <= stream.window >> 1:
                self.credit.renew_stream(stream, now, self._loss._rtt_smoothed)
            if stream.max_stream_data_local != stream.max_stream_data_local_sent and not stream.receiver.is_finished:
                buf = builder.start_frame(
                    QuicFrameType.MAX_STREAM_DATA,
                    MAX_STREAM_DATA_FRAME_CAPACITY,
                    self._on_stream_credit_delivered,
                    (stream,),
                )
                buf.push_uint_var(stream.stream_id)
                buf.push_uint_var(stream.max_stream_data_local)
                stream.max_stream_data_local_sent = stream.max_stream_data_local
            del self._indebted[stream]

    def _on_stream_credit_delivered(self, delivery: QuicDeliveryState, stream: Stream) -> None:
        if delivery is not ACKED:
            self._credit_lost(stream)

    # -- ends

    def _write_reset(self, builder: QuicPacketBuilder, stream: Stream) -> None:
        buf = builder.start_frame(
            QuicFrameType.RESET_STREAM, RESET_STREAM_FRAME_CAPACITY, self._on_reset_delivered, (stream,)
        )
        frame = stream.sender.get_reset_frame()
        buf.push_uint_var(frame.stream_id)
        buf.push_uint_var(frame.error_code)
        buf.push_uint_var(frame.final_size)

    def _on_reset_delivered(self, delivery: QuicDeliveryState, stream: Stream) -> None:
        stream.sender.on_reset_delivery(delivery)
        if delivery is ACKED:
            self._settle(stream)
        else:
            self.activate(stream)

    def _write_stop(self, builder: QuicPacketBuilder, stream: Stream) -> None:
        buf = builder.start_frame(
            QuicFrameType.STOP_SENDING, STOP_SENDING_FRAME_CAPACITY, self._on_stop_delivered, (stream,)
        )
        frame = stream.receiver.get_stop_frame()
        buf.push_uint_var(frame.stream_id)
        buf.push_uint_var(frame.error_code)

    def _on_stop_delivered(self, delivery: QuicDeliveryState, stream: Stream) -> None:
        # A peer that has finished or reset its half needs no second STOP_SENDING.
        if delivery is not ACKED and not stream.receiver.is_finished:
            stream.receiver.stop_pending = True
            self.activate(stream)
