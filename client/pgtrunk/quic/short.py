"""The short way out, for packets of a confirmed handshake on the one path there is: nearly all that are ever sent.

aioquic's builder can coalesce packets of several encryption levels, pad, and choose headers; its connection makes a
builder, with a buffer, for each flush, looks at handshake keys and preferred addresses, and registers packets by way of
an enum's hash. For a datagram with a query or two that is a third of the work. Here a connection keeps one builder,
which knows only 1-RTT packets: one to a datagram. Frames are written by the same methods as ever. RFC 9000 section
17.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.connection import QuicConnection, QuicConnectionState
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder, QuicPacketBuilderStop, QuicSentPacket
from aioquic.tls import Epoch

from .streams import StreamTable

if TYPE_CHECKING:
    from aioquic.quic.connection import NetworkAddress
    from aioquic.quic.crypto import CryptoPair

__all__ = ["ShortBuilder", "ShortWay"]

ONE_RTT, PACKET = Epoch.ONE_RTT, QuicPacketType.ONE_RTT
TAG_SIZE = 16
"""Octets that each cipher suite of TLS 1.3 adds to a packet."""
FIRST_BYTE = 0x40 | 1
"""Fixed bit, and a packet number of two octets, which is what aioquic always sends."""
LEAST_PAYLOAD = 2
"""Octets besides such a number for header protection to have enough to sample (RFC 9001 section 5.4.2)."""


class ShortBuilder(QuicPacketBuilder):
    """Builds 1-RTT packets, one to a datagram; :meth:`renew` makes it ready for the next flush."""

    _peer_cid: bytes
    _packet: QuicSentPacket | None

    def renew(self, connection: QuicConnection) -> None:
        """Begin a flush: nothing is written yet, and ids and numbers are the connection's of now."""
        self._peer_cid = connection._peer_cid.cid
        self._spin_bit = connection._spin_bit
        self._packet_number = connection._packet_number
        self._header_size = 3 + len(self._peer_cid)
        loss = connection._loss
        self.max_flight_bytes = loss.congestion_window - loss.bytes_in_flight
        if connection._probe_pending and self.max_flight_bytes < connection._max_datagram_size:
            # A probe may leave whatever the window says (RFC 9002 section 7).
            self.max_flight_bytes = connection._max_datagram_size
        self._flight_bytes = 0
        self._packet = None
        self._buffer.seek(0)

    def begin_lone(self, connection: QuicConnection, peer_cid: bytes, crypto: CryptoPair) -> None:
        """Begin a flush of one packet that fills its datagram, whatever the window says, to the peer by this id."""
        self.renew(connection)
        self._peer_cid = peer_cid
        self._header_size = 3 + len(peer_cid)
        self.max_flight_bytes = self._buffer_capacity
        self.quic_logger_frames = []
        self.start_packet(PACKET, crypto)
        self._datagram_needs_padding = True

    def start_packet(self, packet_type: QuicPacketType, crypto: CryptoPair) -> None:
        """Start a packet, and with it a datagram; the one before is finished."""
        if self._packet is not None:
            self._end_packet()
        assert self.max_flight_bytes is not None
        self._flight_capacity = min(self._buffer_capacity, self.max_flight_bytes - self._flight_bytes)
        self._packet = QuicSentPacket(ONE_RTT, False, False, False, self._packet_number, PACKET)
        self._packet_crypto = crypto
        self._buffer.seek(self._header_size)

    def _end_packet(self) -> None:
        packet, crypto, buf = self._packet, self._packet_crypto, self._buffer
        assert packet is not None and crypto is not None
        self._packet = None
        header_size, size = self._header_size, buf.tell()
        if size <= header_size:
            return
        padding = header_size + LEAST_PAYLOAD - size
        if self._datagram_needs_padding:
            # A path is probed with full datagrams (RFC 9000 section 8.2.1).
            padding = max(padding, self._flight_capacity - size - TAG_SIZE)
            self._datagram_needs_padding = False
        if padding > 0:
            buf.push_bytes(bytes(padding))
            size += padding
            packet.in_flight = True
        number = self._packet_number
        buf.seek(0)
        buf.push_uint8(FIRST_BYTE | self._spin_bit << 5 | crypto.key_phase << 2)
        buf.push_bytes(self._peer_cid)
        buf.push_uint16(number & 0xFFFF)
        datagram = crypto.encrypt_packet(buf.data_slice(0, header_size), buf.data_slice(header_size, size), number)
        packet.sent_bytes = len(datagram)
        if packet.in_flight:
            self._flight_bytes += packet.sent_bytes
        self._packets.append(packet)
        self._datagrams.append(datagram)
        self._packet_number = number + 1

    def flush(self) -> tuple[list[bytes], list[QuicSentPacket]]:
        """Return what was built since :meth:`renew`."""
        if self._packet is not None:
            self._end_packet()
        datagrams, packets = self._datagrams, self._packets
        self._datagrams, self._packets = [], []
        return datagrams, packets


class ShortWay(StreamTable):
    """The part of a connection that turns what is to be sent into datagrams."""

    _short_builder: ShortBuilder | None = None
    _filled = False
    """Whether a datagram was filled since ``_add_probe`` was called last."""
    _probe_due = False
    """Whether ``_add_probe`` is to be called: a datagram was filled, or a probe of a path or its size is due."""

    def _datagrams(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        if (
            not self._handshake_confirmed
            or self._close_pending
            or self._state is not QuicConnectionState.CONNECTED
            or len(self._network_paths) != 1
            or not self._network_paths[0].is_validated
            or self._remote_preferred_address is not None
            or self._quic_logger is not None
        ):
            datagrams_and_paths = QuicConnection.datagrams_to_send(self, now)
            if self._probe_due:
                self._add_probe(datagrams_and_paths, now)
            return datagrams_and_paths
        builder = self._short_builder
        if builder is None or builder._buffer_capacity != self._max_datagram_size:
            builder = self._short_builder = self._make_builder(self._max_datagram_size)
        builder.renew(self)
        self._pacing_at = None
        path = self._network_paths[0]
        try:  # noqa: SIM105 - contextlib.suppress would cost as much as a frame
            self._write_application(builder, path, now)
        except QuicPacketBuilderStop:
            pass  # what did not fit leaves with the next flush
        datagrams, packets = builder.flush()
        if packets:
            self._packet_number += len(packets)
            self._register(packets, now)
        addr = path.addr
        path.bytes_sent += sum(map(len, datagrams))
        datagrams_and_paths = [(datagram, addr) for datagram in datagrams]
        if self._probe_due:
            self._add_probe(datagrams_and_paths, now)
        return datagrams_and_paths

    def _add_probe(self, datagrams: list[tuple[bytes, NetworkAddress]], now: float) -> None:
        """Add the probe that is due, if one is."""

    def _make_builder(self, size: int) -> ShortBuilder:
        assert self._version is not None
        return ShortBuilder(
            host_cid=self.host_cid,
            is_client=self._is_client,
            max_datagram_size=size,
            peer_cid=self._peer_cid.cid,
            version=self._version,
        )

    def _register(self, packets: list[QuicSentPacket], now: float) -> None:
        """What aioquic's ``_flush_builder`` does for packets of this kind."""
        loss, space = self._loss, self._app_space
        elicits = False
        for packet in packets:
            packet.sent_time = now
            loss.on_packet_sent(packet=packet, space=space)
            elicits = elicits or packet.is_ack_eliciting
        if elicits and not self._ack_eliciting_sent_since_receipt:
            # RFC 9000 section 10.1: silence begins anew with the first that asks for an answer.
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = True
