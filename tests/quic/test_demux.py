from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, QuicProtocolVersion
from hypothesis import given
from hypothesis import strategies as st

from helpers.demuxing import HERE, THERE, Client, Connection, World, header_of, long_packet, retried
from pgtrunk_gateway.quic.demux import read_long
from pgtrunk_gateway.quic.reception import REFUSALS_PER_SECOND

if TYPE_CHECKING:
    from pgtrunk_gateway.quic.admission import RetryMode

FIRST = Client().says()

# Known connections


def test_a_short_header_goes_to_its_connection() -> None:
    world, connection = World(), Connection()
    world.demux.add(b"12345678", connection)
    world.hears(b"\x4012345678 and the rest")
    assert connection.heard == [(b"\x4012345678 and the rest", HERE)]


def test_a_short_header_to_nobody_is_dropped_and_counted() -> None:
    world = World()
    assert world.hears(b"\x4012345678 and the rest") is None
    assert world.hears(b"\x40123") is None
    assert world.demux.counters.unknown == 2


def test_a_long_header_goes_to_its_connection_whatever_its_type() -> None:
    world, connection = World(), Connection()
    world.demux.add(b"d" * 8, connection)
    for first in (0xC0, 0xD0, 0xE0):
        world.hears(long_packet(1, first=first, size=60))
    assert len(connection.heard) == 3


def test_ids_come_and_go_without_a_trace() -> None:
    world, one, two = World(), Connection(), Connection()
    for n in range(5):
        world.demux.add(bytes([n]) * 8, one)
        world.demux.add(bytes([n + 100]) * 8, two)
    world.demux.remove(bytes([3]) * 8)
    world.demux.remove(b"unknown!")
    assert len(world.demux) == 9
    world.demux.forget(one)
    assert len(world.demux) == 5
    world.demux.forget(one)
    world.demux.forget(two)
    assert len(world.demux) == 0
    assert not world.demux._ids


def test_a_connection_that_fails_is_given_up_alone() -> None:
    world, broken, other = World(), Connection(raises=IndexError("ours")), Connection()
    world.demux.add(b"12345678", broken)
    world.demux.add(b"abcdefgh", other)
    world.hears(b"\x4012345678")
    world.hears(b"\x40abcdefgh")
    assert world.faults == [(broken, broken.raises)]
    assert len(other.heard) == 1
    assert world.demux.counters.faults == 1


# First packets


def test_an_initial_begins_a_connection_once() -> None:
    world, first = World(), Client().says()
    world.hears(first)
    world.hears(first)
    (connection,) = world.opened
    assert len(connection.heard) == 2
    assert connection.opening is not None
    assert connection.opening.original_id == connection.opening.destination_id == header_of(first).destination_cid
    assert connection.opening.retry_id is None
    assert world.admission.half_open == 1


def test_a_small_datagram_begins_nothing() -> None:
    world, first = World(), Client().says()
    assert world.hears(first[:1199]) is None
    assert world.opened == []


@pytest.mark.parametrize("first", [0xD0, 0xE0, 0xF0, 0x80], ids=["0-RTT", "Handshake", "Retry", "no fixed bit"])
def test_only_an_initial_begins_a_connection(first: int) -> None:
    world = World()
    assert world.hears(long_packet(1, first=first)) is None
    assert world.opened == []


@pytest.mark.parametrize("size", [0, 7, 21, 255])
def test_a_first_id_has_8_to_20_octets(size: int) -> None:
    world = World()
    assert world.hears(long_packet(1, destination=b"d" * size)) is None
    assert world.opened == []


def test_a_listener_that_closes_refuses_in_words() -> None:
    world, client = World(), Client()
    world.demux.reception.is_accepting = False
    answer = world.hears(client.says())
    assert answer is not None
    client.hears(answer)
    assert client.quic._close_event is not None
    assert client.quic._close_event.error_code == QuicErrorCode.CONNECTION_REFUSED
    assert world.opened == []


def test_a_listener_without_room_refuses_in_words() -> None:
    world = World()
    world.room = False
    assert world.hears(Client().says()) is not None
    assert (world.demux.counters.refused, world.admission.half_open) == (1, 0)


def test_refusals_have_a_rate() -> None:
    world, first = World(), Client().says()
    world.demux.reception.is_accepting = False
    answers = [world.hears(first) for _ in range(int(REFUSALS_PER_SECOND) + 50)]
    assert sum(answer is not None for answer in answers) == REFUSALS_PER_SECOND
    world.now += 1
    assert world.hears(first) is not None


