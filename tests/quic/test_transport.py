"""StreamTransport against asyncio's contract, over a link with 30 ms of round trip in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.quic_pair import Echo, Pair, Recorder, sessions_of
from pgtrunk.errors import SessionLost
from pgtrunk.quic.config import QuicLimits


@pytest.fixture
def pair() -> Pair:
    return Pair().connect()


def far(pair: Pair) -> Any:
    """The server's protocol of the newest stream."""
    return pair.server.accepted[-1]


def opened(pair: Pair, data: bytes = b"hello") -> tuple[Any, Any]:
    """A stream, both ends, after a first message."""
    near = pair.open()
    near.transport.write(data)
    count = len(pair.server.accepted)
    pair.until(lambda: len(pair.server.accepted) > count and far(pair).data == data)
    pair.until(lambda: near.transport.get_write_buffer_size() == 0)
    return near, far(pair)


def streams_left(pair: Pair) -> tuple[int, int]:
    return len(sessions_of(pair.client.driver.quic)), len(sessions_of(pair.server.driver.quic))


def assert_nothing_left(pair: Pair) -> None:
    pair.run(1.0)
    assert streams_left(pair) == (0, 0)
    assert not pair.client.driver.streams
    assert not pair.server.driver.streams
    assert pair.client.driver.held_bytes == pair.server.driver.held_bytes == 0
    assert pair.loop.failures == []


def test_data_goes_both_ways_as_exact_bytes(pair: Pair) -> None:
    near, there = opened(pair)
    there.transport.write(bytearray(b"wor"))
    there.transport.write(memoryview(b"ld"))
    there.transport.writelines([b"!", memoryview(b"?"), bytearray(b".")])
    pair.until(lambda: near.data == b"world!?.")
    assert near.calls == there.calls == ["made"]


def test_writes_of_one_tick_share_a_datagram(pair: Pair) -> None:
    protocols = [pair.open() for _ in range(8)]
    before = pair.up.sent
    for protocol in protocols:
        protocol.transport.write(bytes(100))
    pair.until(lambda: len(pair.server.accepted) == 8)
    assert pair.up.sent == before + 1


def test_messages_are_not_split_to_fill_a_packet(pair: Pair) -> None:
    protocols = [pair.open() for _ in range(40)]
    for protocol in protocols:
        protocol.transport.write(bytes(200))
    pair.run(0.5)
    assert [each.chunks for each in pair.server.accepted] == [[bytes(200)]] * 40


def test_memoryview_of_wider_items_is_written_as_bytes(pair: Pair) -> None:
    near = pair.open()
    near.transport.write(memoryview(bytes(range(16))).cast("I"))
    pair.until(lambda: pair.server.accepted != [])
    assert far(pair).data == bytes(range(16))


def test_extra_info(pair: Pair) -> None:
    near, there = opened(pair)
    info = near.transport.get_extra_info
    assert info("peername") == ("192.0.2.2", 6432)
    assert there.transport.get_extra_info("peername") == ("192.0.2.1", 40000)
    assert info("stream_id") == 0
    assert info("quic_connection") is pair.client.driver
    assert info("peercert") is None
    assert info("socket") is None
    assert info("ssl_object", "none") == "none"


def test_half_close_leaves_the_other_half_open(pair: Pair) -> None:
    near, there = opened(pair)
    there.keep_open = True
    near.transport.write_eof()
    near.transport.write_eof()
    pair.until(lambda: "eof" in there.calls)
    assert not there.transport.is_closing()
    with pytest.raises(RuntimeError):
        near.transport.write(b"more")
    there.transport.write(b"late answer")
    there.transport.close()
    pair.until(lambda: near.calls == ["made", "eof", "lost"])
    assert near.data == b"late answer"
    assert near.lost == there.lost == [None]
    assert_nothing_left(pair)


