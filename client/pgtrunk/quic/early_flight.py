"""What a client sends before the server has said a word (0-RTT), and what becomes of it.

It counts on the limits that the server gave with the ticket. Where the server takes early data, those hold; where it
does not, all that was assumed may be wrong: what was sent counts as never sent, and leaves again, within the limits of
now, as soon as there are keys. That is a round trip, and no loss: aioquic by itself would find out packet by packet.
RFC 9001 sections 4.6.2 and 4.9.3, RFC 9000 sections 7.4.1 and 17.2.5.3.
"""

from __future__ import annotations

from typing import Any

from aioquic.quic.connection import QuicConnectionError, stream_is_unidirectional
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.tls import Epoch

from .acks import Acknowledging

__all__ = ["EarlyFlight"]

_LIMITS = (
    "_remote_max_data",
    "_remote_max_stream_data_bidi_local",
    "_remote_max_stream_data_bidi_remote",
    "_remote_max_stream_data_uni",
    "_remote_max_streams_bidi",
    "_remote_max_streams_uni",
)


class EarlyFlight(Acknowledging):
    """The part of a client's connection that deals with early data. Of a server's it does nothing."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.early_alpn: str | None = None
        """The protocol that early data is in: that of the handshake which the ticket is from."""
        self._remembers = False

    @property
    def sends_early(self) -> bool:
        """Whether what is written now leaves as early data."""
        return self._is_client and bool(self._cryptos) and self._cryptos[Epoch.ZERO_RTT].send.is_valid()

    def handle_timer(self, now: float) -> None:
        """With an Initial packet that may be lost, early data leaves again: without it nobody could read any."""
        probes = self._loss._pto_count
        super().handle_timer(now)
        if self._loss._pto_count > probes and self.sends_early:
            packets = list(self._app_space.sent_packets.values())
            self._loss._on_packets_lost(congestion_event=False, now=now, packets=packets, space=self._app_space)

    def _initialize(self, peer_cid: bytes) -> None:
        if self._is_client:
            # After a Retry the handshake begins anew: what was sent is dropped by the server, and was no loss.
            self._take_back()
        super()._initialize(peer_cid)

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        if from_session_ticket or not self._remembers:
            self._remembers = from_session_ticket
            super()._parse_transport_parameters(data, from_session_ticket)
            return
        remembered = [getattr(self, name) for name in _LIMITS]
        if not self.tls.early_data_accepted:
            self._cryptos[Epoch.ZERO_RTT].send.teardown()
            self._take_back()
            for name in _LIMITS:
                setattr(self, name, 0)  # what a server leaves out is 0, not as it was
        super()._parse_transport_parameters(data)
        now = [getattr(self, name) for name in _LIMITS]
        if self.tls.early_data_accepted and (
            self.tls.alpn_negotiated != self.early_alpn
            or any(new < old for old, new in zip(remembered, now, strict=True))
        ):
            raise QuicConnectionError(
                QuicErrorCode.PROTOCOL_VIOLATION,
                QuicFrameType.CRYPTO,
                "early data was taken, but not on the terms that came with the ticket",
            )
        self._grant_again()

    def _take_back(self) -> None:
        """Have all that was sent of streams sent anew."""
        for space in self._loss.spaces:
            packets = list(space.sent_packets.values())
            self._loss._on_packets_lost(congestion_event=False, now=0.0, packets=packets, space=space)
            space.loss_time = None
        self.unsend()
        for stream in self._streams.values():
            if not stream.sender.buffer_is_empty or stream.sender.reset_pending or stream.receiver.stop_pending:
                self.activate(stream)

    def unsend(self) -> None:
        """Nothing of what was sent has had an effect, nor will."""
        self._remote_max_data_used = 0
        for stream in self._streams.values():
            stream.sender.rewind()

    def _grant_again(self) -> None:
        """Give the streams that are open the credit of now."""
        opened = self._local_next_stream_id_bidi // 4
        if opened > self._remote_max_streams_bidi:
            # Nothing of them was heard, so their owners may ask again. Rare enough to give up the rest with them.
            raise QuicConnectionError(
                QuicErrorCode.NO_ERROR,
                QuicFrameType.CRYPTO,
                f"{opened} streams were opened early, and {self._remote_max_streams_bidi} are allowed now",
            )
        for stream in self._streams.values():
            if not stream_is_unidirectional(stream.stream_id):
                stream.max_stream_data_remote = self._remote_max_stream_data_bidi_remote
                if not stream.sender.buffer_is_empty:
                    self.activate(stream)
