"""Taking packets in.

aioquic's ``receive_datagram`` does everything from version negotiation to migration. Once the handshake is confirmed
nearly all datagrams are one short-header packet on the known path to the current connection id: those take a shorter
way here, and all others take aioquic's. Frames of streams and credit are handled here too. RFC 9000 sections 12 and
13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioquic._buffer import Buffer, BufferReadError
from aioquic._crypto import CryptoError
from aioquic.quic import events
from aioquic.quic.connection import (
    END_STATES,
    QuicConnectionError,
    QuicConnectionState,
    QuicReceiveContext,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.quic.stream import FinalSizeError, StreamFinishedError
from aioquic.tls import Epoch

from .acks import Acknowledging
from .config import CID_LENGTH
from .ending import RESET
from .reset import is_reset

if TYPE_CHECKING:
    from aioquic.quic.connection import NetworkAddress

    from .stream import Stream

__all__ = ["Receiving"]

MAX_CRYPTO = 64 << 10
"""Octets of handshake that may wait, for a gap to close or a message to end. aioquic allows 512 KiB and 16 MiB; the
longest that is sensible is a client's chain of certificates."""


SILENT_FRAMES = frozenset({0x00, 0x02, 0x03, 0x1C, 0x1D})
"""PADDING, ACK and CONNECTION_CLOSE, which elicit no ACK (RFC 9000 section 13.2.1). Plain integers: aioquic's set of
enum members compares slowly."""