def test_eof_closes_unless_the_protocol_keeps_it_open(pair: Pair) -> None:
    near, there = opened(pair)
    near.transport.write_eof()
    pair.until(lambda: near.calls == ["made", "eof", "lost"])
    assert there.calls == ["made", "eof", "lost"]
    assert near.lost == there.lost == [None]
    assert_nothing_left(pair)


def test_close_sends_everything_first(pair: Pair) -> None:
    near, there = opened(pair, b"x")
    near.transport.write(bytes(2_000_000))
    near.transport.close()
    near.transport.close()
    near.transport.write(b"ignored")
    assert near.transport.is_closing()
    pair.until(lambda: "eof" in there.calls)
    assert len(there.data) == 2_000_001
    assert near.lost == [None]
    assert_nothing_left(pair)


def test_close_delivers_nothing_more(pair: Pair) -> None:
    near, there = opened(pair)
    near.transport.close()
    there.transport.write(b"too late")
    pair.until(lambda: near.lost != [])
    assert_nothing_left(pair)
    assert near.data == b""


def test_what_is_written_before_close_arrives_though_the_far_end_stops_us() -> None:
    """A gateway's last ErrorResponse travels with FIN and STOP_SENDING in one packet."""
    pair = Pair().connect()
    near, there = opened(pair)
    there.transport.write(b"FATAL")
    there.transport.close()
    pair.until(lambda: near.lost != [])
    assert near.data == b"FATAL"
    assert near.calls == ["made", "eof", "lost"]
    assert near.lost == [None]
    assert_nothing_left(pair)


def test_writing_to_an_end_that_stopped_reading_goes_nowhere(pair: Pair) -> None:
    near, there = opened(pair)
    near.keep_open = True
    there.transport.close()
    pair.until(lambda: "eof" in near.calls)
    near.transport.write(bytes(1_000_000))
    assert near.transport.get_write_buffer_size() == 0
    assert "pause" not in near.calls
    near.transport.close()
    assert_nothing_left(pair)


def test_a_paused_writer_is_freed_when_the_far_end_stops_reading(pair: Pair) -> None:
    near, there = opened(pair)
    near.keep_open = True
    there.transport.pause_reading()
    near.transport.write(bytes(1_000_000))
    assert near.calls[-1] == "pause"
    there.transport.close()
    pair.until(lambda: "resume" in near.calls)
    near.transport.close()
    assert_nothing_left(pair)


def test_abort_resets_both_halves(pair: Pair) -> None:
    near, there = opened(pair)
    near.transport.write(bytes(500_000))
    near.transport.abort()
    near.transport.abort()
    pair.until(lambda: there.lost != [])
    assert near.lost == [None]
    assert isinstance(there.lost[0], SessionLost)
    assert "reset" in str(there.lost[0])
    assert_nothing_left(pair)


def test_abort_from_the_accepting_side(pair: Pair) -> None:
    near, there = opened(pair)
    there.transport.abort()
    pair.until(lambda: near.lost != [])
    assert isinstance(near.lost[0], SessionLost)
    assert_nothing_left(pair)


def test_abort_after_close_drops_what_was_not_sent(pair: Pair) -> None:
    near, there = opened(pair)
    there.transport.pause_reading()
    near.transport.write(bytes(5_000_000))
    near.transport.close()
    pair.run(1.0)
    assert near.lost == []
    near.transport.abort()
    pair.until(lambda: near.lost != [])
    assert_nothing_left(pair)


def test_connection_lost_comes_once_and_never_from_within_a_call(pair: Pair) -> None:
    near, there = opened(pair)
    for protocol in (near, there):
        protocol.transport.close()
        assert protocol.lost == []
        protocol.transport.abort()
        assert protocol.lost == []
    pair.client.driver.close()
    assert near.lost == []
    pair.run(3.0)
    assert len(near.lost) == len(there.lost) == 1


def test_connection_lost_names_why_the_connection_ended(pair: Pair) -> None:
    near, there = opened(pair)
    pair.server.driver.close(code=7, reason="shutting down")
    assert (near.lost, there.lost) == ([], [])
    pair.until(lambda: near.lost != [])
    assert isinstance(near.lost[0], SessionLost)
    assert "code 7: shutting down" in str(near.lost[0])
    assert isinstance(there.lost[0], SessionLost)


