"""The answers of a server that keeps nothing: version negotiation, Retry, and a close in place of a handshake.

Bytes in, bytes out. None of them is larger than the packet that it answers, which is at least 1200 bytes long.
"""

from __future__ import annotations

from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.connection import TRANSPORT_CLOSE_FRAME_CAPACITY
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
)
from aioquic.quic.packet_builder import QuicPacketBuilder

__all__ = ["FIRST_DATAGRAM_SIZE", "VERSIONS", "close_packet", "retry_packet", "version_negotiation_packet"]

VERSIONS: tuple[int, ...] = (QuicProtocolVersion.VERSION_1,)
"""What we speak."""

FIRST_DATAGRAM_SIZE = SMALLEST_MAX_DATAGRAM_SIZE
"""Bytes below which a datagram is no beginning of a connection (RFC 9000 section 14.1) and gets no answer."""


def version_negotiation_packet(*, destination_id: bytes, source_id: bytes) -> bytes:
    """Answers a packet of a version that we do not speak, with its two connection ids (RFC 9000 section 6.1)."""
    return encode_quic_version_negotiation(
        source_cid=destination_id, destination_cid=source_id, supported_versions=list(VERSIONS)
    )


def retry_packet(*, version: int, destination_id: bytes, source_id: bytes, retry_id: bytes, token: bytes) -> bytes:
    """Answers an Initial packet, by its two connection ids, with a token to come back with, to ``retry_id``."""
    return encode_quic_retry(
        version=version,
        source_cid=retry_id,
        destination_cid=source_id,
        original_destination_cid=destination_id,
        retry_token=token,
    )


def close_packet(*, version: int, destination_id: bytes, source_id: bytes, error: QuicErrorCode) -> bytes:
    """Answers an Initial packet, by its two connection ids, with a close, for which we need not hold the connection.

    INVALID_TOKEN by RFC 9000 section 8.1.3, CONNECTION_REFUSED by section 5.2.2.
    """
    crypto = CryptoPair()
    crypto.setup_initial(cid=destination_id, is_client=False, version=version)
    builder = QuicPacketBuilder(
        host_cid=destination_id,
        peer_cid=source_id,
        is_client=False,
        max_datagram_size=FIRST_DATAGRAM_SIZE,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=TRANSPORT_CLOSE_FRAME_CAPACITY)
    frame.push_uint_var(error)
    frame.push_uint_var(QuicFrameType.PADDING)
    frame.push_uint_var(0)
    datagrams, _ = builder.flush()
    return datagrams[0]
