"""Round trips from lists of packets, and packets from what the kernel hands over."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

import pytest

from netem.capture import Capture, Packet, packet_of, round_trips

RTT = 0.030
CLIENT, SERVER = "10.77.0.1", "10.77.0.2"


def out(at_ms: float, octets: int = 50, *, opens: bool = False) -> Packet:
    return Packet(at_ms / 1000, True, octets, opens)


def back(at_ms: float, octets: int = 50, *, opens: bool = False) -> Packet:
    return Packet(at_ms / 1000, False, octets, opens)


def test_nothing_is_no_round_trip() -> None:
    assert round_trips([], RTT) == 0


def test_a_question_without_an_answer_is_not_one_yet() -> None:
    assert round_trips([out(0)], RTT) == 0
    assert round_trips([out(0), back(30)], RTT) == 1


def test_what_is_sent_together_shares_a_round_trip() -> None:
    assert round_trips([out(0), out(0.1), out(5), back(30), back(30.2), back(35)], RTT) == 1


def test_what_the_other_side_says_first_is_none() -> None:
    assert round_trips([back(0), back(1)], RTT) == 0


def test_opening_a_tcp_connection_takes_one_though_it_carries_nothing() -> None:
    opening = [out(0, 0, opens=True), back(30, 0, opens=True), out(30.1, 0)]
    assert round_trips(opening, RTT) == 1
    assert round_trips([*opening, out(30.2, 84), back(60.5, 24)], RTT) == 2


def test_acknowledgements_without_data_are_none() -> None:
    # A server's delayed one, on its own, and then its answer.
    assert round_trips([out(0), back(70, 0), back(90, 24), out(90.1, 0), back(120, 0)], RTT) == 1


def test_a_login_by_scram_over_tcp_takes_four_and_its_first_row_two_more() -> None:
    opening = [out(0, 0, opens=True), back(30, 0, opens=True), out(30, 0)]
    rounds = [packet for n in range(1, 6) for packet in (out(30 * n + 0.5), back(30 * n + 30))]
    assert round_trips(opening + rounds[:6], RTT) == 4
    assert round_trips(opening + rounds, RTT) == 6


def test_an_answer_under_way_already_ends_no_round_trip() -> None:
    """The last datagrams of a flight arrive after the client has acknowledged the first."""
    flight = [out(0, 1200), back(30, 1200), out(30.1, 40), back(30.2, 1200), back(30.4, 700)]
    assert round_trips(flight, RTT) == 1
    assert round_trips([*flight, out(31, 300), back(61, 200)], RTT) == 2


def test_a_late_acknowledgement_adds_none_to_those_of_the_answer_behind_it() -> None:
    # The server acknowledges after 25 ms, and answers 5 ms later; the next question waits for the answer.
    assert round_trips([out(0), back(55, 33), back(60, 90), out(60.3), back(90)], RTT) == 2


@pytest.mark.parametrize("gap", [0.0, 3.0, 14.9])
def test_what_comes_within_half_a_round_trip_was_not_asked_for(gap: float) -> None:
    assert round_trips([out(0), back(gap)], RTT) == 0


def ipv4(protocol: int, payload: bytes, *, source: str = CLIENT, target: str = SERVER) -> bytes:
    total = 20 + len(payload)
    head = struct.pack("!BBHHHBBH", 0x45, 0, total, 1, 0, 64, protocol, 0)
    return head + socket.inet_aton(source) + socket.inet_aton(target) + payload


def tcp(flags: int, data: bytes = b"", *, options: bytes = b"") -> bytes:
    offset = (20 + len(options)) // 4 << 4
    return struct.pack("!HHIIBBHHH", 40000, 5432, 1, 2, offset, flags, 100, 0, 0) + options + data


def test_a_datagram() -> None:
    udp = struct.pack("!HHHH", 40000, 6432, 8 + 37, 0) + bytes(37)
    assert packet_of(ipv4(17, udp), 7.5, CLIENT) == Packet(7.5, True, 37)
    assert packet_of(ipv4(17, udp, source=SERVER, target=CLIENT), 7.5, CLIENT) == Packet(7.5, False, 37)


def test_segments() -> None:
    assert packet_of(ipv4(6, tcp(0x02, options=bytes(20))), 1.0, CLIENT) == Packet(1.0, True, 0, True)
    assert packet_of(ipv4(6, tcp(0x10, options=bytes(12))), 1.0, CLIENT) == Packet(1.0, True, 0)
    assert packet_of(ipv4(6, tcp(0x18, b"abc", options=bytes(12))), 1.0, CLIENT) == Packet(1.0, True, 3)


@pytest.mark.parametrize(
    "data",
    [b"", bytes(19), ipv4(17, bytes(8), source="10.9.9.9"), b"\x60" + bytes(60), ipv4(1, bytes(8)), ipv4(6, bytes(13))],
    ids=str,
)
def test_what_is_neither_is_left_out(data: bytes) -> None:
    assert packet_of(data, 0.0, CLIENT) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: captures packets")
async def test_what_the_kernel_hands_over_is_counted() -> None:
    """On the loopback device each packet is seen twice, as it leaves and as it arrives, which changes no count."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            await asyncio.sleep(RTT)
            writer.write(b"answer")
        writer.close()
        await writer.wait_closed()

    # An address that nobody else has here, since the device is everybody's.
    ours = f"127.77.{os.getpid() % 251}.9"
    server = await asyncio.start_server(answer, "127.0.0.2", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        with Capture("lo", ours) as capture:
            reader, writer = await asyncio.open_connection(host, port, local_addr=(ours, 0))
            for _ in range(3):
                writer.write(b"question")
                assert await reader.readexactly(6) == b"answer"
            packets = [packet for packet in capture.take() if packet.opens or packet.octets in (6, 8)]
            writer.close()
            await writer.wait_closed()
    assert sum(packet.opens for packet in packets) == 4
    assert round_trips(packets, RTT) == 3
    assert [packet.at for packet in packets] == sorted(packet.at for packet in packets)
