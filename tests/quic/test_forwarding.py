from __future__ import annotations

import socket
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.quic.forwarding import MAX_FRAME, Forwarded
from pgtrunk_gateway.quic.udp import Path

IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6).map(lambda address: socket.inet_ntop(socket.AF_INET6, address.packed))
PORTS = st.integers(0, 0xFFFF)
WORDS = st.integers(0, 0xFFFFFFFF)
PEERS = st.one_of(st.tuples(IPV4, PORTS), st.tuples(IPV6, PORTS, WORDS, WORDS))


def test_the_format_of_ipv4_is_fixed() -> None:
    frame = Forwarded(2, ("192.0.2.1", 5000), b"local", b"datagram").encode()
    assert frame == (
        b"\x01"  # version
        b"\x04"  # family
        b"\x02"  # socket
        b"\x05"  # size of the control data
        b"\x13\x88"  # port
        b"\x00\x00\x00\x00\x00\x00\x00\x00"  # flow label and scope
        b"\xc0\x00\x02\x01"  # address
        b"local"
        b"datagram"
    )


def test_the_format_of_ipv6_is_fixed() -> None:
    frame = Forwarded(0, ("2001:db8::1", 443, 7, 3), b"", b"datagram").encode()
    assert frame == (
        b"\x01\x06\x00\x00\x01\xbb"
        b"\x00\x00\x00\x07\x00\x00\x00\x03"
        b"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"
        b"datagram"
    )


@given(st.integers(0, 255), PEERS, st.binary(max_size=255), st.binary(max_size=2000))
def test_what_is_written_is_read(number: int, peer: tuple[Any, ...], local: bytes, data: bytes) -> None:
    forwarded = Forwarded(number, peer, local, data)
    assert Forwarded.decode(forwarded.encode()) == forwarded


@given(st.binary(max_size=60))
def test_anything_else_is_no_frame_or_one_that_reads(frame: bytes) -> None:
    forwarded = Forwarded.decode(frame)
    assert forwarded is None or Forwarded.decode(forwarded.encode()) == forwarded


def test_other_versions_and_cut_frames_are_left_alone() -> None:
    frame = Forwarded(0, ("192.0.2.1", 5000), b"local", b"").encode()
    assert Forwarded.decode(b"\x02" + frame[1:]) is None
    assert Forwarded.decode(frame[:1] + b"\x05" + frame[2:]) is None
    assert all(Forwarded.decode(frame[:size]) is None for size in range(len(frame)))


def test_it_is_made_of_what_came() -> None:
    path = Path(("192.0.2.1", 5000), cast("Any", None), b"local")
    forwarded = Forwarded.of(b"datagram", path, 3)
    assert forwarded == Forwarded(3, ("192.0.2.1", 5000), b"local", b"datagram")
    assert type(forwarded.peer) is tuple


@pytest.mark.parametrize("peer", [("192.0.2.1", 5000), ("2001:db8::1", 443, 0, 0), ("fe80::1%eth0", 443, 0, 2)])
def test_the_longest_fits(peer: tuple[Any, ...]) -> None:
    assert len(Forwarded(255, peer, bytes(255), bytes(65535)).encode()) <= MAX_FRAME
