"""A silent gateway is asked, a dead path is found in time, and one that is slow or quiet is not taken for dead."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.quic_pair import Echo, Pair
from pgtrunk.quic.config import QuicLimits

FOUND = 3.0
"""Seconds within which a dead path is to be found while work is outstanding."""


class Watch:
    """What a client's connection says of its gateway, and when."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.said: list[tuple[float, bool]] = []
        pair.client.driver.on_suspect = lambda silent: self.said.append((pair.loop.time(), silent))
        self.start = pair.loop.time()

    @property
    def found(self) -> float:
        """Seconds until the connection was suspect."""
        (first, silent), *_ = self.said
        assert silent
        return first - self.start

    @property
    def states(self) -> list[bool]:
        return [silent for _, silent in self.said]

    def dies(self, *directions: str) -> None:
        """From now on nothing gets through."""
        self.start = self.pair.loop.time()
        for direction in directions or ("up", "down"):
            getattr(self.pair, direction).drop = lambda data: True

    def comes_back(self) -> None:
        self.start = self.pair.loop.time()
        self.pair.up.drop = self.pair.down.drop = lambda data: False


def watched(idle: float = 0.7, **settings: Any) -> tuple[Pair, Watch, Any]:
    """A connection with a stream that was used, and then not for ``idle`` seconds."""
    pair = Pair(accept=Echo, **settings).connect()
    protocol = pair.open()
    protocol.transport.write(b"x")
    pair.run(idle)
    return pair, Watch(pair), protocol


# What is outstanding.


@pytest.mark.parametrize("idle", [0.3, 1.0, 1.9])
def test_a_query_that_nobody_answers_is_noticed_in_a_second(idle: float) -> None:
    pair, watch, protocol = watched(idle)
    watch.dies()
    protocol.transport.write(b"query")
    pair.run(FOUND)
    assert watch.found <= 1.0
    assert pair.client.driver.is_suspect
    assert pair.client.driver.is_ready, "it lives on until the idle timeout"


@pytest.mark.parametrize("idle", [0.3, 1.0, 1.9, 2.5])
def test_streams_that_say_nothing_have_a_ping_asked_for_them(idle: float) -> None:
    pair, watch, _ = watched(idle)
    watch.dies()
    pair.run(FOUND)
    assert watch.found <= FOUND


def test_one_who_goes_on_sending_is_told_all_the_same() -> None:
    """Each new packet puts the probe timeout off."""
    pair, watch, protocol = watched()
    watch.dies()
    for _ in range(150):
        protocol.transport.write(b"query")
        pair.run(0.02)
    assert watch.found <= FOUND


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("speaks", [False, True])
def test_a_path_that_is_dead_in_one_direction_is_dead(direction: str, speaks: bool) -> None:
    pair, watch, protocol = watched()
    watch.dies(direction)
    protocol.transport.write(b"query")
    for _ in range(30):
        if speaks:
            pair.server.accepted[0].transport.write(b"an answer that takes long")
        pair.run(0.1)
    assert watch.found <= FOUND
    assert pair.client.driver.is_suspect


def test_without_streams_nothing_is_asked_and_nothing_suspected() -> None:
    pair, watch, protocol = watched()
    protocol.transport.close()
    pair.run(1.0)
    watch.dies()
    sent = pair.up.sent
    pair.run(5.0)
    assert (pair.up.sent, watch.said) == (sent, [])


# What is not taken for it.


@pytest.mark.parametrize("delay", [0.0001, 0.015, 0.3, 0.6])
def test_a_long_way_is_no_dead_one(delay: float) -> None:
    pair, watch, protocol = watched(5.0, delay=delay)
    for _ in range(10):
        protocol.transport.write(b"query")
        pair.run(4.0)
    assert watch.said == []


def test_a_lossy_way_is_no_dead_one() -> None:
    pair, watch, protocol = watched(loss=0.1)
    for _ in range(300):
        protocol.transport.write(b"query")
        pair.run(0.3)
    assert watch.said == []


def test_a_query_that_takes_long_is_acknowledged_and_no_reason_to_worry() -> None:
    pair, watch, _ = watched()
    pair.run(60.0)
    assert watch.said == []


