"""What we rely on in aioquic without a promise, at either end: each name, and what the name does."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import aioquic.quic.connection
import aioquic.quic.stream
import pytest
from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.rangeset import RangeSet

import pgtrunk.quic
import pgtrunk_gateway.quic
from helpers.quic_pair import Pair, present
from pgtrunk.quic import private_names

SOURCES = [path for each in (pgtrunk, pgtrunk_gateway) for path in sorted(Path(each.quic.__file__).parent.glob("*.py"))]
LISTED = [(place, name) for place, names in private_names.REQUIRED.items() for name in names.split()]


@pytest.mark.parametrize(("place", "name"), LISTED, ids=[f"{place}.{name}" for place, name in LISTED])
def test_name_exists(place: str, name: str) -> None:
    assert f"{place.replace(':', '.')}.{name}" not in private_names.missing_names()


def test_a_missing_name_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(QuicConnection, "_write_application")
    monkeypatch.delattr(aioquic.quic.stream, "FinalSizeError")
    monkeypatch.setitem(private_names.REQUIRED, "aioquic.nowhere", "x")
    with pytest.raises(private_names.AioquicMismatch) as caught:
        private_names.check()
    assert isinstance(caught.value, ImportError)
    assert str(caught.value) == (
        "aioquic 1.7.2 lacks what pgtrunk relies on: aioquic.quic.stream.FinalSizeError, "
        "aioquic.quic.connection.QuicConnection._write_application, aioquic.nowhere; "
        "install a version that pgtrunk's own requirements allow (aioquic>=1.7.2,<1.8)"
    )


def test_a_class_that_changed_its_initializer_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def __init__(self, something: int) -> None: ...

    monkeypatch.setattr(aioquic.quic.connection, "Limit", Other)
    missing = private_names.missing_names()
    assert "aioquic.quic.connection.Limit.value" in missing


def test_every_private_name_in_use_is_listed() -> None:
    """Whatever starts with an underscore, exists on one of aioquic's objects, and is not ours, must be in the list."""
    listed = {name for _, name in LISTED}
    used: dict[str, str] = {}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                used[node.attr] = source.name
            elif isinstance(node, ast.FunctionDef):
                used[node.name] = source.name
    examples = [make() for make in private_names._examples().values()]
    known = {name for name in used if name.startswith("_") and any(private_names._has(each, name) for each in examples)}
    known = {name for name in known if not name.startswith("__")}
    # Of server files, which pin what they use beside their own tests.
    elsewhere = {name for name in known if used[name] in SERVER_FILES}
    assert known - listed - elsewhere == set()


SERVER_FILES = {
    "demux.py", "listener.py", "retry.py", "server.py", "server_tls.py", "stateless.py", "tickets.py", "udp.py",
    "client_auth.py", "credentials.py", "connection_id.py", "admission.py", "sealing.py", "sockets.py", "accepted.py",
}  # fmt: skip


# -- behaviour


def stock(**settings: Any) -> QuicConnection:
    return QuicConnection(configuration=QuicConfiguration(**settings))


def test_frame_handlers_map_types_to_bound_methods_and_epochs() -> None:
    handlers = stock()._QuicConnection__frame_handlers  # type: ignore[attr-defined]
    assert set(handlers) == {*range(0x1F), 0x30, 0x31}
    for handler, epochs in handlers.values():
        assert callable(handler)
        assert tls.Epoch.ONE_RTT in epochs, "a frame that 1-RTT packets may not carry would need a look at the epoch"


def test_frames_that_elicit_no_ack_are_those_that_receiving_knows() -> None:
    from aioquic.quic.packet import NON_ACK_ELICITING_FRAME_TYPES

    from pgtrunk.quic.receiving import SILENT_FRAMES

    assert SILENT_FRAMES == NON_ACK_ELICITING_FRAME_TYPES
    from aioquic.quic.packet import NON_IN_FLIGHT_FRAME_TYPES

    assert 0x08 not in NON_IN_FLIGHT_FRAME_TYPES


def test_application_packets_are_written_by_one_method_of_three_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair().connect()
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(pair.client.driver.quic, "_write_application", lambda *args: seen.append(args))
    pair.client.driver.quic.send_ping(1)
    pair.client.driver.flush()
    builder, path, now = seen[0]
    assert isinstance(builder, QuicPacketBuilder)
    assert path is pair.client.driver.quic._network_paths[0]
    assert now == pair.loop.time()


def test_aioquic_advertises_25_ms_and_acts_in_one() -> None:
    """The day this changes, acks.py can lose its correction."""
    from aioquic.buffer import Buffer  # type: ignore[attr-defined]
    from aioquic.quic.packet import pull_quic_transport_parameters

    quic = stock()
    quic._version = 1
    parameters = pull_quic_transport_parameters(Buffer(data=quic._serialize_transport_parameters()))
    assert parameters.max_ack_delay == 25
    assert quic._ack_delay == 0.001


