"""Streams that note how long their exchanges take: when one begins and ends, in any packets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from helpers.quic_pair import Pair, Recorder
from pgtrunk.quic.timed import TimedTransport
from pgtrunk.wire.backend import command_complete, ready


class Timed:
    """A stream whose times are noted by a clock that the test moves, and its other end."""

    def __init__(self) -> None:
        self.now = 100.0
        self.times: list[float] = []
        self.pair = Pair().connect()
        self.pair.client.driver.make_transport = partial(TimedTransport, took=self.times.append, clock=lambda: self.now)
        self.client = self.pair.open()

    @property
    def servers(self) -> list[Recorder]:
        return self.pair.server.accepted

    @property
    def transport(self) -> Any:
        return self.client.transport

    def asks(self, data: bytes, *, after: float = 0.0) -> None:
        self.now += after
        before = len(self.servers[0].data) if self.servers else 0
        self.transport.write(data)
        self.pair.until(lambda: bool(self.servers) and len(self.servers[0].data) >= before + len(data))

    def hears(self, data: bytes, *, after: float = 0.0) -> None:
        self.now += after
        before = len(self.client.data)
        self.servers[0].transport.write(data)
        self.pair.until(lambda: len(self.client.data) >= before + len(data))

    def logs_in(self) -> Timed:
        self.asks(b"startup")
        self.hears(b"R....", after=1.0)
        self.asks(b"proof")
        self.hears(b"R...." + ready(), after=1.0)
        assert (self.times, self.transport.is_asking) == ([], False)
        return self


def test_the_login_is_no_exchange_and_each_request_is_one() -> None:
    it = Timed().logs_in()
    it.asks(b"query", after=5.0)
    assert it.transport.is_asking
    assert it.pair.client.driver.figures().asking == 1
    it.hears(b"rows" + command_complete("SELECT 1") + ready(), after=0.25)
    assert (it.times, it.transport.is_asking) == ([0.25], False)
    it.asks(b"query", after=5.0)
    it.hears(ready(b"T"), after=0.5)
    it.asks(b"query", after=5.0)
    it.hears(ready(b"E"), after=0.125)
    assert it.times == [0.25, 0.5, 0.125]
    it.pair.close()


def test_a_request_in_parts_begins_with_the_first_and_an_answer_ends_with_its_last() -> None:
    it = Timed().logs_in()
    it.asks(b"half a ")
    it.asks(b"query", after=0.25)
    it.hears(b"some rows", after=0.25)
    it.hears(b"more rows" + ready(), after=0.5)
    assert it.times == [1.0]
    it.pair.close()


@pytest.mark.parametrize("rows", [b"", b"D", b"rows of an answer"])
def test_an_answer_octet_by_octet(rows: bytes) -> None:
    it = Timed().logs_in()
    for _ in range(2):
        it.asks(b"query")
        for octet in rows + ready():
            assert it.transport.is_asking
            it.hears(bytes((octet,)), after=0.25)
        assert it.times[-1] == 0.25 * len(rows + ready())
    assert len(it.times) == 2
    it.pair.close()


@pytest.mark.parametrize("cut", range(1, 6))
def test_an_answer_whose_end_is_in_two_packets(cut: int) -> None:
    it = Timed().logs_in()
    answer = b"rows of an answer" + ready()
    it.asks(b"query")
    it.hears(answer[:-cut], after=0.25)
    assert it.times == []
    it.hears(answer[-cut:], after=0.25)
    assert it.times == [0.5]
    it.pair.close()


def test_what_comes_unasked_is_no_answer() -> None:
    it = Timed().logs_in()
    it.hears(b"A notification", after=1.0)
    it.hears(ready(), after=1.0)
    assert it.times == []
    it.pair.close()


def test_a_protocol_that_asks_again_within_its_answer() -> None:
    it = Timed().logs_in()

    def ask_again(_: bytes) -> None:
        if len(it.times) < 3:
            it.transport.write(b"query")

    it.client.on_data = ask_again
    it.asks(b"query")
    for _ in range(3):
        it.hears(ready(), after=0.25)
    assert it.times == [0.25, 0.25, 0.25]
    assert not it.transport.is_asking
    it.pair.close()


def test_who_closes_asks_nothing_any_more() -> None:
    it = Timed().logs_in()
    it.asks(b"query")
    it.transport.close()
    assert not it.transport.is_asking
    it.pair.close()
