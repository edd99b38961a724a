"""Following messages in octets that come in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.wire.boundary import Boundary
from pgtrunk.wire.framing import encode

MESSAGES = st.lists(
    st.tuples(st.sampled_from([b"d", b"E", b"X", b"Z"]), st.binary(max_size=20)).map(lambda each: encode(*each)),
    min_size=1,
    max_size=8,
)


@given(MESSAGES, st.data())
def test_messages_in_any_pieces(messages: list[bytes], data: st.DataObject) -> None:
    octets = b"".join(messages)
    ends = {sum(map(len, messages[:count])): messages[count - 1][0] for count in range(1, len(messages) + 1)}
    cuts = data.draw(st.sets(st.integers(0, len(octets)))) | {len(octets)}
    boundary = Boundary()
    at = 0
    for cut in sorted(cuts):
        boundary.feed(octets[at:cut])
        at = cut
        assert boundary.between == (at in ends or not at)
        if at in ends:
            assert boundary.kind == ends[at]


def test_nothing_has_come() -> None:
    boundary = Boundary()
    boundary.feed(b"")
    assert boundary.between
    assert boundary.kind == 0


def test_the_kind_is_known_from_the_header_on() -> None:
    boundary = Boundary()
    boundary.feed(encode(b"d", b"x" * 100)[:50])
    assert (boundary.kind, boundary.between) == (ord("d"), False)
    boundary.feed(b"x" * 55)
    assert boundary.between


@pytest.mark.parametrize("length", [0, 3, -1, -(1 << 31)])
def test_a_length_that_no_message_has(length: int) -> None:
    boundary = Boundary()
    boundary.feed(b"d" + length.to_bytes(4, "big", signed=True))
    for _ in range(3):
        boundary.feed(encode(b"Z", b"I"))
        assert not boundary.between
