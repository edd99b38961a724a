"""Taking packets in: what may wait, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.connection import QuicConnectionError, QuicReceiveContext
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import Epoch

from helpers.quic_pair import SERVER_ADDR, Pair, sessions_of
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.receiving import MAX_CRYPTO


@pytest.fixture
def pair() -> Pair:
    return Pair().connect()


def frames(*parts: int | bytes) -> bytes:
    """Variable-length integers and bytes, one after another."""
    buf = Buffer(capacity=70_000)
    for part in parts:
        if isinstance(part, bytes):
            buf.push_bytes(part)
        else:
            buf.push_uint_var(part)
    return buf.data


def take(quic: Any, payload: bytes, epoch: Epoch = Epoch.ONE_RTT) -> bool:
    path = quic._network_paths[0]
    result: bool = quic._take_frames(QuicReceiveContext(epoch, quic.host_cid, path, None, 1000.0, 1), payload)
    return result


def refused(quic: Any, payload: bytes, epoch: Epoch = Epoch.ONE_RTT) -> int:
    with pytest.raises(QuicConnectionError) as caught:
        take(quic, payload, epoch)
    return caught.value.error_code


def test_what_elicits_an_ack(pair: Pair) -> None:
    quic = pair.server.driver.quic
    assert take(quic, frames(0x01)) is True
    assert take(quic, frames(0x00, 0x00)) is False
    assert take(quic, frames(0x02, 0, 0, 0, 0)) is False
    assert take(quic, frames(0x02, 0, 0, 0, 0, 0x01)) is True


def test_malformed_packets(pair: Pair) -> None:
    quic = pair.server.driver.quic
    assert refused(quic, b"") == QuicErrorCode.PROTOCOL_VIOLATION
    assert refused(quic, frames(0x21)) == QuicErrorCode.FRAME_ENCODING_ERROR
    assert refused(quic, frames(0x0A, 0, 100, b"short")) == QuicErrorCode.FRAME_ENCODING_ERROR
    assert refused(quic, b"\x40") == QuicErrorCode.FRAME_ENCODING_ERROR


def test_limits_of_flow_control(pair: Pair) -> None:
    quic = pair.server.driver.quic
    window = quic.limits.initial_window
    assert take(quic, frames(0x0E, 0, window - 1, 1, b"x"))
    assert refused(quic, frames(0x0E, 0, window, 1, b"x")) == QuicErrorCode.FLOW_CONTROL_ERROR
    assert refused(quic, frames(0x04, 4, 0, window + 1)) == QuicErrorCode.FLOW_CONTROL_ERROR
    ahead = quic._local_max_data.value - quic._local_max_data.used
    for stream in range(2, 2 + ahead // window):
        take(quic, frames(0x0E, stream * 4, window - 1, 1, b"x"))
    assert refused(quic, frames(0x0E, 4000 * 0 + 4 * 900, window - 1, 1, b"x")) == QuicErrorCode.FLOW_CONTROL_ERROR


def test_a_gap_counts_as_held(pair: Pair) -> None:
    quic = pair.server.driver.quic
    take(quic, frames(0x0E, 0, 9_999, 1, b"x"))
    assert quic.credit.held == 10_000


def test_a_stream_of_the_wrong_initiator_and_final_sizes(pair: Pair) -> None:
    quic = pair.server.driver.quic
    assert refused(quic, frames(0x0A, 1, 1, b"x")) == QuicErrorCode.STREAM_STATE_ERROR
    assert refused(quic, frames(0x0A, 6, 1, b"x")) == QuicErrorCode.STREAM_LIMIT_ERROR
    take(quic, frames(0x0B, 0, 1, b"x"))
    assert refused(quic, frames(0x0E, 0, 1, 1, b"x")) == QuicErrorCode.FINAL_SIZE_ERROR


def test_frames_for_a_stream_that_is_over_are_ignored(pair: Pair) -> None:
    near = pair.open()
    near.transport.write(b"x")
    near.transport.close()
    pair.run(0.5)
    quic = pair.server.driver.quic
    assert not sessions_of(quic)
    for payload in (
        frames(0x0B, 0, 1, b"x"),
        frames(0x04, 0, 0, 1),
        frames(0x05, 0, 0),
        frames(0x11, 0, 100),
        frames(0x15, 0, 100),
    ):
        assert take(quic, payload)
    assert quic.next_event() is None


def test_a_handshake_that_never_ends_is_bounded() -> None:
    """Bytes after a gap, and one message whose length says 16 MiB."""
    pair = Pair()
    pair.client.driver.connect(SERVER_ADDR)
    pair.run(0.016)  # the server has the first flight
    quic = pair.server.driver.quic
    start = quic._crypto_streams[Epoch.HANDSHAKE].receiver.starting_offset()
    far = start + MAX_CRYPTO
    assert refused(quic, frames(0x06, far, 1, b"x"), Epoch.HANDSHAKE) == QuicErrorCode.CRYPTO_BUFFER_EXCEEDED
    piece = 1000
    message = b"\x0b\xff\xff\xff" + bytes(piece - 4)
    code = 0
    for number in range(200):
        try:
            take(quic, frames(0x06, start + number * piece, piece, message), Epoch.HANDSHAKE)
        except QuicConnectionError as exc:
            code = exc.error_code
            break
        message = bytes(piece)
    assert code == QuicErrorCode.CRYPTO_BUFFER_EXCEEDED
    assert len(quic.tls._receive_buffer) <= MAX_CRYPTO


def test_a_peer_that_says_it_is_blocked_is_told_its_limit_again(pair: Pair) -> None:
    pair = Pair(server=QuicLimits(max_streams=10)).connect()
    near = pair.open()
    near.transport.write(bytes(200_000))
    pair.run(1.0)
    quic = pair.server.driver.quic
    stream = quic._streams[0]
    assert stream.max_stream_data_local_sent == stream.max_stream_data_local > quic.limits.initial_window
    take(quic, frames(0x15, 0, quic.limits.initial_window))
    assert stream.max_stream_data_local_sent == 0
    sent = pair.down.sent
    pair.server.driver.touch()
    pair.run(0.05)
    assert pair.down.sent > sent
    assert stream.max_stream_data_local_sent == stream.max_stream_data_local