def test_first_words_after_a_while_do_not_count_from_before() -> None:
    pair, watch, protocol = watched(1.9)
    for pause in (0.2, 0.95, 1.5, 1.99, 3.0, 10.0):
        protocol.transport.write(b"query")
        pair.run(pause)
    assert watch.said == []


def test_a_loop_that_stood_still_reads_before_it_judges() -> None:
    pair, _, protocol = watched()
    keepalive = pair.client.driver.keepalive
    assert keepalive is not None
    protocol.transport.write(b"query")
    pair.run(0.001)
    now = pair.loop.time()
    keepalive.look(now + 2.0, has_streams=True)
    assert not keepalive.is_suspect
    keepalive.look(now + 2.01, has_streams=True)
    assert not keepalive.is_suspect
    keepalive.look(now + 2.06, has_streams=True)
    assert keepalive.is_suspect


# When it is back.


@pytest.mark.parametrize("blackout", [1.5, 3.0, 5.0, 8.0])
def test_a_path_that_is_back_is_found_within_a_second(blackout: float) -> None:
    pair, watch, protocol = watched()
    watch.dies()
    protocol.transport.write(b"query")
    pair.run(blackout)
    watch.comes_back()
    pair.until(lambda: protocol.data == b"xquery", 2.0)
    pair.until(lambda: not pair.client.driver.is_suspect, 1.0)
    assert watch.states == [True, False]
    pair.run(20.0)
    assert watch.states == [True, False]
    assert pair.client.driver.is_ready


def test_a_full_window_does_not_keep_it_from_asking() -> None:
    pair, watch, protocol = watched()
    watch.dies()
    protocol.transport.write(bytes(1 << 20))
    pair.run(6.0)
    watch.comes_back()
    pair.until(lambda: not pair.client.driver.is_suspect, 1.5)
    pair.until(lambda: len(protocol.data) == 1 + (1 << 20), 30.0)
    assert watch.states == [True, False]


def test_after_the_idle_timeout_it_is_lost_and_says_nothing_more() -> None:
    pair, watch, protocol = watched()
    watch.dies()
    protocol.transport.write(b"query")
    pair.run(15.0)
    assert watch.states == [True]
    assert pair.client.said[-2:] == ["lost", "closed"]
    assert protocol.lost != []


# How often it asks.


def test_the_option_says_how_long_silence_may_be() -> None:
    pair, watch, _ = watched(client=QuicLimits(max_streams=0, keepalive=0.5, idle_timeout=10.0))
    keepalive = pair.client.driver.keepalive
    assert keepalive is not None
    before = keepalive.pings
    pair.run(10.0)
    assert 16 <= keepalive.pings - before <= 20
    watch.dies()
    pair.run(FOUND)
    assert watch.found <= 1.5


def test_it_is_never_longer_than_a_third_of_the_idle_timeout_of_either_end() -> None:
    pair, _, _ = watched(
        client=QuicLimits(max_streams=0, keepalive=60.0), server=QuicLimits(idle_timeout=3.0), idle=30.0
    )
    assert pair.client.driver.is_ready


def test_one_that_is_kept_lives_on_without_streams_at_a_third_of_the_idle_timeout() -> None:
    pair = Pair().connect()
    watch = Watch(pair)
    pair.client.driver.keeps_idle = True
    before = pair.up.sent
    pair.run(60.0)
    assert pair.client.driver.is_ready
    keepalive = pair.client.driver.keepalive
    assert keepalive is not None
    assert 16 <= keepalive.pings <= 19
    assert pair.up.sent - before <= 2 * keepalive.pings + 2
    watch.dies()
    pair.run(5.0)
    assert watch.states == [True], "whoever comes next goes elsewhere"
    watch.comes_back()
    pair.run(2.0)
    assert watch.states == [True, False]
    pair.client.driver.keeps_idle = False
    pair.run(11.0)
    assert not pair.client.driver.is_ready


def test_a_server_asks_nothing() -> None:
    pair, _, _ = watched()
    assert pair.server.driver.keepalive is None
    pair.server.driver.keeps_idle = True
    assert not pair.server.driver.keeps_idle
    pair.up.drop = pair.down.drop = lambda data: True
    pair.run(5.0)
    assert not pair.server.driver.is_suspect
