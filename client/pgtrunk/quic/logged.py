"""A connection that is logged: what our own ways of writing and reading frames leave out of aioquic's log is added.

With a logger all packets take aioquic's ways, see short.py and receiving.py; a connection without one is not of this
class and pays nothing. What was written is read from the packet's delivery handlers, since each of our frames has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .connection import Connection

if TYPE_CHECKING:
    from aioquic._buffer import Buffer
    from aioquic.quic.connection import NetworkAddress, QuicNetworkPath, QuicReceiveContext
    from aioquic.quic.packet_builder import QuicPacketBuilder, QuicSentPacket

__all__ = ["LoggedConnection", "new_connection"]


def new_connection(**arguments: Any) -> Connection:
    """Makes a connection, which is logged where its configuration has a logger."""
    kind = Connection if arguments["configuration"].quic_logger is None else LoggedConnection
    return kind(**arguments)


class LoggedConnection(Connection):
    """See `Connection`."""

    def leave_path(self) -> None:
        super().leave_path()
        trace, self._quic_logger = self._quic_logger, None
        maker = self._configuration.quic_logger
        if trace is not None and maker is not None:
            maker.end_trace(trace)

    # Sent.

    def _flush_builder(
        self, builder: QuicPacketBuilder, network_path: QuicNetworkPath, peer_cid: bytes, now: float
    ) -> list[tuple[bytes, NetworkAddress]]:
        datagrams, packets = builder.flush()
        for packet in packets:
            if packet.quic_logger_frames is not None:
                packet.quic_logger_frames += _frames(packet)
        builder.flush = lambda: (datagrams, packets)  # type: ignore[method-assign]
        return super()._flush_builder(builder, network_path, peer_cid, now)

    def _register(self, packets: list[QuicSentPacket], now: float) -> None:
        super()._register(packets, now)
        for packet in packets:
            # A probe of the path's size, which fills its datagram.
            self._log(
                "packet_sent", packet.packet_number, packet.sent_bytes, [{"frame_type": "ping"}, *_frames(packet)]
            )

    def _log(self, event: str, number: int, size: int, frames: list[dict[str, Any]]) -> None:
        if self._quic_logger is not None:
            header = {"packet_number": number, "packet_type": "1RTT", "scid": "", "dcid": self._peer_cid.cid.hex()}
            data = {"frames": frames, "header": header, "raw": {"length": size}}
            self._quic_logger.log_event(category="transport", event=event, data=data)

    # Received.

    def _handle_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        start = buf.tell()
        stream_id = buf.pull_uint_var()
        offset = buf.pull_uint_var() if frame_type & 4 else 0
        length = buf.pull_uint_var() if frame_type & 2 else buf.capacity - buf.tell()
        buf.seek(start)
        if context.quic_logger_frames is not None:
            context.quic_logger_frames.append(_stream(stream_id, offset, length, bool(frame_type & 1)))
        super()._handle_stream_frame(context, frame_type, buf)

    def _handle_max_stream_data_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        start = buf.tell()
        stream_id, maximum = buf.pull_uint_var(), buf.pull_uint_var()
        buf.seek(start)
        if context.quic_logger_frames is not None:
            context.quic_logger_frames.append(
                {"frame_type": "max_stream_data", "maximum": maximum, "stream_id": stream_id}
            )
        super()._handle_max_stream_data_frame(context, frame_type, buf)


def _frames(packet: QuicSentPacket) -> list[dict[str, Any]]:
    """The frames of a packet that aioquic has not seen."""
    return [
        each
        for handler, arguments in packet.delivery_handlers
        if (each := _frame(getattr(handler, "__name__", ""), arguments)) is not None
    ]


def _frame(handler: str, arguments: Any) -> dict[str, Any] | None:
    match handler:
        case "_on_data_delivered":
            stream, offset, stop, fin = arguments
            return _stream(stream.stream_id, offset, stop - offset, fin)
        case "_on_reset_delivered":
            return {"frame_type": "reset_stream", "stream_id": arguments[0].stream_id}
        case "_on_stop_delivered":
            return {"frame_type": "stop_sending", "stream_id": arguments[0].stream_id}
        case "_on_stream_credit_delivered":
            stream = arguments[0]
            maximum = stream.max_stream_data_local_sent
            return {"frame_type": "max_stream_data", "maximum": maximum, "stream_id": stream.stream_id}
        case "_on_connection_limit_delivery":
            return {"frame_type": arguments[0].name.lower(), "maximum": arguments[0].sent}
        case _:
            return None


def _stream(stream_id: int, offset: int, length: int, fin: bool) -> dict[str, Any]:
    return {"frame_type": "stream", "stream_id": stream_id, "offset": offset, "length": length, "fin": fin}