def test_a_protocol_that_fails_loses_its_own_stream_only(pair: Pair) -> None:
    class Broken(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("broken")

    near, there = opened(pair)
    broken = pair.open(Broken)
    broken.transport.write(b"x")
    pair.until(lambda: len(pair.server.accepted) == 2)
    far(pair).transport.write(b"boom")
    pair.until(lambda: broken.lost != [] and far(pair).lost != [])
    assert [str(context["exception"]) for context in pair.loop.failures] == ["broken"]
    there.transport.write(b"still here")
    pair.until(lambda: near.data == b"still here")


def test_an_acceptor_or_protocol_that_fails_at_the_start_loses_its_own_stream_only(pair: Pair) -> None:
    class Broken(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            raise ValueError("broken")

    def refuse() -> Recorder:
        raise LookupError("no such pool")

    near, there = opened(pair)
    for factory in (Broken, refuse):
        pair.server.make = factory
        other = pair.open()
        other.transport.write(b"x")
        pair.until(lambda other=other: other.lost != [])  # type: ignore[misc]
    assert [str(context["exception"]) for context in pair.loop.failures] == ["broken", "no such pool"]
    there.transport.write(b"still here")
    pair.until(lambda: near.data == b"still here")
    with pytest.raises(ValueError, match="broken"):
        pair.open(Broken)
    pair.run(0.1)
    assert len(pair.client.driver.streams) == 1


def test_a_protocol_may_close_in_the_middle_of_its_data(pair: Pair) -> None:
    near, there = opened(pair)
    there.on_data = lambda data: there.transport.close()
    near.transport.write(bytes(30_000))
    pair.until(lambda: there.lost != [])
    assert_nothing_left(pair)


# -- reading


def test_pause_keeps_what_arrives_and_resume_delivers_it_in_order(pair: Pair) -> None:
    near, there = opened(pair, b"0")
    there.transport.pause_reading()
    there.transport.pause_reading()
    assert not there.transport.is_reading()
    for digit in b"123456789":
        near.transport.write(bytes([digit]))
        pair.run(0.02)
    near.transport.write_eof()
    pair.run(0.5)
    assert (there.data, there.calls) == (b"0", ["made"])
    assert pair.server.driver.held_bytes == 9
    there.transport.resume_reading()
    assert there.data == b"0"  # never from within resume_reading
    pair.until(lambda: "eof" in there.calls)
    assert there.data == b"0123456789"
    assert pair.server.driver.held_bytes == 0


def test_pausing_from_data_received_holds_what_follows(pair: Pair) -> None:
    near, there = opened(pair, b"first")
    there.on_data = lambda data: there.transport.pause_reading()
    near.transport.write(bytes(5000))
    pair.run(0.5)
    delivered = len(there.data)
    assert delivered < 5005
    assert pair.server.driver.held_bytes == 5000  # what was delivered is owed until the protocol goes on
    there.on_data = lambda data: None
    there.transport.resume_reading()
    pair.until(lambda: len(there.data) == 5005)
    assert pair.server.driver.held_bytes == 0


def test_a_paused_reader_stops_the_far_end(pair: Pair) -> None:
    near, there = opened(pair, b"x")
    there.transport.pause_reading()
    near.transport.write(bytes(10_000_000))
    pair.run(20.0)
    window = pair.server.driver.quic.limits.initial_window
    assert pair.server.driver.held_bytes == window - 1
    assert near.transport.get_write_buffer_size() >= 10_000_000 - window
    there.transport.resume_reading()
    pair.until(lambda: len(there.data) == 10_000_001)


def test_reading_stays_paused_for_a_closing_transport(pair: Pair) -> None:
    near, there = opened(pair)
    there.transport.pause_reading()
    near.transport.write(b"unread")
    pair.run(0.1)
    there.transport.close()
    there.transport.resume_reading()
    assert not there.transport.is_reading()
    assert_nothing_left(pair)


# -- writing


def test_watermarks(pair: Pair) -> None:
    near, there = opened(pair, b"x")
    limits = pair.client.driver.quic.limits
    assert near.transport.get_write_buffer_limits() == (limits.low_water, limits.high_water)
    there.transport.pause_reading()
    near.transport.write(bytes(limits.high_water))
    assert near.calls == ["made"]
    near.transport.write(b"1")
    assert near.calls == ["made", "pause"]
    near.transport.write(b"2")
    assert near.calls == ["made", "pause"]
    pair.run(5.0)
    assert near.calls == ["made", "pause"]
    sizes: list[int] = []
    near.resume_writing = lambda: sizes.append(near.transport.get_write_buffer_size())
    there.transport.resume_reading()
    pair.until(lambda: sizes != [])
    assert sizes[0] <= limits.low_water
    pair.run(5.0)
    assert near.transport.get_write_buffer_size() == 0
    assert len(sizes) == 1


def test_watermarks_can_be_moved(pair: Pair) -> None:
    near, there = opened(pair)
    there.transport.pause_reading()
    near.transport.set_write_buffer_limits(high=1000, low=10)
    near.transport.write(bytes(50_000))
    assert near.calls == ["made", "pause"]
    with pytest.raises(ValueError, match="must be >="):
        near.transport.set_write_buffer_limits(high=1, low=2)
    near.transport.set_write_buffer_limits(low=100)
    assert near.transport.get_write_buffer_limits() == (100, 400)
    near.transport.set_write_buffer_limits()
    assert near.transport.get_write_buffer_limits() == (64 << 10, 256 << 10)
    there.transport.resume_reading()
    pair.until(lambda: "resume" in near.calls)


def test_lowering_the_mark_pauses_at_once(pair: Pair) -> None:
    near, _ = opened(pair)
    near.transport.write(bytes(50_000))
    assert near.calls == ["made"]
    near.transport.set_write_buffer_limits(high=0)
    assert near.calls == ["made", "pause"]
    pair.until(lambda: "resume" in near.calls)


def test_set_protocol(pair: Pair) -> None:
    near, there = opened(pair)
    other = Recorder()
    near.transport.set_protocol(other)
    assert near.transport.get_protocol() is other
    there.transport.write(b"to the other")
    pair.until(lambda: other.data == b"to the other")
    assert near.data == b""


def test_repr_says_what_state_it_is_in(pair: Pair) -> None:
    near, _ = opened(pair)
    assert repr(near.transport).startswith("<StreamTransport 0 open of <ConnectionDriver 192.0.2.2:6432 open")
    near.transport.pause_reading()
    assert "paused" in repr(near.transport)
    near.transport.close()
    assert "closing" in repr(near.transport)
    pair.run(1.0)
    assert "lost" in repr(near.transport)


def test_on_closed_follows_connection_lost(pair: Pair) -> None:
    told: list[Any] = []
    transport, protocol = pair.client.driver.open_stream(
        Recorder, on_closed=lambda error: told.append((error, list(protocol.calls)))
    )
    transport.close()
    pair.run(0.1)
    assert told == [(None, ["made", "lost"])]


async def test_asyncio_streams_work_over_it() -> None:
    """asyncio's own StreamReaderProtocol is as demanding a user as there is; here on a real loop's primitives."""
    pair = Pair(accept=Echo, server=QuicLimits(max_streams=1)).connect()
    reader = asyncio.StreamReader()
    transport, protocol = pair.client.driver.open_stream(lambda: asyncio.StreamReaderProtocol(reader))
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    writer.write(b"line\n")
    pair.run(0.1)
    assert await reader.readline() == b"line\n"
    writer.write_eof()
    pair.run(0.1)
    assert await reader.read() == b""
    writer.close()
    pair.run(0.1)
