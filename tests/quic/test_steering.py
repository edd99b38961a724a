"""The rule by which datagrams find their worker, in Python and as a program for the kernel."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgtrunk_gateway.quic.connection_id import BUCKETS, ConnectionIds, bucket_of, generation_of
from pgtrunk_gateway.quic.demux import read_long
from pgtrunk_gateway.quic.groups import bind_group, steer
from pgtrunk_gateway.quic.steering import ALONE, NO_SOCKET, Instruction, Place, encode, program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgtrunk.quic.sockets import AddressInfo

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the program is for Linux's kernel")
COUNTS = st.integers(1, BUCKETS)


def interpret(instructions: list[Instruction], data: bytes) -> int:
    """What the kernel does with the few instructions there are: see its Documentation/networking/filter.rst."""
    at, register = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x80:
                register = len(data)
            case 0x30 if operand >= len(data):
                return 0
            case 0x30:
                register = data[operand]
            case 0x05:
                at += operand
            case 0x35:
                at += if_true if register >= operand else if_false
            case 0x45:
                at += if_true if register & operand else if_false
            case 0x94:
                register %= operand
            case 0x16:
                return register
            case 0x06:
                return operand
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def short(connection_id: bytes, size: int = 40) -> bytes:
    return (b"\x41" + connection_id).ljust(size, b"\x00")


def long(connection_id: bytes, size: int = 1200) -> bytes:
    return (b"\xc3\x00\x00\x00\x01" + bytes([len(connection_id)]) + connection_id).ljust(size, b"\x00")


# Places


@given(COUNTS, st.integers(0, 3), st.data())
def test_what_a_worker_issues_leads_back_to_it(count: int, generation: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    place = Place(index, count, generation)
    issued = ConnectionIds(os.urandom, buckets=place.buckets, generation=generation)()
    assert place.owner(issued) == index
    assert Place((index + 1) % count, count).owner(issued) == index
    assert generation_of(issued) == generation


@given(COUNTS)
def test_workers_share_out_all_buckets(count: int) -> None:
    places = [Place(index, count) for index in range(count)]
    assert sorted(bucket for place in places for bucket in place.buckets) == list(range(BUCKETS))
    sizes = [len(place.buckets) for place in places]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("connection_id", [b"", b"\xff"])
def test_an_id_without_a_bucket_is_whoever_has_it(connection_id: bytes) -> None:
    assert Place(2, 4).owner(connection_id) == 2


def test_who_is_alone_owns_everything() -> None:
    assert ALONE.buckets == range(BUCKETS)
    assert {ALONE.owner(bytes([0, bucket])) for bucket in range(BUCKETS)} == {0}


# The program


@given(st.binary(min_size=8, max_size=20), COUNTS, st.booleans())
def test_the_program_and_the_rule_agree(connection_id: bytes, count: int, is_long: bool) -> None:
    datagram = long(connection_id) if is_long else short(connection_id)
    assert interpret(program(count), datagram) == Place(0, count).owner(connection_id)


@given(st.binary(max_size=40), COUNTS)
@example(b"", 4)
@example(b"\x40" * 7, 4)
@example(b"\x40" * 8, 4)
@example(b"\xc0" * 8, 256)
def test_the_program_takes_anything(datagram: bytes, count: int) -> None:
    chosen = interpret(program(count), datagram)
    if len(datagram) < 8:
        assert chosen == NO_SOCKET
    else:
        assert 0 <= chosen < count
        header = read_long(datagram) if datagram[0] & 0x80 else None
        if header is not None and len(header.destination_id) > 1:
            assert chosen == bucket_of(header.destination_id) % count


def test_the_program_is_written_as_the_kernel_reads_it() -> None:
    octets = encode(program(3))
    assert len(octets) == 8 * len(program(3))
    assert octets[:8] == (0x80).to_bytes(2, sys.byteorder) + bytes(6)
    assert octets[8:16] == (0x35).to_bytes(2, sys.byteorder) + bytes([0, 7]) + (8).to_bytes(4, sys.byteorder)


# The kernel


@pytest.fixture
def group() -> Iterator[list[socket.socket]]:
    infos: Sequence[AddressInfo] = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_DGRAM)
    sockets = [own for [own] in bind_group(infos, 4)]
    yield sockets
    for sock in sockets:
        sock.close()


def receiver(group: list[socket.socket], datagram: bytes) -> int:
    """Which of a group's sockets gets a datagram, from a new port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(datagram, group[0].getsockname())
    found = []
    for number, sock in enumerate(group):
        try:
            assert sock.recv(2048) == datagram
        except BlockingIOError:
            continue
        found.append(number)
    [number] = found
    return number


@LINUX
def test_the_kernel_obeys(group: list[socket.socket]) -> None:
    assert steer(group[0], 4) is None
    for bucket in range(BUCKETS):
        connection_id = os.urandom(1) + bytes([bucket]) + os.urandom(6)
        assert receiver(group, short(connection_id)) == bucket % 4
        assert receiver(group, long(connection_id)) == bucket % 4


@LINUX
def test_what_names_no_bucket_goes_to_all(group: list[socket.socket]) -> None:
    assert steer(group[0], 4) is None
    assert len({receiver(group, b"\x40" * 7) for _ in range(200)}) == 4


@LINUX
def test_a_worker_that_comes_back_has_its_old_number(group: list[socket.socket]) -> None:
    assert steer(group[0], 4) is None
    # What a process that dies takes with it is a descriptor, not the socket.
    gone = group[1].dup()
    gone.close()
    assert receiver(group, short(bytes([0, 1]) + bytes(6))) == 1


@LINUX
def test_a_socket_without_a_group_is_not_steered() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as alone:
        alone.bind(("127.0.0.1", 0))
        assert (steer(alone, 4) or "").startswith("SO_ATTACH_REUSEPORT_CBPF: ")


def test_without_linux_nothing_is_steered(group: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk_gateway.quic.groups.sys.platform", "darwin")
    assert steer(group[0], 4) == "darwin has no SO_ATTACH_REUSEPORT_CBPF"