def test_aioquic_takes_the_peers_delay_over_but_not_its_exponent() -> None:
    assert stock()._loss.max_ack_delay == 0.025
    assert stock()._remote_ack_delay_exponent == 3


def test_limits_are_read_when_the_first_flight_is_made() -> None:
    quic = stock()
    assert [quic._local_max_streams_bidi.value, quic._local_max_streams_uni.value] == [128, 128]
    assert quic._local_max_data.frame_type == QuicFrameType.MAX_DATA


def test_the_first_connection_id_is_kept_in_three_places() -> None:
    quic = stock()
    assert quic.host_cid == quic._host_cids[0].cid == quic._local_initial_source_connection_id
    server = QuicConfiguration(is_client=False)
    present(server)
    quic = QuicConnection(configuration=server, original_destination_connection_id=bytes(8))
    assert len(quic._host_cids[0].stateless_reset_token) == 16


def test_a_receiver_keeps_a_gap_as_zeros_and_a_range() -> None:
    from aioquic.quic.packet import QuicStreamFrame

    receiver = aioquic.quic.stream.QuicStreamReceiver(0, True)
    assert receiver.handle_frame(QuicStreamFrame(data=b"x", offset=99)) is None
    assert len(receiver._buffer) == 100
    assert isinstance(receiver._ranges, RangeSet)
    assert (receiver.highest_offset, receiver._buffer_start) == (100, 0)


def test_a_reset_keeps_the_code_of_the_first_call() -> None:
    sender = aioquic.quic.stream.QuicStreamSender(0, True)
    sender.reset(3)
    sender.reset(4)
    assert (sender._reset_error_code, sender.reset_pending, sender.buffer_is_empty) == (3, True, True)


def test_builder_frames_need_only_the_flags_and_the_handler_that_sending_sets() -> None:
    """sending.py writes STREAM frames around ``start_frame``; this is all that ``start_frame`` would do for one."""
    from aioquic.quic.crypto import CryptoPair

    crypto = CryptoPair()
    crypto.setup_initial(bytes(8), True, 1)
    builder = QuicPacketBuilder(host_cid=bytes(8), peer_cid=bytes(8), version=1, is_client=True, max_datagram_size=1200)
    builder.start_packet(QuicPacketType.ONE_RTT, crypto)
    packet = builder._packet
    assert packet is not None
    before = dict(vars(packet))
    position = builder._buffer.tell()
    room = builder.remaining_flight_space
    assert room == builder._flight_capacity - position - 16

    def handler(*_: object) -> None: ...

    builder.start_frame(0x0E, 20, handler, (1,))
    changed = {name for name, value in vars(packet).items() if value != before[name]} | {"delivery_handlers"}
    assert changed == {"is_ack_eliciting", "in_flight", "delivery_handlers"}
    assert packet.delivery_handlers == [(handler, (1,))]
    assert builder._buffer.tell() == position + 1


def test_delivery_is_reported_as_acked_or_lost_never_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sender relies on it: a probe timeout reports its packets as lost, and a late ACK for them is ignored."""
    pair = Pair().connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.run(0.3)
    reports: list[Any] = []
    quic = pair.client.driver.quic
    plain = quic._on_data_delivered

    def record(delivery: Any, *args: Any) -> None:
        reports.append((delivery.name, args[1:]))
        plain(delivery, *args)

    monkeypatch.setattr(quic, "_on_data_delivered", record)
    pair.down.delay = 0.4  # the ACK comes after the probe timeout
    near.transport.write(b"y")
    pair.run(2.0)
    assert {args for _, args in reports} == {(1, 2, False)}
    assert [name for name, _ in reports] == ["LOST"] * (len(reports) - 1) + ["ACKED"]
    assert len(reports) > 1


def test_a_close_event_is_set_before_it_is_queued() -> None:
    """driver.py ends streams as soon as it is set; aioquic queues it three probe timeouts later."""
    quic = Pair().connect().client.driver.quic
    quic.close(QuicErrorCode.NO_ERROR, reason_phrase="done")
    assert quic._close_event is not None
    assert quic._close_pending
    assert quic.next_event() is None


def test_a_tls_context_can_be_taken_over_by_its_attributes() -> None:
    context = tls.Context(is_client=True, server_name="gateway", verify_mode=2)
    assert (context._server_name, context._verify_mode) == ("gateway", 2)
    assert context._peer_certificate is None
    assert context._receive_buffer == b""
    assert context._certificate_request is None
