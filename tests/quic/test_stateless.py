from __future__ import annotations

import pytest
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, QuicProtocolVersion, pull_quic_header

from pgtrunk_gateway.quic.stateless import FIRST_DATAGRAM_SIZE, close_packet, retry_packet, version_negotiation_packet

SERVER = ("192.0.2.1", 6432)


class Asking:
    """A stock client that has sent its first datagram."""

    def __init__(self, version: int = QuicProtocolVersion.VERSION_1) -> None:
        offers: list[int] = [version, QuicProtocolVersion.VERSION_1]
        self.quic = QuicConnection(configuration=QuicConfiguration(supported_versions=offers, original_version=version))
        self.quic.connect(SERVER, now=0.0)
        ((self.datagram, _),) = self.quic.datagrams_to_send(now=0.0)
        self.header = pull_quic_header(Buffer(data=self.datagram), host_cid_length=8)

    def hears(self, answer: bytes) -> bytes:
        assert len(answer) <= len(self.datagram)
        self.quic.receive_datagram(answer, SERVER, now=0.1)
        sent = self.quic.datagrams_to_send(now=0.1)
        return sent[0][0] if sent else b""


def test_retry_is_understood() -> None:
    client = Asking()
    header = client.header
    answer = client.hears(
        retry_packet(
            version=QuicProtocolVersion.VERSION_1,
            destination_id=header.destination_cid,
            source_id=header.source_cid,
            retry_id=b"retry-id",
            token=b"the token",
        )
    )
    second = pull_quic_header(Buffer(data=answer), host_cid_length=8)
    assert (second.token, second.destination_cid) == (b"the token", b"retry-id")
    assert len(answer) >= FIRST_DATAGRAM_SIZE


def test_version_negotiation_is_understood() -> None:
    client = Asking(QuicProtocolVersion.VERSION_2)
    header = client.header
    answer = client.hears(
        version_negotiation_packet(destination_id=header.destination_cid, source_id=header.source_cid)
    )
    second = pull_quic_header(Buffer(data=answer), host_cid_length=8)
    assert (second.version, second.packet_type) == (QuicProtocolVersion.VERSION_1, QuicPacketType.INITIAL)


@pytest.mark.parametrize("error", [QuicErrorCode.INVALID_TOKEN, QuicErrorCode.CONNECTION_REFUSED])
def test_a_close_is_understood(error: QuicErrorCode) -> None:
    client = Asking()
    header = client.header
    packet = close_packet(
        version=QuicProtocolVersion.VERSION_1,
        destination_id=header.destination_cid,
        source_id=header.source_cid,
        error=error,
    )
    assert len(packet) < 100
    client.hears(packet)
    client.quic.handle_timer(now=60.0)
    seen = []
    while (event := client.quic.next_event()) is not None:
        seen.append(event)
    (terminated,) = (event for event in seen if isinstance(event, events.ConnectionTerminated))
    assert terminated.error_code == error
