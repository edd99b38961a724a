"""Names of aioquic that pgtrunk.quic and pgtrunk_gateway.quic rely on though aioquic promises nothing about them, and
the check that they exist.

It runs before any other module of the two is imported: an aioquic that has moved on is refused in one sentence, instead
of by an AttributeError in the middle of a session. What the names *do* is pinned by tests/quic/test_private_names.py.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pgtrunk.errors import PgtrunkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["REQUIRED", "AioquicMismatch", "check", "missing_names"]


class AioquicMismatch(PgtrunkError, ImportError):
    """The installed aioquic lacks names that pgtrunk.quic relies on."""


REQUIRED: Mapping[str, str] = {
    "aioquic._buffer": "Buffer BufferReadError",
    "aioquic._crypto": "CryptoError",
    "aioquic.tls": (
        "Alert AlertBadCertificate AlertCertificateExpired AlertDescription AlertUnsupportedCertificate "
        "CipherSuite Context Direction Epoch NewSessionTicket SessionTicket State pull_certificate "
        "ExtensionType cipher_suite_hash push_new_session_ticket"
    ),
    "aioquic.quic.congestion.base": "K_INITIAL_WINDOW K_MINIMUM_WINDOW",
    "aioquic.quic.recovery": "MAX_ACK_RANGES QuicPacketPacer QuicPacketSpace",
    "aioquic.quic.stream": "FinalSizeError QuicStream QuicStreamReceiver QuicStreamSender StreamFinishedError",
    "aioquic.quic.packet": (
        "QuicErrorCode QuicFrameType QuicPacketType QuicProtocolVersion QuicStreamFrame encode_quic_retry "
        "encode_quic_version_negotiation pull_ack_frame pull_quic_header pull_quic_transport_parameters "
        "push_quic_transport_parameters"
    ),
    "aioquic.quic.logger": "QLOG_VERSION QuicLogger QuicLoggerTrace",
    "aioquic.quic.packet_builder": "QuicDeliveryState QuicPacketBuilder QuicPacketBuilderStop QuicSentPacket",
    "aioquic.quic.connection": (
        "ACK_FRAME_CAPACITY CONNECTION_LIMIT_FRAME_CAPACITY END_STATES Limit MAX_STREAM_DATA_FRAME_CAPACITY "
        "QuicConnection QuicConnectionAdapter QuicConnectionError QuicConnectionId QuicConnectionState "
        "PATH_CHALLENGE_FRAME_CAPACITY QuicNetworkPath QuicReceiveContext RESET_STREAM_FRAME_CAPACITY "
        "STOP_SENDING_FRAME_CAPACITY TRANSPORT_CLOSE_FRAME_CAPACITY stream_is_client_initiated stream_is_unidirectional"
    ),
    "aioquic.quic.connection:QuicConnection": (
        "_QuicConnection__frame_handlers _ack_delay _add_network_path _handle_path_response_frame _peer_cid_available "
        "_flush_builder _retire_peer_cid _send_probing_frames "
        "_local_ack_delay_exponent _loss_at _on_ack_delivery _peer_cid "
        "_remote_max_idle_timeout _remote_preferred_address _version _ack_eliciting_sent_since_receipt "
        "_assert_stream_can_send _close_at _close_end _close_event _close_pending _configuration _confirm_handshake "
        "_crypto_buffers _crypto_streams _cryptos _events _get_or_create_stream _handle_ack_frame "
        "_handle_crypto_frame _handle_max_data_frame _handle_max_stream_data_frame _handle_reset_stream_frame "
        "_handle_stop_sending_frame _handle_stream_data_blocked_frame _handle_stream_frame _handshake_complete "
        "_handshake_confirmed _handshake_done_pending _host_cid_seq _host_cids _idle_timeout _initialize _is_client "
        "_local_initial_source_connection_id _local_max_data _local_max_stream_data_bidi_local "
        "_local_max_stream_data_bidi_remote _local_max_stream_data_uni _local_max_streams_bidi _local_max_streams_uni "
        "_local_next_stream_id_bidi _local_next_stream_id_uni _logger _loss _max_datagram_size _network_paths "
        "_on_connection_limit_delivery _on_new_connection_id_delivery _pacing_at _packet_number "
        "_parse_transport_parameters _push_crypto_data _payload_received _ping_pending _probe_pending _quic_logger "
        "_remote_ack_delay_exponent _remote_active_connection_id_limit _remote_max_data _remote_max_data_used "
        "_remote_max_stream_data_bidi_local _remote_max_stream_data_bidi_remote _remote_max_stream_data_uni "
        "_remote_max_streams_bidi _remote_max_streams_uni _replenish_connection_ids _retire_connection_ids "
        "_send_probe _serialize_transport_parameters _spaces _spin_bit _spin_highest_pn _state _stream_is_discarded "
        "_streams _write_ack_frame _write_application _write_connection_limits _write_crypto_frame "
        "_write_handshake_done_frame _write_new_connection_id_frame _write_path_challenge_frame "
        "_write_path_response_frame _write_ping_frame _write_retire_connection_id_frame host_cid"
    ),
    "aioquic.quic.connection:QuicNetworkPath": (
        "addr bytes_received bytes_sent is_validated local_challenge_sent peer_cid remote_challenges "
        "validation_deadline"
    ),
    "aioquic.quic.connection:Limit": "frame_type name sent used value",
    "aioquic.quic.connection:QuicConnectionId": "cid sequence_number stateless_reset_token was_sent",
    "aioquic.quic.stream:QuicStreamSender": (
        "_acked _acked_fin _buffer _buffer_fin _buffer_start _buffer_stop _pending_eof _reset_error_code "
        "buffer_is_empty get_reset_frame highest_offset is_finished on_reset_delivery reset reset_pending write"
    ),
    "aioquic.quic.stream:QuicStreamReceiver": (
        "_buffer _buffer_start _final_size _ranges _stop_error_code get_stop_frame handle_frame handle_reset "
        "highest_offset is_finished starting_offset stop stop_pending"
    ),
    "aioquic.quic.stream:QuicStream": (
        "is_blocked is_finished max_stream_data_local max_stream_data_local_sent max_stream_data_remote receiver "
        "sender stream_id"
    ),
    "aioquic.quic.recovery:QuicPacketRecovery": (
        "_cc _pacer _pto_count _rtt_initial _rtt_initialized _rtt_latest _rtt_min _rtt_smoothed _rtt_variance "
        "_time_of_last_sent_ack_eliciting_packet bytes_in_flight congestion_window get_probe_timeout max_ack_delay "
        "_on_packets_lost on_packet_sent peer_completed_address_validation spaces"
    ),
    "aioquic.quic.recovery:QuicPacketPacer": (
        "_max_datagram_size evaluation_time next_send_time update_after_send update_bucket update_rate"
    ),
    "aioquic.quic.recovery:QuicPacketSpace": (
        "ack_at ack_eliciting_in_flight ack_queue expected_packet_number largest_acked_packet largest_received_packet "
        "largest_received_time loss_time received_packets sent_packets"
    ),
    "aioquic.quic.congestion.reno:RenoCongestionControl": (
        "bytes_in_flight congestion_window on_packets_expired on_packets_lost on_persistent_congestion ssthresh"
    ),
    "aioquic.quic.packet_builder:QuicPacketBuilder": (
        "_buffer _buffer_capacity _datagram_needs_padding _datagrams _end_packet _flight_bytes _flight_capacity "
        "_header_size _packet _packet_crypto _packet_number _packets _peer_cid _spin_bit flush max_flight_bytes "
        "max_total_bytes packet_is_empty remaining_buffer_space remaining_flight_space start_frame start_packet"
    ),
    "aioquic.quic.packet_builder:QuicSentPacket": (
        "delivery_handlers epoch in_flight is_ack_eliciting packet_number quic_logger_frames sent_bytes sent_time"
    ),
    "aioquic.quic.crypto:CryptoPair": "_update_key decrypt_packet encrypt_packet key_phase recv send",
    "aioquic.quic.crypto:CryptoContext": "decrypt_packet is_valid teardown",
    "aioquic.tls:Context": (
        "_build_session_ticket _certificate_request _client_handle_certificate_verify _peer_certificate "
        "_peer_certificate_chain _psk_key_exchange_mode _receive_buffer _request_client_certificate "
        "_server_handle_certificate _server_handle_certificate_verify _server_handle_finished _server_handle_hello "
        "_server_name _session_resumed _set_state _supported_groups _verify_mode early_data_accepted "
        "get_session_ticket_cb handshake_extensions key_schedule new_session_ticket_cb update_traffic_key_cb"
    ),
}
"""Names by module, or by "module:Class"; those of a class are looked for on an instance."""


def _examples() -> Mapping[str, Callable[[], Any]]:
    """How to get an instance of each class of ``REQUIRED``: most attributes are set by initializers only."""
    from aioquic import tls
    from aioquic.quic import connection, crypto, packet_builder, recovery, stream
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.congestion.reno import RenoCongestionControl
    from aioquic.quic.packet import QuicPacketType

    def quic() -> Any:
        return connection.QuicConnection(configuration=QuicConfiguration())

    def sent() -> Any:
        return packet_builder.QuicSentPacket(tls.Epoch.ONE_RTT, False, False, False, 0, QuicPacketType.ONE_RTT)

    def builder() -> Any:
        return packet_builder.QuicPacketBuilder(
            host_cid=b"", peer_cid=b"", version=1, is_client=True, max_datagram_size=1200
        )

    return {
        "QuicConnection": quic,
        "QuicNetworkPath": lambda: connection.QuicNetworkPath(("", 0)),
        "Limit": lambda: connection.Limit(0, "", 0),
        "QuicConnectionId": lambda: connection.QuicConnectionId(b"", 0),
        "QuicStreamSender": lambda: stream.QuicStreamSender(0, True),
        "QuicStreamReceiver": lambda: stream.QuicStreamReceiver(0, True),
        "QuicStream": lambda: stream.QuicStream(0),
        "QuicPacketRecovery": lambda: quic()._loss,
        "QuicPacketPacer": lambda: recovery.QuicPacketPacer(max_datagram_size=1200),
        "QuicPacketSpace": lambda: recovery.QuicPacketSpace(),
        "RenoCongestionControl": lambda: RenoCongestionControl(max_datagram_size=1200),
        "QuicPacketBuilder": builder,
        "QuicSentPacket": sent,
        "CryptoPair": crypto.CryptoPair,
        "CryptoContext": crypto.CryptoContext,
        "Context": lambda: tls.Context(is_client=True),
    }


def missing_names() -> list[str]:
    """Return what ``REQUIRED`` lists and the installed aioquic does not have, as "module.Class.name"."""
    missing: list[str] = []
    for place, names in REQUIRED.items():
        module_name, _, class_name = place.partition(":")
        try:
            holder: Any = importlib.import_module(module_name)
        except ImportError:
            missing.append(module_name)
            continue
        if class_name:
            if not hasattr(holder, class_name):
                continue  # named by its module's own line
            holder = _example(class_name, getattr(holder, class_name))
        missing += [f"{place.replace(':', '.')}.{name}" for name in names.split() if not _has(holder, name)]
    return missing


def _example(class_name: str, cls: type) -> Any:
    """Return an instance, or the class where initializers have changed: then its attributes are what is reported."""
    try:
        return _examples()[class_name]()
    except (TypeError, ValueError, AttributeError, ImportError):
        return cls


def _has(holder: Any, name: str) -> bool:
    # Some properties of a packet builder assert that a packet has been started: look at the class first.
    return hasattr(type(holder), name) or hasattr(holder, name)


def check() -> None:
    """Raise AioquicMismatch, which names what is missing and the version, unless all is there."""
    missing = missing_names()
    if missing:
        raise AioquicMismatch(
            f"aioquic {metadata.version('aioquic')} lacks what pgtrunk relies on: {', '.join(missing)}; "
            "install a version that pgtrunk's own requirements allow (aioquic>=1.7.2,<1.8)"
        )
