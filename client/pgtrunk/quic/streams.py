"""The streams of a connection: opening, announcing, forgetting; who has something to send, who needs credit.

aioquic walks all open streams for every packet that it writes. Here a stream is visited when it is in one of two
queues: ``_ready`` (data, FIN, RESET_STREAM or STOP_SENDING to send) or ``_indebted`` (MAX_STREAM_DATA to send), so
that idle streams cost nothing. This file knows neither packets nor transports.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

from aioquic.quic import events
from aioquic.quic.connection import QuicConnection, QuicConnectionError, QuicConnectionId
from aioquic.quic.connection import stream_is_client_initiated as is_by_client
from aioquic.quic.connection import stream_is_unidirectional as is_one_way
from aioquic.quic.packet import QuicErrorCode
from aioquic.quic.stream import StreamFinishedError
from aioquic.tls import Epoch

from .control import CONTROL_ALPN
from .flow import ConnectionCredit
from .hooks import nothing
from .keys import Keys
from .stream import NEVER, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic import tls
    from aioquic._buffer import Buffer
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.recovery import QuicPacketSpace
    from aioquic.quic.stream import QuicStream

    from .config import ByteBudget, QuicLimits

__all__ = ["HandshakeConfirmed", "StreamTable"]


class HandshakeConfirmed(events.QuicEvent):
    """The other end has our Finished, and a server has accepted our certificate (RFC 9001 section 4.1.2)."""


class StreamTable(QuicConnection):
    """An aioquic connection whose streams are ours.

    ``_events`` holds, in order: a Stream that the peer opened, a tuple (stream, data, end of stream), or aioquic's own
    events for all that is rare.
    """

    _streams: dict[int, Stream]  # type: ignore[assignment]  # aioquic types it by its own stream
    _events: deque[Any]
    _app_crypto: Keys
    _app_crypto_stream: QuicStream
    _app_space: QuicPacketSpace

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        limits: QuicLimits,
        budget: ByteBudget | None = None,
        new_cid: Callable[[], bytes] | None = None,
        reset_token: Callable[[bytes], bytes] | None = None,
        make_tls: Callable[[tls.Context], tls.Context] | None = None,
        **server: Any,
    ) -> None:
        super().__init__(configuration=configuration, **server)
        self.limits = limits
        self.wake: Callable[[], None] = nothing
        """Called when there is something to send that no datagram, timer or call of the owner has caused."""
        self.on_cid_issued: Callable[[bytes], object] = nothing
        self.writable: list[Stream] = []
        """Streams whose paused writers may write again."""
        self._new_cid = new_cid or (lambda: os.urandom(configuration.connection_id_length))
        self._reset_token = reset_token or (lambda cid: os.urandom(16))
        self._make_tls = make_tls
        self._streams = {}  # pyright: ignore[reportIncompatibleVariableOverride]
        self._ready: deque[Stream] = deque()
        self._starved: dict[Stream, None] = {}
        self._indebted: dict[Stream, None] = {}
        self._cids_pending = False
        self._limits_pending = False
        self._set_limits(limits)
        self.credit = ConnectionCredit(limits, self._local_max_data, budget, self._on_room)
        self._choose_first_cid()

    def _set_limits(self, limits: QuicLimits) -> None:
        self._local_max_stream_data_bidi_local = limits.initial_window
        self._local_max_stream_data_bidi_remote = limits.initial_window
        # One unidirectional stream for control, where that is spoken; on top of all that sessions may have.
        control = int(CONTROL_ALPN in (self.configuration.alpn_protocols or ()))
        self._local_max_stream_data_uni = limits.initial_window * control
        sessions = limits.max_streams
        for limit, value in ((self._local_max_streams_bidi, sessions), (self._local_max_streams_uni, control)):
            limit.value = limit.sent = value

    def _initialize(self, peer_cid: bytes) -> None:
        """Set up for a first flight. ``make_tls`` may put another TLS context in the place of the new one."""
        super()._initialize(peer_cid)
        # Looked up once: the keys are enum members, whose hash is a Python call, and each packet needs them many times.
        self._app_crypto = self._cryptos[Epoch.ONE_RTT] = Keys()
        self._app_crypto_stream = self._crypto_streams[Epoch.ONE_RTT]
        self._app_space = self._spaces[Epoch.ONE_RTT]
        if self._make_tls is not None:
            self.tls = self._make_tls(self.tls)

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        # Room for whole certificates that nobody will write into any more.
        self._crypto_buffers = {Epoch.ONE_RTT: self._crypto_buffers[Epoch.ONE_RTT]}
        self._events.append(HandshakeConfirmed())

    def send_ticket(self, write: Callable[[Buffer], object]) -> None:
        """Send what ``write`` puts into a buffer as a message of the handshake that is over."""
        write(self._crypto_buffers[Epoch.ONE_RTT])
        self._push_crypto_data()
        self.wake()

    # -- connection ids

    def _choose_first_cid(self) -> None:
        cid = self._new_cid()
        first = self._host_cids[0]
        first.cid = self.host_cid = self._local_initial_source_connection_id = cid
        if not self._is_client:
            first.stateless_reset_token = self._reset_token(cid)

    @property
    def host_cids(self) -> list[bytes]:
        """The connection ids by which the peer may call us now."""
        return [each.cid for each in self._host_cids]

    def _replenish_connection_ids(self) -> None:
        while len(self._host_cids) < min(8, self._remote_active_connection_id_limit):
            cid = self._new_cid()
            self._host_cids.append(QuicConnectionId(cid, self._host_cid_seq, self._reset_token(cid)))
            self._host_cid_seq += 1
            self._cids_pending = True
            self.on_cid_issued(cid)

    def _on_new_connection_id_delivery(self, *args: Any, **kwargs: Any) -> None:
        super()._on_new_connection_id_delivery(*args, **kwargs)
        self._cids_pending = not all(each.was_sent for each in self._host_cids)

    # -- opening

    @property
    def stream_credit(self) -> int:
        """How many more streams the peer lets us open now."""
        return max(self._remote_max_streams_bidi - self._local_next_stream_id_bidi // 4, 0)

    def open_stream(self) -> Stream:
        """Open the next stream. The caller has looked at ``stream_credit``."""
        stream_id = self._local_next_stream_id_bidi
        stream = Stream(stream_id, self._local_max_stream_data_bidi_local, self._remote_max_stream_data_bidi_remote)
        self._streams[stream_id] = stream
        self._local_next_stream_id_bidi = stream_id + 4
        return stream

    def open_control(self) -> Stream | None:
        """Open the one unidirectional stream that an end has; None where the peer allows none."""
        if not self._remote_max_streams_uni:
            return None
        stream_id = self._local_next_stream_id_uni
        self._local_next_stream_id_uni = stream_id + 4
        stream = self._streams[stream_id] = Stream(stream_id, 0, self._remote_max_stream_data_uni, readable=False)
        return stream

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> Stream:
        stream = self._streams.get(stream_id)
        if stream is not None:
            return stream
        if self._stream_is_discarded(stream_id):
            raise StreamFinishedError
        if is_by_client(stream_id) == self._is_client:
            raise QuicConnectionError(QuicErrorCode.STREAM_STATE_ERROR, frame_type, "Wrong stream initiator")
        one_way = is_one_way(stream_id)
        limit = self._local_max_streams_uni if one_way else self._local_max_streams_bidi
        count = stream_id // 4 + 1
        if count > limit.value:
            raise QuicConnectionError(QuicErrorCode.STREAM_LIMIT_ERROR, frame_type, "Too many streams open")
        if one_way:
            ours, theirs = self._local_max_stream_data_uni, 0
        else:
            ours, theirs = self._local_max_stream_data_bidi_remote, self._remote_max_stream_data_bidi_local
        # A stream opens all lower ones too (RFC 9000 section 2.1). Each is announced: one that never says anything
        # must still meet its login timeout.
        for each in range(limit.used * 4 + stream_id % 4, stream_id + 4, 4):
            stream = self._streams[each] = Stream(each, ours, theirs, writable=not one_way)
            self._events.append(stream)
        limit.used = count
        self._limits_pending = True
        assert stream is not None
        return stream

    # -- queues

    def activate(self, stream: Stream) -> None:
        """The stream has something to send."""
        if not stream.queued:
            stream.queued = True
            self._ready.append(stream)

    def _feed_starved(self) -> None:
        """Connection credit came: all that waited for it may send."""
        starved, self._starved = self._starved, {}
        for stream in starved:
            self.activate(stream)

    # -- what a transport does to its stream

    def write(self, stream: Stream, data: bytes | bytearray | memoryview, fin: bool = False) -> None:
        """Queue data, and with ``fin`` the end of the stream."""
        stream.sender.write(data, fin)
        self.activate(stream)

    def reset(self, stream: Stream, error_code: int) -> None:
        """Send RESET_STREAM; what was not sent never will be."""
        stream.sender.reset(error_code)
        if stream.sender.reset_pending:
            self.activate(stream)

    def stop(self, stream: Stream, error_code: int) -> None:
        """Drop what came, and all that is still to come; ask the peer to stop (STOP_SENDING)."""
        self.drop_unread(stream)
        if not stream.receiver.is_finished:
            stream.receiver.stop(error_code)
            self.activate(stream)

    def consume(self, stream: Stream, size: int) -> bool:
        """The application took ``size`` bytes; True when that makes credit worth sending."""
        stream.consumed += size
        self.credit.release(size)
        if stream.max_stream_data_local - stream.consumed > stream.window >> 1 or stream.receiver.is_finished:
            return self._limits_pending
        self._indebted[stream] = None
        return True

    def _credit_lost(self, stream: Stream) -> None:
        """The peer may not know how much of this stream it may send: tell it again."""
        if not stream.receiver.is_finished and not stream.receiver.discarding:
            stream.max_stream_data_local_sent = 0
            self._indebted[stream] = None

    def drop_unread(self, stream: Stream) -> None:
        """Nobody will read this stream (any more)."""
        self.credit.release(stream.unread)
        stream.consumed = stream.receiver.highest_offset
        stream.receiver.discard()
        self._indebted.pop(stream, None)

    def let_go(self, stream: Stream) -> None:
        """No transport has this stream any more; it is forgotten once both halves are finished."""
        stream.in_use = False
        stream.transport = None
        self._settle(stream)

    def _settle(self, stream: Stream) -> None:
        if stream.in_use or not (stream.receiver.is_finished and stream.sender.is_finished):
            return
        if self._streams.pop(stream.stream_id, None) is None:
            return
        self._on_forget(stream)
        self.credit.forget(stream)
        stream.low_mark = NEVER
        if is_by_client(stream.stream_id) != self._is_client and not is_one_way(stream.stream_id):
            # The peer may open one more for each that is gone (RFC 9000 section 4.6).
            self._local_max_streams_bidi.value += 1
            self._limits_pending = True

    def _on_forget(self, stream: Stream) -> None:
        """Read off what the stream has counted, where a layer above wants it."""

    def _on_room(self) -> None:
        self._limits_pending = True
        self.wake()

    # -- aioquic's event for a connection id that is sent; ours is told when it is made, see on_cid_issued

    def next_event(self) -> Any:
        """Return the next event, or None. See the class for what may come."""
        while self._events:
            event = self._events.popleft()
            if type(event) is not events.ConnectionIdIssued:
                return event
        return None
