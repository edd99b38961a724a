"""The control stream: its frames in any pieces, what breaks the rules, and who speaks it with whom."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.quic_pair import Echo, Pair, Recorder
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.control import MAX_LENGTH, ControlError, Goaway, Hello, Reader

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)
PLACES = st.tuples(HOSTS, st.integers(1, 0xFFFF))
GOAWAYS = st.builds(Goaway, st.none() | st.integers(0, 2**32 - 2).map(lambda ms: ms / 1000), st.none() | PLACES)
HELLO = Hello(0).encode()


def frame(kind: int, body: bytes, version: int = 1) -> bytes:
    return (len(body) + 2).to_bytes(2, "big") + bytes((kind, version)) + body


STRANGE = st.builds(
    frame,
    st.integers(3, 255),
    st.binary(max_size=300),
    st.integers(0, 255),
) | st.builds(frame, st.just(2), st.binary(max_size=300), st.sampled_from([0, 2, 255]))
"""Of unknown types and versions."""


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


@given(st.integers(0, 2**32 - 1), st.lists(GOAWAYS | STRANGE, max_size=5), st.lists(st.integers(0, 5000), max_size=8))
def test_frames_come_back_from_any_pieces_and_the_unknown_are_skipped(
    features: int, later: list[Goaway | bytes], cuts: list[int]
) -> None:
    data = Hello(features).encode() + b"".join(each if isinstance(each, bytes) else each.encode() for each in later)
    expected = [Hello(features), *(each for each in later if not isinstance(each, bytes))]
    for chunks in (pieces(data, cuts), [bytes((octet,)) for octet in data]):
        reader = Reader()
        assert [each for chunk in chunks for each in reader.feed(chunk)] == expected
        assert reader._rest == b""


@given(st.binary(max_size=64), st.booleans())
@example(b"\x00\x09\x02\x01" + b"\xff" * 7, True)
@example(HELLO, True)
def test_any_octets_are_frames_or_an_error_and_nothing_is_hoarded(data: bytes, greeted: bool) -> None:
    whole, by_octet = Reader(), Reader()
    outcomes: list[Any] = []
    for reader, chunks in ((whole, [data]), (by_octet, [bytes((octet,)) for octet in data])):
        frames: list[Any] = reader.feed(HELLO) if greeted else []
        try:
            for chunk in chunks:
                frames += reader.feed(chunk)
                assert len(reader._rest) <= MAX_LENGTH + 2
            outcomes.append(frames)
        except ControlError as exc:
            outcomes.append(str(exc))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(2, Goaway().encode()[4:]), "frame type 2 before HELLO"),
        (frame(77, b""), "frame type 77 before HELLO"),
        (HELLO + HELLO, "a second HELLO"),
        (frame(1, b"abc"), "a HELLO of 3 octets"),
        (HELLO + frame(2, b"123456"), "a GOAWAY of 6 octets"),
        (HELLO + frame(2, b"\0\0\0\0\x19\x20\x05host"), "to nowhere"),
        (HELLO + frame(2, b"\0\0\0\0\0\0\x04host"), "to nowhere"),
        (HELLO + frame(2, b"\0\0\0\0\x19\x20\x03a b"), "to nowhere"),
        (HELLO + frame(2, b"\0\0\0\0\x19\x20\x02\xc3\xa4"), "to nowhere"),
        (HELLO + b"\0\x01\x02\x01", "a frame of 1 octets"),
        (HELLO + b"\x10\x01\x02\x01", "a frame of 4097 octets"),
    ],
)
def test_what_breaks_the_rules(data: bytes, words: str) -> None:
    with pytest.raises(ControlError, match=words):
        Reader().feed(data)


def test_the_longest_frame_is_taken_and_what_a_later_version_adds_is_skipped() -> None:
    goaway = Goaway(1.5, ("gw2.example.net", 6432)).encode()[4:]
    data = HELLO[4:] + b"later"
    assert Reader().feed(frame(1, data) + frame(2, goaway + bytes(MAX_LENGTH - 2 - len(goaway)))) == [
        Hello(),
        Goaway(1.5, ("gw2.example.net", 6432)),
    ]
    assert Reader().feed(frame(1, b"?", version=2) + frame(2, goaway)) == [Goaway(1.5, ("gw2.example.net", 6432))]


@pytest.mark.parametrize("to", [("", 1), ("a b", 1), ("h", 0), ("h", 65536), ("h" * 256, 1), ("gäteway", 1)])
def test_a_gateway_cannot_name_what_is_no_address(to: tuple[str, int]) -> None:
    with pytest.raises(ValueError):
        Goaway(1, to).encode()


def test_a_time_is_whole_milliseconds_and_within_its_field() -> None:
    for within, read in [(0.0004, 0.0), (-3.0, 0.0), (1e12, (2**32 - 2) / 1000), (None, None)]:
        assert Reader().feed(HELLO + Goaway(within).encode())[1] == Goaway(read)


# Over QUIC.

OLD = ["postgresql"]


def speak_old(pair: Pair, *, client: bool = False, server: bool = False) -> Pair:
    """One end that knows only "postgresql": it allows no control stream either."""
    for end, old in ((pair.client, client), (pair.server, server)):
        if old:
            end.driver.quic.configuration.alpn_protocols = OLD
            end.driver.quic._set_limits(end.driver.quic.limits)
    return pair


def test_both_ends_say_hello_and_sessions_are_not_fewer_for_it() -> None:
    it = Pair(server=QuicLimits(max_streams=3), accept=Echo).connect()
    it.run(0.1)
    assert (it.client.driver.control.hello, it.server.driver.control.hello) == (Hello(), Hello())
    assert it.client.driver.stream_credit == 3
    assert (len(it.client.driver.streams), len(it.server.driver.streams)) == (0, 0)
    sessions = [it.open() for _ in range(3)]
    sessions[-1].transport.write(b"hello")
    it.until(lambda: sessions[-1].data == b"hello")
    assert it.client.driver.stream_credit == 0
    assert [protocol.transport.get_extra_info("stream_id") for protocol in sessions] == [0, 4, 8]
    it.close()


def test_goaway_reaches_the_client_and_hurts_no_session() -> None:
    it = Pair(accept=Echo).connect()
    heard: list[Goaway] = []
    it.client.driver.control.on_goaway = heard.append
    session = it.open()
    it.server.driver.control.send(Goaway(30.0))
    it.server.driver.control.send(Goaway(5.0, ("gw2", 6432)))
    it.until(lambda: len(heard) == 2)
    assert heard == [Goaway(30.0), Goaway(5.0, ("gw2", 6432))]
    session.transport.write(b"goes on")
    it.until(lambda: session.data == b"goes on")
    it.close()


def test_goaway_is_heard_over_a_link_that_loses_packets() -> None:
    it = Pair(accept=Echo, loss=0.3, seed=7)
    heard: list[Goaway] = []
    it.client.driver.control.on_goaway = heard.append
    it.connect()
    it.until(lambda: it.server.driver.control.speaks)
    it.server.driver.control.send(Goaway(1.0))
    it.until(lambda: heard == [Goaway(1.0)])
    it.close()


@pytest.mark.parametrize(("client", "server"), [(True, False), (False, True), (True, True)])
def test_with_one_that_speaks_plain_postgresql_all_is_as_without(client: bool, server: bool) -> None:
    it = speak_old(Pair(accept=Echo), client=client, server=server).connect()
    assert it.client.driver.quic.tls.alpn_negotiated == "postgresql"
    it.server.driver.control.send(Goaway(1.0))
    session = it.open()
    session.transport.write(b"hello")
    it.until(lambda: session.data == b"hello")
    for end in (it.client, it.server):
        assert not end.driver.control.speaks
        assert end.driver.control.hello is None
        assert len(end.driver.quic._streams) == 1
    it.close()


def test_a_client_cannot_send_a_gateway_away() -> None:
    it = Pair(accept=Echo).connect()
    heard: list[Goaway] = []
    it.server.driver.control.on_goaway = heard.append
    it.client.driver.control.send(Goaway(1.0))
    it.run(0.5)
    assert heard == []
    assert it.server.driver.is_ready
    it.close()


def _garbage(it: Pair) -> None:
    it.client.driver.quic.write(it.client.driver.control._ours, frame(1, b""))  # type: ignore[arg-type]


def _end(it: Pair) -> None:
    it.client.driver.quic.write(it.client.driver.control._ours, b"", True)  # type: ignore[arg-type]


def _reset(it: Pair) -> None:
    it.client.driver.quic.reset(it.client.driver.control._ours, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("breach", "words"),
    [
        (_garbage, "code 1: on the control stream: a second HELLO"),
        (_end, "code 1: the control stream has ended"),
        (_reset, "code 1: the control stream was reset"),
    ],
)
def test_who_breaks_the_rules_loses_the_connection(breach: Callable[[Pair], None], words: str) -> None:
    it = Pair(accept=Echo).connect()
    it.run(0.1)
    session = it.open(Recorder)
    it.run(0.1)
    breach(it)
    it.client.driver.touch()
    it.until(lambda: it.client.driver.is_lost and it.server.driver.is_lost)
    assert words in str(it.client.driver.error)
    it.run(0.1)
    assert words in str(session.lost[0])
    it.run(2.0)


def test_a_second_control_stream_is_one_too_many() -> None:
    it = Pair(accept=Echo).connect()
    it.client.driver.quic._remote_max_streams_uni = 5
    stream = it.client.driver.quic.open_control()
    assert stream is not None
    it.client.driver.quic.write(stream, HELLO)
    it.client.driver.touch()
    it.until(lambda: it.client.driver.is_lost)
    assert "STREAM_LIMIT_ERROR" in str(it.client.driver.error)
    it.run(2.0)


def test_nobody_writes_into_the_control_stream_of_the_other_end() -> None:
    it = Pair(accept=Echo).connect()
    it.run(0.1)
    stream = it.client.driver.control._theirs
    assert stream is not None
    stream.sender.is_finished = False
    stream.max_stream_data_remote = 100
    it.client.driver.quic.write(stream, b"!")
    it.client.driver.touch()
    it.until(lambda: it.client.driver.is_lost)
    assert "FLOW_CONTROL_ERROR" in str(it.client.driver.error)
    it.run(2.0)


def test_who_does_not_want_to_hear_is_not_spoken_to() -> None:
    it = Pair(accept=Echo).connect()
    it.run(0.1)
    theirs = it.client.driver.control._theirs
    assert theirs is not None
    theirs.receiver.stop(0)
    it.client.driver.quic.activate(theirs)
    it.client.driver.touch()
    it.until(lambda: not it.server.driver.control.speaks)
    it.server.driver.control.send(Goaway(1.0))
    it.run(0.5)
    assert "reset" in str(it.client.driver.error)
    it.run(2.0)


def test_a_long_talk_is_given_credit() -> None:
    """Frames of unknown types for ever: they are dropped, and paid for."""
    it = Pair(accept=Echo, server=QuicLimits(stream_window=8 << 10, max_stream_window=8 << 10)).connect()
    it.run(0.1)
    heard: list[Goaway] = []
    ours = it.server.driver.control._ours
    assert ours is not None
    it.client.driver.control.on_goaway = heard.append
    for _ in range(100):
        it.server.driver.quic.write(ours, frame(200, bytes(4000)))
    it.server.driver.control.send(Goaway(None))
    it.until(lambda: heard == [Goaway(None)])
    assert it.client.driver.held_bytes == 0
    it.close()