def test_above_the_limits_silence() -> None:
    world = World("never", max_half_open=3)
    for _ in range(5):
        assert world.hears(Client().says()) is None
    assert (len(world.opened), world.demux.counters.over_limit) == (3, 2)


def test_one_address_has_a_limit_of_its_own() -> None:
    world = World("never", max_half_open_per_address=2)
    for _ in range(4):
        world.hears(Client().says(), HERE)
    world.hears(Client().says(), THERE)
    assert len(world.opened) == 3


# Retry


def test_a_client_that_proves_its_address_gets_in() -> None:
    world, client = World("always"), Client()
    original = client.quic.original_destination_connection_id
    second = retried(world, client)
    assert world.opened == []
    world.hears(second)
    (connection,) = world.opened
    assert connection.opening is not None
    assert connection.opening.original_id == original
    assert connection.opening.retry_id == header_of(second).destination_cid


def test_nothing_is_remembered_of_who_was_asked() -> None:
    world = World("always")
    for _ in range(1000):
        world.hears(FIRST)
    assert (len(world.demux), world.admission.half_open, world.demux.counters.retries) == (0, 0, 1000)


def test_auto_asks_only_in_a_crowd() -> None:
    world = World("auto", max_half_open=40, max_half_open_per_address=1000)
    for _ in range(10):
        assert world.hears(Client().says()) is None
    assert world.hears(Client().says()) is not None
    assert (len(world.opened), world.demux.counters.retries) == (10, 1)


def test_a_token_from_busier_times_is_still_taken() -> None:
    busy, quiet, client = World("always"), World("never"), Client()
    quiet.hears(retried(busy, client))
    (connection,) = quiet.opened
    assert connection.opening is not None
    assert connection.opening.retry_id is not None


@pytest.mark.parametrize("wrong", ["late", "from elsewhere", "garbled"])
@pytest.mark.parametrize("mode", ["always", "auto", "never"])
def test_a_bad_token_is_answered_with_invalid_token(wrong: str, mode: RetryMode) -> None:
    client = Client()
    second = retried(World("always"), client)
    world = World(mode)
    if wrong == "late":
        world.now += 60
    if wrong == "garbled":
        token = header_of(second).token
        second = second.replace(token, token[:-1] + bytes([token[-1] ^ 1]))
    answer = world.hears(second, THERE if wrong == "from elsewhere" else HERE)
    assert answer is not None
    assert world.opened == []
    client.hears(answer)
    assert client.quic._close_event is not None
    assert client.quic._close_event.error_code == QuicErrorCode.INVALID_TOKEN


# Version negotiation


def test_another_version_is_negotiated() -> None:
    world = World()
    answer = world.hears(long_packet(0x1A2A3A4A))
    assert answer is not None
    header = header_of(answer)
    assert header.packet_type is QuicPacketType.VERSION_NEGOTIATION
    assert header.supported_versions == [QuicProtocolVersion.VERSION_1]
    assert (header.destination_cid, header.source_cid) == (b"s" * 8, b"d" * 8)


def test_ids_of_other_versions_may_be_long() -> None:
    answer = World().hears(long_packet(0x1A2A3A4A, destination=b"d" * 255, source=b"s" * 200))
    assert answer is not None
    assert b"s" * 200 in answer
    assert b"d" * 255 in answer


def test_version_negotiation_is_never_answered() -> None:
    world = World()
    assert world.hears(long_packet(0)) is None
    answer = world.hears(long_packet(0x1A2A3A4A))
    assert answer is not None
    assert world.hears(answer.ljust(1200, b"\x00")) is None
    assert world.demux.counters.negotiated == 1


def test_small_datagrams_of_other_versions_are_not_answered() -> None:
    assert World().hears(long_packet(0x1A2A3A4A, size=1199)) is None


# Garbage


@pytest.mark.parametrize("size", range(30))
def test_a_cut_header_is_no_header(size: int) -> None:
    whole = long_packet(1, size=23)
    assert (read_long(whole[:size]) is None) is (size < 23)


@given(data=st.binary(max_size=1500))
def test_noise_opens_nothing(data: bytes) -> None:
    world = World()
    world.hears(data)
    assert len(world.demux) == 2 * len(world.opened)


@given(data=st.data())
def test_damaged_first_packets_do_no_harm(data: st.DataObject) -> None:
    packet = bytearray(FIRST)
    for _ in range(data.draw(st.integers(1, 6))):
        packet[data.draw(st.integers(0, 40))] = data.draw(st.integers(0, 255))
    world = World(data.draw(st.sampled_from(["auto", "always", "never"])))
    world.hears(bytes(packet[: data.draw(st.integers(0, 1300))]))
    assert world.faults == []
