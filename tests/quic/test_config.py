"""Limits, and what aioquic is told of them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from aioquic.quic.packet import QuicProtocolVersion

from pgtrunk.quic.config import CID_LENGTH, QuicLimits, quic_configuration


def test_limits_are_values() -> None:
    limits = QuicLimits(max_streams=5)
    assert limits == QuicLimits(max_streams=5)
    with pytest.raises(FrozenInstanceError):
        limits.max_streams = 6  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        ({}, 16_777),
        ({"max_streams": 100}, 64 << 10),
        ({"max_streams": 0}, 64 << 10),
        ({"max_streams": 100, "connection_budget": 1 << 20}, 5_242),
        ({"max_streams": 100, "stream_window": 1000}, 1000),
    ],
)
def test_streams_start_with_a_window_that_all_of_them_can_fill(settings: dict[str, Any], window: int) -> None:
    assert QuicLimits(**settings).initial_window == window


def test_the_advertised_delay_is_rounded_up_and_has_the_loops_lateness_in_it() -> None:
    assert [QuicLimits(ack_delay=delay).max_ack_delay for delay in (0.0, 0.004, 0.0041, 0.025)] == [1, 5, 6, 26]


def test_aioquic_is_told() -> None:
    limits = QuicLimits(idle_timeout=7.0, max_datagram_size=9000)
    configuration = quic_configuration(limits, is_client=False, alpn=("pgtrunk/1", "postgresql"))
    assert configuration.is_client is False
    assert configuration.alpn_protocols == ["pgtrunk/1", "postgresql"]
    assert configuration.idle_timeout == 7.0
    # Where it begins; what the path carries beyond is found out.
    assert configuration.max_datagram_size == 1200
    assert configuration.connection_id_length == CID_LENGTH == 8
    assert configuration.supported_versions == [QuicProtocolVersion.VERSION_1]
