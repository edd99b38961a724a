"""The packets that open a connection, as they are and as they are not."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.startup import (
    PROTOCOL_3_0,
    PROTOCOL_3_2,
    CancelRequest,
    GSSENCRequest,
    SSLRequest,
    StartupMessage,
    StartupPacket,
    parse_startup,
    version,
)

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
parameters = st.dictionaries(texts.filter(lambda name: not name.startswith("_pq_.")), texts | st.just(""), max_size=5)
options = st.dictionaries(texts.map(lambda name: f"_pq_.{name}"), texts | st.just(""), max_size=3)
packets = st.one_of(
    st.builds(StartupMessage, st.integers(PROTOCOL_3_0, PROTOCOL_3_0 + 0xFFFF), parameters, options),
    st.just(SSLRequest()),
    st.just(GSSENCRequest()),
    st.builds(CancelRequest, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(min_size=1, max_size=256)),
)


def packet(code: int, body: bytes = b"") -> bytes:
    return struct.pack("!ii", len(body) + 8, code) + body


@given(packets, st.binary(max_size=10))
def test_each_packet_is_read_as_it_was_written(sent: StartupPacket, rest: bytes) -> None:
    data = sent.encode()
    assert parse_startup(data + rest) == (sent, len(data))


@given(packets)
def test_a_packet_in_part_is_waited_for(sent: StartupPacket) -> None:
    data = sent.encode()
    assert [parse_startup(data[:end]) for end in range(len(data))] == [None] * len(data)


def test_what_libpq_sends() -> None:
    message = StartupMessage(parameters={"user": "app", "database": "shop"})
    data = bytes.fromhex("00000020 00030000") + b"user\0app\0database\0shop\0\0"
    assert message.encode() == data
    assert parse_startup(data) == (message, 32)
    assert StartupMessage(PROTOCOL_3_2).encode() == bytes.fromhex("00000009 00030002 00")


@pytest.mark.parametrize(
    ("sent", "octets"),
    [
        (SSLRequest(), "00000008 04d2162f"),
        (GSSENCRequest(), "00000008 04d21630"),
        (CancelRequest(1, b"\1\2\3\4"), "00000010 04d2162e 00000001 01020304"),
        (CancelRequest(-1, b"\xff" * 256), "0000010c 04d2162e ffffffff" + "ff" * 256),
    ],
    ids=["ssl", "gssenc", "cancel of 3.0", "cancel of 3.2"],
)
def test_requests_by_their_octets(sent: StartupPacket, octets: str) -> None:
    data = bytes.fromhex(octets)
    assert sent.encode() == data
    assert parse_startup(data) == (sent, len(data))


@pytest.mark.parametrize("minor", [0, 1, 2, 3, 9999, 0xFFFF])
def test_the_minor_version_is_left_to_the_caller(minor: int) -> None:
    parsed = parse_startup(packet(PROTOCOL_3_0 | minor, b"user\0x\0\0"))
    assert parsed == (StartupMessage(PROTOCOL_3_0 | minor, {"user": "x"}), 16)


def test_the_longest_packet() -> None:
    value = "x" * (10_000 - len(packet(PROTOCOL_3_0, b"user\0\0\0")))
    data = StartupMessage(parameters={"user": value}).encode()
    assert len(data) == 10_000
    assert parse_startup(data) == (StartupMessage(parameters={"user": value}), 10_000)


def test_protocol_options_are_kept_apart() -> None:
    body = b"_pq_.a\0on\0user\0x\0_pq_.b\0\0\0"
    parsed = parse_startup(packet(PROTOCOL_3_2, body))
    assert parsed is not None
    assert parsed[0] == StartupMessage(PROTOCOL_3_2, {"user": "x"}, {"_pq_.a": "on", "_pq_.b": ""})


def test_parameters_keep_their_order_and_the_last_of_a_name_counts() -> None:
    parsed = parse_startup(packet(PROTOCOL_3_0, b"b\0001\0a\0002\0b\0003\0\0"))
    assert parsed is not None
    assert isinstance(parsed[0], StartupMessage)
    assert list(parsed[0].parameters.items()) == [("b", "3"), ("a", "2")]


@pytest.mark.parametrize("size", [1, 4, 32, 256])
def test_secrets_of_protocol_3_2_may_be_long(size: int) -> None:
    parsed = parse_startup(CancelRequest(7, bytes(size)).encode())
    assert parsed == (CancelRequest(7, bytes(size)), 12 + size)


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(CancelRequest(7, b"secret"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\0\x07", "invalid length of startup packet: 7"),
        (b"\0\0\0\0", "invalid length of startup packet: 0"),
        (b"\xff\xff\xff\xff", "invalid length of startup packet: -1"),
        (b"\0\0\x27\x11", "invalid length of startup packet: 10001"),
        (b"GET / HTTP/1.1", "invalid length of startup packet"),
        (b"\x16\x03\x01\x02\0\x01", "invalid length of startup packet"),
        (packet(2 << 16), "unsupported frontend protocol 2.0"),
        (packet(4 << 16 | 1), "unsupported frontend protocol 4.1"),
        (packet(0), "unsupported frontend protocol 0.0"),
        (packet(-1), "unsupported frontend protocol"),
        (packet(1234 << 16 | 5679, b"x"), "an encryption request has 8 octets, not 9"),
        (packet(1234 << 16 | 5680, b"x"), "an encryption request has 8 octets, not 9"),
        (packet(1234 << 16 | 5681), "unsupported frontend protocol 1234.5681"),
        (packet(1234 << 16 | 5678, b"\0\0\0\1"), "a cancel request has 13 to 268 octets, not 12"),
        (packet(1234 << 16 | 5678, bytes(4 + 257)), "a cancel request has 13 to 268 octets, not 269"),
        (packet(PROTOCOL_3_0), "invalid startup packet layout"),
        (packet(PROTOCOL_3_0, b"user\0x\0"), "invalid startup packet layout"),
        (packet(PROTOCOL_3_0, b"user\0x"), "invalid startup packet layout"),
        (packet(PROTOCOL_3_0, b"user\0\0"), "invalid startup packet layout"),
        (packet(PROTOCOL_3_0, b"user\0x\0\0more"), "invalid startup packet layout"),
        (packet(PROTOCOL_3_0, b"user\0x\0\0\0"), "invalid startup packet layout"),
        (packet(PROTOCOL_3_0, b"user\0\xff\0\0"), "not valid UTF-8"),
        (packet(PROTOCOL_3_0, b"\xff\0x\0\0"), "not valid UTF-8"),
    ],
)
def test_what_is_no_startup_packet(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolViolation, match=words):
        parse_startup(data)


@pytest.mark.parametrize(
    "head", [b"\0\0\0\x07", b"\x7f\xff\xff\xff", packet(5 << 16)[:8], struct.pack("!ii", 9, 1234 << 16 | 5679)]
)
def test_it_shows_in_the_first_octets_that_show_it(head: bytes) -> None:
    """A packet that will never be right is not waited for."""
    with pytest.raises(ProtocolViolation):
        parse_startup(head)


codes = st.sampled_from([PROTOCOL_3_0, PROTOCOL_3_2, 2 << 16, *(1234 << 16 | low for low in range(5677, 5682))])
garbage = st.one_of(
    st.binary(max_size=40),
    st.builds(packet, codes, st.binary(max_size=30)),
    st.builds(packet, codes, st.lists(st.sampled_from([b"\0", b"a", b"_pq_.", b"\xc3"]), max_size=12).map(b"".join)),
    st.builds(lambda size, code, body: struct.pack("!ii", size, code) + body, st.integers(0, 300), codes, st.binary()),
)


def outcome(data: bytes) -> tuple[StartupPacket, int] | str | None:
    """What is parsed, or what is said against it; any other error is a failed test."""
    try:
        return parse_startup(data)
    except ProtocolViolation as violation:
        return str(violation)


@given(garbage)
def test_nothing_but_protocol_violations_and_no_change_of_mind(data: bytes) -> None:
    outcomes = [outcome(data[:end]) for end in range(len(data) + 1)]
    known = [found for found in outcomes if found is not None]
    assert outcomes == [None] * (len(outcomes) - len(known)) + known[:1] * len(known)
    if known and not isinstance(known[0], str):
        _, length = known[0]
        assert length == len(outcomes) - len(known)


def test_a_name_in_another_encoding_is_sent_as_it_is() -> None:
    """auth_query may find such a user, who then logs in at Postgres."""
    assert b"user\0caf\xe9\0" in StartupMessage(parameters={"user": "caf\udce9"}).encode()


def test_versions_as_people_write_them() -> None:
    assert [version(protocol) for protocol in (PROTOCOL_3_0, PROTOCOL_3_2, 2 << 16 | 1, -1)] == [
        "3.0",
        "3.2",
        "2.1",
        "65535.65535",
    ]
