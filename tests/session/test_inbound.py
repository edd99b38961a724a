"""Cutting a client's bytes at message boundaries: small messages whole, large ones in parts, bad ones not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.framing import HEAD, encode
from pgtrunk.wire.frontend import KINDS, SYNC_MESSAGE, bind, copy_data, parse, query
from pgtrunk_gateway.errors import MessageTooLarge
from pgtrunk_gateway.session.inbound import LONGEST_KEPT, Inbound

LIMIT = 0x7FFFFFFF
KIB = 1 << 10


def deliver(inbound: Inbound, chunks: list[bytes]) -> tuple[list[bytes], bytes]:
    """Feeds as a session does -> what came out of feed, and all that came out."""
    fed, everything = [], b""
    for chunk in chunks:
        data = chunk
        if inbound.rest:
            part, data = inbound.pass_rest(data)
            everything += part
        if data:
            out = inbound.feed(data)
            if out:
                fed.append(out)
                everything += out
    return fed, everything


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


messages = st.lists(
    st.builds(
        lambda kind, size: encode(bytes([kind]), bytes(size)),
        st.sampled_from(sorted(KINDS)),
        st.sampled_from([0, 1, 3, 100, 5 * KIB, 63 * KIB, 64 * KIB, 100 * KIB]),
    ),
    max_size=5,
)


@given(messages, st.sampled_from([1000, 4093, 9 * KIB, 70 * KIB, 1 << 20]))
def test_nothing_is_lost_and_every_piece_begins_a_message(sent: list[bytes], size: int) -> None:
    data = b"".join(sent)
    inbound = Inbound(LIMIT)
    fed, everything = deliver(inbound, cut(data, size))
    assert everything == data
    assert not inbound.rest
    assert not inbound.held
    starts = {0}
    for message in sent:
        starts.add(max(starts) + len(message))
    position = 0
    for piece in fed:
        position = data.index(piece, position)
        assert position in starts


@given(st.lists(st.sampled_from([SYNC_MESSAGE, query(b"select 1"), parse(b"s", b"x"), copy_data(b"12\n")]), max_size=6))
def test_octet_by_octet_each_message_comes_whole(sent: list[bytes]) -> None:
    inbound = Inbound(LIMIT)
    fed, _ = deliver(inbound, cut(b"".join(sent), 1))
    assert fed == sent


def test_whole_messages_of_a_chunk_come_as_one_piece() -> None:
    inbound = Inbound(LIMIT)
    data = query(b"select 1") + SYNC_MESSAGE
    assert inbound.feed(data) is data
    assert inbound.feed(data + b"Q\0\0") == data
    assert inbound.feed(b"\0\x05\0" + SYNC_MESSAGE) == encode(b"Q", b"\0") + SYNC_MESSAGE


def test_a_large_message_is_not_collected() -> None:
    large = bind(b"", b"s", [bytes(1 << 20)])
    inbound = Inbound(LIMIT)
    first = inbound.feed(SYNC_MESSAGE + large[: 50 * KIB])
    assert first == SYNC_MESSAGE + large[: 50 * KIB]
    assert inbound.rest == len(large) - 50 * KIB
    part, rest = inbound.pass_rest(large[50 * KIB :] + SYNC_MESSAGE)
    assert (part, rest) == (large[50 * KIB :], SYNC_MESSAGE)
    assert inbound.rest == 0


def test_of_a_large_message_enough_comes_at_once_to_read_its_names() -> None:
    large = bind(b"", b"n" * 7000, [bytes(1 << 20)])
    inbound = Inbound(LIMIT)
    assert deliver(inbound, cut(large[: 8 * KIB - 1], 100)) == ([], b"")
    assert len(inbound.feed(large[8 * KIB - 1 : 9 * KIB])) >= 8 * KIB


def test_a_statement_is_collected() -> None:
    large = parse(b"s", b"x" * (1 << 20))
    fed, _ = deliver(Inbound(LIMIT), cut(large, 10_000))
    assert fed == [large]


# -- limits ----------------------------------------------------------------------------------------------------------


def test_a_message_above_max_packet_size_shows_in_its_head() -> None:
    inbound = Inbound(1000)
    assert inbound.feed(encode(b"Q", bytes(996))) == encode(b"Q", bytes(996))
    with pytest.raises(MessageTooLarge) as raised:
        inbound.feed(encode(b"Q", bytes(997))[:5])
    assert (raised.value.sqlstate, raised.value.detail) == ("54000", "max_packet_size = 1000")


def test_a_statement_without_a_name_passes_in_parts_where_it_is_too_long_to_be_kept() -> None:
    inbound = Inbound(LIMIT)
    head = b"P" + (LONGEST_KEPT + 1).to_bytes(4, "big")
    assert inbound.feed(head) == b""
    assert inbound.feed(bytes(8 * KIB)) == head + bytes(8 * KIB)
    assert inbound.rest == LONGEST_KEPT + 1 - 4 - 8 * KIB
    assert Inbound(LIMIT).feed(head[:1] + LONGEST_KEPT.to_bytes(4, "big") + bytes(8 * KIB)) == b"", "it is collected"


def test_a_statement_with_a_name_has_a_limit_of_its_own() -> None:
    inbound = Inbound(LIMIT)
    assert inbound.feed(b"P\x01\0\0\x01s\0") == b""
    with pytest.raises(MessageTooLarge, match="type 'P' with 16777217 octets") as raised:
        inbound.feed(bytes(8 * KIB))
    assert (raised.value.detail, raised.value.missing) == (
        f"the longest statement with a name = {LONGEST_KEPT}",
        LONGEST_KEPT + 2 - 7 - 8 * KIB,
    )


@pytest.mark.parametrize("kind", sorted(set(range(256)) - KINDS))
def test_types_that_no_client_may_send(kind: int) -> None:
    inbound = Inbound(LIMIT)
    assert inbound.feed(SYNC_MESSAGE) == SYNC_MESSAGE
    with pytest.raises(ProtocolViolation, match=f"type {kind}, length 4"):
        inbound.feed(encode(bytes([kind])))


@pytest.mark.parametrize("length", [3, 0, -1, -(1 << 31)])
def test_lengths_that_no_message_has(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"length {length}"):
        Inbound(LIMIT).feed(b"Q" + length.to_bytes(4, "big", signed=True))


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_nothing_but_violations_and_limits(chunks: list[bytes]) -> None:
    inbound = Inbound(1 << 20)
    try:
        deliver(inbound, [chunk for chunk in chunks if chunk])
    except (ProtocolViolation, MessageTooLarge):
        return
    assert inbound.rest >= 0


@given(messages, st.integers(1, 5000))
def test_what_comes_out_can_be_walked_header_by_header(sent: list[bytes], size: int) -> None:
    fed, _ = deliver(Inbound(LIMIT), cut(b"".join(sent), max(size, 300)))
    for piece in fed:
        position = 0
        while position < len(piece):
            kind, length = HEAD(piece, position)
            assert kind in KINDS
            position += length + 1


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_what_is_put_back_is_given_again_with_what_comes(size: int) -> None:
    whole, behind = query(b"select 1") + bind(b"", b"s"), query(b"select 2") + SYNC_MESSAGE
    inbound = Inbound(LIMIT)
    head = behind[:3]
    assert inbound.feed(whole + head) == whole
    inbound.put_back(whole)
    given = b"".join(inbound.feed(chunk) for chunk in cut(behind[3:], size))
    assert given == whole + behind
    assert inbound.feed(whole) == whole
    inbound.put_back(whole)
    assert inbound.held
    given = b"".join(inbound.feed(chunk) for chunk in cut(behind, size))
    assert given == whole + behind
    assert not inbound.held