class Receiving(Acknowledging):
    """The part of a connection that takes packets in."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heard_at = 0.0
        """When the last genuine packet came."""
        self._usual_start: bytes | None = None
        self._old_keys_until = 0.0
        # aioquic keeps its table of frames to itself; private_names checks that it is there.
        handlers: dict[int, tuple[Any, frozenset[Epoch]]] = self._QuicConnection__frame_handlers  # type: ignore[attr-defined]
        self._handlers = {number: handler for number, (handler, epochs) in handlers.items() if Epoch.ONE_RTT in epochs}

    def receive_datagram(self, data: bytes, addr: NetworkAddress, now: float) -> None:
        """Take a datagram in. What it means is in ``next_event``."""
        if (
            self._usual_start is not None
            and data.startswith(self._usual_start, 1)
            and not data[0] & 0x80
            and (self._network_paths[0].addr is addr or self._network_paths[0].addr == addr)
            and self._network_paths[0].is_validated
        ):
            self._receive_short(data, now)
            return
        if self._is_client and self._says_reset(data):
            self._end_by_reset()
            return
        before = self._close_at
        super().receive_datagram(data, addr, now)
        if self._close_at != before:
            self.heard_at = now
        self._note_paths(now)
        self._usual_start = self._find_usual_start(data)

    def _note_paths(self, now: float) -> None:
        """See which path is in use now."""

    def _find_usual_start(self, data: bytes) -> bytes | None:
        """Return the connection id of packets that may go the short way, None where none may yet.

        A server drops its 0-RTT keys with the first 1-RTT packet, which therefore goes aioquic's way.
        """
        if (
            not self._handshake_confirmed
            or self._state is not QuicConnectionState.CONNECTED
            or self._cryptos[Epoch.ZERO_RTT].recv.is_valid()
            or self._quic_logger is not None
        ):
            return None
        # aioquic follows a client that changes the id it calls a server by, but not the other way round.
        called = data[1 : 1 + CID_LENGTH]
        return called if self._is_client and called in self.host_cids else self.host_cid

    def _receive_short(self, data: bytes, now: float) -> None:
        """Take in a 1-RTT packet on the known path. Plain and long: every query passes through here, twice."""
        if self._state is not QuicConnectionState.CONNECTED or not data[0] & 0x40:
            return
        space = self._app_space
        try:
            header, payload, number = self._app_crypto.decrypt_packet(
                data, 1 + CID_LENGTH, space.expected_packet_number
            )
        except CryptoError:
            if self._is_client and self._says_reset(data):
                self._end_by_reset()
            return
        if number in space.received_packets:
            return
        if self._app_crypto.remembers:
            self._age_old_keys(now)
        if header[0] & 0x18:
            self.close(QuicErrorCode.PROTOCOL_VIOLATION, QuicFrameType.PADDING, "Reserved bits must be zero")
            return
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        if number > self._spin_highest_pn:
            self._spin_bit = bool(header[0] & 0x20) is not self._is_client
            self._spin_highest_pn = number
        called = data[1 : 1 + CID_LENGTH]
        context = QuicReceiveContext(Epoch.ONE_RTT, called, self._network_paths[0], None, now, None)
        try:
            is_ack_eliciting = self._take_frames(context, payload)
        except QuicConnectionError as exc:
            self._logger.warning(exc)
            self.close(exc.error_code, exc.frame_type, exc.reason_phrase)
            return
        if self._state in END_STATES or self._close_pending:
            return
        self.heard_at = now
        self._close_at = now + self._idle_timeout()
        self._ack_eliciting_sent_since_receipt = False
        if is_ack_eliciting:
            self._note_received(space, number, now)
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        space.ack_queue.add(number)
        space.received_packets.add(number)
        if len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()

    def _says_reset(self, data: bytes) -> bool:
        """Whether the server says that it does not know an id that we call it by, also on a path that is tried. Servers
        alone give out tokens that we would hear of: a client that has gone is not there to say so."""
        if self._state in END_STATES:
            return False
        besides = [path.peer_cid for path in self._network_paths if path.peer_cid is not None]
        return any(is_reset(data, used.stateless_reset_token) for used in (self._peer_cid, *besides))

    def _end_by_reset(self) -> None:
        """Nothing more is sent: nobody is there who could read it (RFC 9000 section 10.3.1)."""
        self._close_event = events.ConnectionTerminated(
            error_code=QuicErrorCode.NO_ERROR, frame_type=QuicFrameType.PADDING, reason_phrase=RESET
        )
        self._close_end()

    def _age_old_keys(self, now: float) -> None:
        """Three probe timeouts after a renewal no packet of the old keys is under way any more."""
        if not self._old_keys_until:
            self._old_keys_until = now + 3 * self._loss.get_probe_timeout()
        elif now >= self._old_keys_until:
            self._old_keys_until = 0.0
            self._app_crypto.forget_before()

    # -- frames

    def _take_frames(self, context: QuicReceiveContext, payload: bytes) -> bool:
        """Handle the frames of a 1-RTT packet; True when they elicit an ACK.

        As aioquic's ``_payload_received``, which besides looks up with each frame whether the epoch allows it.
        """
        if not payload:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, QuicFrameType.PADDING, "Packet has no frames")
        buf = Buffer(data=payload)
        handlers = self._handlers
        is_ack_eliciting = False
        frame_type = 0
        try:
            while not buf.eof():
                frame_type = buf.pull_uint_var()
                try:  # noqa: SIM105 - contextlib.suppress would cost as much as the frame
                    handlers[frame_type](context, frame_type, buf)
                except StreamFinishedError:
                    pass  # late, for a stream that is over
                if frame_type not in SILENT_FRAMES:
                    is_ack_eliciting = True
        except KeyError as exc:
            if frame_type in handlers:
                raise
            raise QuicConnectionError(QuicErrorCode.FRAME_ENCODING_ERROR, frame_type, "Unknown frame type") from exc
        except BufferReadError as exc:
            raise QuicConnectionError(QuicErrorCode.FRAME_ENCODING_ERROR, frame_type, "Failed to parse frame") from exc
        return is_ack_eliciting

    def _handle_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        stream_id = buf.pull_uint_var()
        offset = buf.pull_uint_var() if frame_type & 4 else 0
        data = buf.pull_bytes(buf.pull_uint_var() if frame_type & 2 else buf.capacity - buf.tell())
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._get_or_create_stream(frame_type, stream_id)
        receiver = stream.receiver
        stop = offset + len(data)
        fresh = stop - receiver.highest_offset
        if fresh > 0:
            self._count_received(frame_type, stream, stop, fresh)
        try:
            taken = receiver.take(offset, data, bool(frame_type & 1))
        except FinalSizeError as exc:
            raise QuicConnectionError(QuicErrorCode.FINAL_SIZE_ERROR, frame_type, str(exc)) from exc
        if taken is not None:
            self._events.append((stream, *taken))
        if receiver.is_finished:
            self._settle(stream)

    def _count_received(self, frame_type: int, stream: Stream, stop: int, fresh: int) -> None:
        if stop > stream.max_stream_data_local:
            raise QuicConnectionError(QuicErrorCode.FLOW_CONTROL_ERROR, frame_type, "Over stream data limit")
        limit = self._local_max_data
        if limit.used + fresh > limit.value:
            raise QuicConnectionError(QuicErrorCode.FLOW_CONTROL_ERROR, frame_type, "Over connection data limit")
        limit.used += fresh
        if stream.receiver.discarding:
            stream.consumed += fresh
            self.credit.release(fresh)
        if self.credit.is_low:
            self._limits_pending = True

    def _handle_reset_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        start = buf.tell()
        super()._handle_reset_stream_frame(context, frame_type, buf)
        stream = self._stream_named_at(buf, start)
        if stream is None:
            return
        if stream.receiver.discarding:
            self.drop_unread(stream)
        if self.credit.is_low:
            self._limits_pending = True
        self._settle(stream)

    def _handle_stop_sending_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        start = buf.tell()
        super()._handle_stop_sending_frame(context, frame_type, buf)
        stream = self._stream_named_at(buf, start)
        if stream is not None and stream.sender.reset_pending:
            self.activate(stream)

    def _stream_named_at(self, buf: Buffer, start: int) -> Stream | None:
        end = buf.tell()
        buf.seek(start)
        stream_id = buf.pull_uint_var()
        buf.seek(end)
        return self._streams.get(stream_id)

    def _handle_max_stream_data_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        stream_id, limit = buf.pull_uint_var(), buf.pull_uint_var()
        self._assert_stream_can_send(frame_type, stream_id)
        stream = self._get_or_create_stream(frame_type, stream_id)
        if limit > stream.max_stream_data_remote:
            stream.max_stream_data_remote = limit
            if not stream.sender.buffer_is_empty:
                self.activate(stream)

    def _handle_max_data_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        super()._handle_max_data_frame(context, frame_type, buf)
        self._feed_starved()

    def _handle_stream_data_blocked_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        """A peer that says it is blocked may not have heard of a limit that we raised: say it again."""
        start = buf.tell()
        super()._handle_stream_data_blocked_frame(context, frame_type, buf)
        stream = self._stream_named_at(buf, start)
        if stream is not None and stream.max_stream_data_local > self.limits.initial_window:
            self._credit_lost(stream)

    def _handle_crypto_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        """Bound what a handshake may make us hold: the bytes after a gap, and a message that never ends."""
        start = buf.tell()
        stop = buf.pull_uint_var() + buf.pull_uint_var()
        buf.seek(start)
        pending = stop - self._crypto_streams[context.epoch].receiver.starting_offset()
        if pending + len(self.tls._receive_buffer) > MAX_CRYPTO:
            raise QuicConnectionError(QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, frame_type, "handshake too long")
        super()._handle_crypto_frame(context, frame_type, buf)
