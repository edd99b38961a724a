"""The control stream: its frames in any pieces, what breaks the rules, and who speaks it with whom."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.quic_pair import Echo, Pair, Recorder
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.control import MAX_LENGTH, WANTS_STATS, ControlError, Goaway, Hello, Reader, Stage, Stats

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)
PLACES = st.tuples(HOSTS, st.integers(1, 0xFFFF))
GOAWAYS = st.builds(Goaway, st.none() | st.integers(0, 2**32 - 2).map(lambda ms: ms / 1000), st.none() | PLACES)
STAGES = st.builds(
    Stage,
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1)), min_size=1, max_size=255).map(tuple),
)
STATS = st.builds(Stats, STAGES | st.just(Stage()), STAGES)
HELLO = Hello(0).encode()


def frame(kind: int, body: bytes, version: int = 1) -> bytes:
    return (len(body) + 2).to_bytes(2, "big") + bytes((kind, version)) + body


STRANGE = st.builds(
    frame,
    st.integers(4, 255),
    st.binary(max_size=300),
    st.integers(0, 255),
) | st.builds(frame, st.sampled_from([2, 3]), st.binary(max_size=300), st.sampled_from([0, 2, 255]))
"""Of unknown types and versions."""


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


@given(
    st.integers(0, 2**32 - 1),
    st.lists(GOAWAYS | STATS | STRANGE, max_size=5),
    st.lists(st.integers(0, 5000), max_size=8),
)
def test_frames_come_back_from_any_pieces_and_the_unknown_are_skipped(
    features: int, later: list[Goaway | Stats | bytes], cuts: list[int]
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
        (HELLO + frame(3, b""), "a STATS of 0 octets"),
        (HELLO + frame(3, b"\x01"), "a STATS of 1 octets"),
        (HELLO + frame(3, b"\x01\x01" + bytes(8) + b"\0\x02" + b"\x20\0\0\0\x01" * 1), "a STATS of 17 octets"),
        (HELLO + frame(3, b"\x01\x01" + bytes(8) + b"\0\x02" + b"\x20\0\0\0\x01\x21"), "a STATS of 18 octets"),
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


def test_the_octets_of_a_stats() -> None:
    """Three executions: two of 20 ms, one of 5 microseconds; one of them waited 1.5 s for its backend."""
    stats = Stats(Stage.of([1.5]), Stage.of([0.02, 0.02, 0.000005]))
    assert stats.encode() == bytes.fromhex(
        "0028 03 01"  # 40 octets follow: STATS, version 1
        "02"  # two stages
        "01 000000000016e360 0001"  # the wait, 1,500,000 microseconds, in one bucket:
        "93 00000001"  # from 1,441,792 microseconds
        "02 0000000000009c45 0002"  # the execution, 40,005 microseconds, in two:
        "05 00000001"  # 5
        "61 00000002"  # from 18,432
    )
    assert Reader().feed(HELLO + stats.encode())[1:] == [stats]


def test_a_stats_leaves_out_what_there_was_none_of_and_a_later_one_may_have_more() -> None:
    execution = Stage.of([0.001])
    body = Stats(execution=execution).encode()[4:]
    assert body[0] == 1
    later = b"\x02" + Stage.of([3.0]).encode(9) + body[1:] + b"and more"
    assert Reader().feed(HELLO + frame(3, later))[1:] == [Stats(execution=execution)]
    assert Reader().feed(HELLO + Stats().encode())[1:] == [Stats()]


def test_the_largest_stats_fits_its_frame() -> None:
    full = Stage(2**64 - 1, tuple((bucket, 2**32 - 1) for bucket in range(256)))
    data = Stats(full, full).encode()
    assert len(data) < MAX_LENGTH
    assert Reader().feed(HELLO + data)[1:] == [Stats(full, full)]
    assert Stage(-1, ((0, 2**40),)).encode(1) == Stage(0, ((0, 2**32 - 1),)).encode(1)


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


def test_stats_reach_the_client_and_mean_nothing_to_a_gateway() -> None:
    it = Pair(accept=Echo)
    it.client.driver.control.features = WANTS_STATS
    it.connect()
    heard: list[Stats] = []
    it.client.driver.control.on_stats = it.server.driver.control.on_stats = heard.append
    stats = Stats(execution=Stage.of([0.1]))
    it.client.driver.control.send(stats)
    it.server.driver.control.send(stats)
    it.until(lambda: bool(heard))
    it.run(0.1)
    assert heard == [stats]
    assert it.server.driver.control.hello == Hello(WANTS_STATS)
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
