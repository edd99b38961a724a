"""Framing: header hops over chunks, and messages one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.framing import HEAD, HEADER_SIZE, MAX_MESSAGE, MessageReader, encode, field, messages, whole

kinds = st.sampled_from([b"Q", b"D", b"Z", b"\0", b"\xff"])
sent = st.lists(st.tuples(kinds, st.binary(max_size=40)), max_size=8)


def test_a_message_is_its_type_its_length_and_its_body() -> None:
    assert encode(b"S") == b"S\0\0\0\x04"
    assert encode(b"Q", b"select 1\0") == b"Q\0\0\0\x0dselect 1\0"
    assert HEAD(encode(b"Q", b"select 1\0"), 0) == (ord("Q"), 13)
    assert len(encode(b"S")) == HEADER_SIZE
    assert MAX_MESSAGE == (1 << 30) - 1


@pytest.mark.parametrize(
    ("value", "octets"), [(None, b"\xff\xff\xff\xff"), (b"", b"\0\0\0\0"), (b"ab", b"\0\0\0\x02ab")]
)
def test_fields_of_bind_and_data_row(value: bytes | None, octets: bytes) -> None:
    assert field(value) == octets


@given(sent, st.binary(max_size=4))
def test_hops_find_all_whole_messages(parts: list[tuple[bytes, bytes]], rest: bytes) -> None:
    encoded = [encode(kind, body) for kind, body in parts]
    data = b"".join(encoded)
    found = list(messages(data + rest))
    assert [data[start:end] for _, start, end in found] == encoded
    assert [kind for kind, _, _ in found] == [kind[0] for kind, _ in parts]
    assert whole(data + rest) == len(data)
    assert whole(bytearray(data)) == len(data)


def test_a_message_in_part_is_left_alone() -> None:
    data = encode(b"S") + encode(b"Q", b"select 1\0")
    for end in range(len(data)):
        assert whole(data[:end]) == (0 if end < 5 else 5)


@pytest.mark.parametrize("length", [b"\0\0\0\x03", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
def test_a_length_that_no_message_has(length: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="the least is 4"):
        whole(encode(b"S") + b"Q" + length)
    reader = MessageReader(100)
    reader.feed(b"Q" + length)
    with pytest.raises(ProtocolViolation, match="it must be from 4 to 100"):
        reader.next()


def test_the_messages_before_a_bad_length_are_found() -> None:
    hops = messages(encode(b"S") + encode(b"H") + b"Q\0\0\0\x03")
    assert [next(hops), next(hops)] == [(ord("S"), 0, 5), (ord("H"), 5, 10)]
    with pytest.raises(ProtocolViolation, match="message 'Q' has length 3"):
        next(hops)


def test_a_message_may_announce_more_than_will_ever_come() -> None:
    data = encode(b"S") + b"d\x7f\xff\xff\xff" + bytes(100)
    assert list(messages(data)) == [(ord("S"), 0, 5)]
    assert whole(data) == 5


# -- MessageReader ---------------------------------------------------------------------------------------------------


@given(sent, st.integers(1, 20))
def test_a_reader_gives_back_the_messages_however_they_arrive(parts: list[tuple[bytes, bytes]], size: int) -> None:
    data = b"".join(encode(kind, body) for kind, body in parts)
    reader = MessageReader(100)
    received = []
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        received += list(iter(reader.next, None))
    assert received == [(kind[0], body) for kind, body in parts]
    assert reader.rest() == b""


def test_octet_by_octet() -> None:
    reader = MessageReader(100)
    for octet, expected in zip(encode(b"Q", b"x\0"), [*[None] * 6, (ord("Q"), b"x\0")], strict=True):
        reader.feed(bytes([octet]))
        assert reader.next() == expected
    assert reader.next() is None


def test_a_message_above_the_limit_is_not_collected() -> None:
    reader = MessageReader(8)
    reader.feed(encode(b"Q", b"1234") + b"Q\0\0\0\x09")
    assert reader.next() == (ord("Q"), b"1234")
    with pytest.raises(ProtocolViolation, match="has length 9; here it must be from 4 to 8"):
        reader.next()


def test_what_was_not_given_back_is_the_rest() -> None:
    reader = MessageReader(100)
    reader.feed(encode(b"Z", b"I") + encode(b"S")[:3])
    assert reader.next() == (ord("Z"), b"I")
    assert reader.rest() == b"S\0\0"
    assert reader.rest() == b""
    assert reader.next() is None


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_nothing_but_protocol_violations(chunks: list[bytes]) -> None:
    reader = MessageReader(20)
    for chunk, _ in itertools.product(chunks, range(2)):
        reader.feed(chunk)
        try:
            while reader.next() is not None:
                pass
        except ProtocolViolation:
            return


@given(st.binary(max_size=60))
def test_hops_never_go_backwards(data: bytes) -> None:
    try:
        found = list(messages(data))
    except ProtocolViolation:
        return
    assert [start for _, start, _ in found] == [0, *(end for _, _, end in found)][: len(found)]
    assert all(end - start >= HEADER_SIZE for _, start, end in found)
