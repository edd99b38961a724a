"""The shapes of requests, against a reading of them message by message."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk_gateway.session.shapes import EXECUTION, OTHER, QUERY, shape_of, shape_within

BIND = client.bind(b"", b"name", [b"1"])
DESCRIBE = client.describe_portal(b"")
EXECUTE = client.execute()
SYNC = client.SYNC_MESSAGE


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (client.query(b"select 1"), QUERY),
        (client.query(b""), QUERY),
        (b"Q\0\0\0\4", OTHER),
        (client.query(b"select 1") + SYNC, OTHER),
        (client.query(b"select 1")[:-1], OTHER),
        (BIND + EXECUTE + SYNC, EXECUTION),
        (BIND + client.execute(limit=1) + SYNC, EXECUTION),
        (BIND + DESCRIBE + EXECUTE + SYNC, EXECUTION),
        (BIND + DESCRIBE + EXECUTE + SYNC + SYNC, OTHER),
        (BIND + EXECUTE, OTHER),
        (BIND + DESCRIBE + DESCRIBE + EXECUTE + SYNC, OTHER),
        (BIND + client.describe_portal(b"p") + EXECUTE + SYNC, OTHER),
        (BIND + client.describe_statement(b"") + EXECUTE + SYNC, OTHER),
        (BIND + client.execute(b"p") + SYNC, OTHER),
        (BIND + EXECUTE + client.FLUSH_MESSAGE, OTHER),
        (client.bind(b"", b"", [b"1"]) + EXECUTE + SYNC, OTHER),
        (client.bind(b"p", b"name", [b"1"]) + EXECUTE + SYNC, OTHER),
        (SYNC, OTHER),
        (b"", OTHER),
        (b"B", OTHER),
    ],
    ids=repr,
)
def test_shape(data: bytes, shape: int) -> None:
    assert shape_of(data) == shape


def read(data: bytes) -> int:
    """What ``shape_of`` is to say, found the long way; nothing about a Bind too short to be one."""
    try:
        found = [data[start:end] for _, start, end in messages(data)]
    except ProtocolViolation:
        return OTHER
    if b"".join(found) != data:
        return OTHER
    if len(found) == 1 and data[:1] == b"Q":
        return QUERY if len(data) > 5 else OTHER
    if len(found) == 4 and found[1] == DESCRIBE:
        del found[1]
    if len(found) != 3 or found[0][:1] != b"B" or found[2] != SYNC:
        return OTHER
    is_unnamed = found[1][:1] == b"E" and len(found[1]) == len(EXECUTE) and found[1][5] == 0
    names_a_statement = len(found[0]) > 7 and found[0][5] == 0 and found[0][6] != 0
    return EXECUTION if is_unnamed and names_a_statement else OTHER


_requests = st.sampled_from(
    [BIND + EXECUTE + SYNC, BIND + DESCRIBE + EXECUTE + SYNC, client.query(b"select 1"), BIND + SYNC, EXECUTE + SYNC]
)
_octets = st.tuples(st.integers(0, 60), st.sampled_from(b"\0\1\4\6\x09BDEPQS\xff"))


@given(_requests, st.lists(_octets, max_size=3), st.integers(-70, 70), st.integers(0, 60))
def test_shape_is_that_of_a_reading_message_by_message(
    data: bytes, changes: list[tuple[int, int]], longer: int, cut: int
) -> None:
    changed = bytearray(data)
    for at, octet in changes:
        changed[at % len(changed)] = octet
    (length,) = struct.unpack_from("!i", changed, 1)
    struct.pack_into("!i", changed, 1, max(-(2**31), min(length + longer * (longer % 3 == 0), 2**31 - 1)))
    if cut % 3 == 0:
        del changed[len(changed) - cut % len(changed) :]
    assert shape_of(bytes(changed)) == read(bytes(changed))


@given(st.integers(-40, 40), st.binary(max_size=60))
def test_no_length_brings_it_down(length: int, rest: bytes) -> None:
    assert shape_of(b"B" + struct.pack("!i", length) + rest) in (OTHER, EXECUTION)
    # A negative length that fits the size it pretends to have.
    for size in range(40):
        assert shape_of(b"B" + struct.pack("!i", size - 16) + b"\0x" * size) in (OTHER, EXECUTION)


def test_what_is_longer_than_allowed_has_no_shape() -> None:
    request = client.query(b"select 1")
    assert shape_within(1 << 31) is shape_of
    assert shape_within(len(request))(request) == QUERY
    assert shape_within(len(request) - 1)(request) == OTHER
