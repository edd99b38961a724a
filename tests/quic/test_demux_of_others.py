"""Datagrams of connections that other workers have, and of those that are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from helpers.demuxing import HERE, THERE, Connection, World, long_packet
from pgtrunk_gateway.quic.resets import Resets

if TYPE_CHECKING:
    from pgtrunk_gateway.quic.udp import Path


class Fleet(World):
    """One of two workers: ids that begin with "o" are the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_on: list[tuple[bytes, bytes, Path]] = []
        self.demux._world = replace(self.demux._world, pass_on=self.pass_on)

    def pass_on(self, connection_id: bytes, data: bytes, path: Path) -> bool:
        if not connection_id.startswith(b"o"):
            return False
        self.passed_on.append((connection_id, data, path))
        return True


@pytest.mark.parametrize(
    "packet", [b"\x40other678 and the rest", long_packet(1, destination=b"other678"), long_packet(1, destination=b"oo")]
)
def test_what_is_another_workers_is_passed_on(packet: bytes) -> None:
    world = Fleet()
    assert world.hears(packet, THERE) is None
    [(connection_id, data, path)] = world.passed_on
    assert connection_id in packet
    assert data == packet
    assert path is THERE
    assert (world.demux.counters.passed_on, world.demux.counters.unknown) == (1, 0)


def test_what_is_known_is_not_passed_on_whoever_it_should_belong_to() -> None:
    world, connection = Fleet(), Connection()
    world.demux.add(b"other678", connection)
    world.hears(b"\x40other678")
    world.hears(long_packet(1, destination=b"other678"))
    assert len(connection.heard) == 2
    assert not world.passed_on


def test_nothing_is_passed_on_twice() -> None:
    world = Fleet()
    world.demux.datagram_received(b"\x40other678", HERE, was_passed_on=True)
    world.demux.datagram_received(long_packet(1, destination=b"other678", first=0xE0), HERE, was_passed_on=True)
    assert not world.passed_on
    assert world.demux.counters.unknown == 2


def test_another_version_is_negotiated_by_whoever_hears_it() -> None:
    world = Fleet()
    assert world.hears(long_packet(0x1A2A3A4A, destination=b"other678")) is not None
    assert not world.passed_on


class Remembering(World):
    """Answers by resets."""

    def __init__(self) -> None:
        super().__init__()
        resets = Resets(lambda connection_id: connection_id * 2, clock=lambda: self.now, entropy=bytes)
        self.demux._world = replace(self.demux._world, resets=resets)


def test_a_short_header_to_nobody_is_answered_by_a_reset() -> None:
    world = Remembering()
    answer = world.hears(b"\x4012345678 and the rest of it")
    assert answer is not None
    assert answer.endswith(b"1234567812345678")
    assert (world.demux.counters.unknown, world.demux.counters.resets) == (1, 1)


def test_so_is_a_packet_of_a_handshake() -> None:
    answer = Remembering().hears(long_packet(1, first=0xE0, destination=b"12345678", size=60))
    assert answer is not None
    assert answer.endswith(b"1234567812345678")


@pytest.mark.parametrize(
    "packet",
    [
        b"\x4012345678",
        b"\x40123",
        (b"\x4012345678").ljust(21),
        long_packet(1, first=0xD0),
        long_packet(1, first=0xF0),
        long_packet(1, first=0xC0, size=100),
        long_packet(1, first=0xE0, destination=b"another's", size=60),
        long_packet(0x1A2A3A4A, first=0xE0, size=60),
    ],
    ids=["no rest", "no id", "too short", "0-RTT", "Retry", "Initial", "no id of ours", "another version"],
)
def test_what_gets_no_reset(packet: bytes) -> None:
    world = Remembering()
    assert world.hears(packet) is None
    assert world.demux.counters.resets == 0


def test_a_retired_id_is_nobodys() -> None:
    world = Remembering()
    world.demux.add(b"12345678", Connection())
    packet = b"\x4012345678 and the rest of it"
    assert world.hears(packet) is None
    world.demux.remove(b"12345678")
    assert world.hears(packet) is not None
