"""Early data between two ends in virtual time: when it arrives, and what it costs where it is not taken."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from helpers.quic_pair import SERVER_ADDR, Echo, Pair, Recorder, sessions_of
from helpers.tls_pair import Clock, policy
from pgtrunk.errors import SessionLost
from pgtrunk.quic.config import QuicLimits
from pgtrunk_gateway.quic.server_tls import HandshakePolicy, ServerContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic import tls

ROUND_TRIP = 0.03
"""Seconds, of the link of a pair."""
INITIAL_RTT = 0.05
"""Seconds that a client takes for the round trip time as long as it knows none; it probes after twice that."""


@dataclass
class Site:
    """A gateway's policy, and the tickets that a client has of it."""

    held_to: HandshakePolicy
    tickets: list[tls.SessionTicket] = field(default_factory=list)

    def pair(self, *, with_ticket: bool = True, **settings: Any) -> Pair:
        ticket = self.tickets.pop() if with_ticket else None
        return Pair(
            accept=settings.pop("accept", Echo),
            resume=(ticket, self.tickets.append),
            make_tls=lambda stock: ServerContext(stock, self.held_to),
            **settings,
        )

    def begin(self, **settings: Any) -> Pair:
        """A pair whose client has said what it can at once, by a driver that has not heard a word."""
        pair = self.pair(**settings)
        pair.client.driver.connect(SERVER_ADDR)
        return pair

    def ticket_from(self, **settings: Any) -> None:
        """Get the first ticket."""
        pair = self.pair(with_ticket=False, **settings).connect()
        pair.until(lambda: bool(self.tickets))
        pair.close()

    def change(self, **changes: Any) -> None:
        self.held_to = replace(self.held_to, **changes)


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time())


@pytest.fixture
def site(clock: Clock) -> Site:
    entropy = iter(range(1, 1 << 20))
    made = policy(None, clock)
    site = Site(replace(made, early=True, entropy=lambda size: next(entropy).to_bytes(size, "big")))
    site.ticket_from()
    return site


def round_trips(pair: Pair, protocol: Recorder, size: int) -> float:
    """Run until the answer is there, and return how many round trips that took."""
    began = pair.loop.time()
    pair.until(lambda: len(protocol.data) == size)
    return (pair.loop.time() - began) / ROUND_TRIP


def ask(pair: Pair, data: bytes = b"hello") -> Recorder:
    protocol: Recorder = pair.open()
    protocol.transport.write(data)
    return protocol


def test_the_answer_to_early_data_is_there_after_one_round_trip(site: Site) -> None:
    pair = site.begin()
    assert pair.client.driver.is_early
    asked = ask(pair)
    assert asked.transport.get_extra_info("early") is True
    assert round_trips(pair, asked, 5) == pytest.approx(1, abs=0.1)
    assert pair.client.driver.took_early
    assert not pair.client.driver.is_early
    assert asked.transport.get_extra_info("early") is False
    pair.until(lambda: pair.server.driver.is_ready)
    assert site.held_to.counters.early == 1
    assert site.held_to.counters.full == 1


def test_without_a_ticket_it_is_there_after_two(site: Site) -> None:
    pair = site.pair(with_ticket=False)
    began = pair.loop.time()
    pair.client.driver.connect(SERVER_ADDR)
    pair.until(lambda: pair.client.driver.is_ready)
    asked = ask(pair)
    pair.until(lambda: len(asked.data) == 5)
    assert (pair.loop.time() - began) / ROUND_TRIP == pytest.approx(2, abs=0.1)


def is_initial(data: bytes) -> bool:
    return data[0] & 0xF0 == 0xC0


def is_early(data: bytes) -> bool:
    return data[0] & 0xF0 == 0xD0


@pytest.mark.parametrize(
    ("lost", "most"),
    [
        (is_initial, 2 * INITIAL_RTT / ROUND_TRIP + 1.1),
        (lambda data: is_initial(data) or is_early(data), 2 * INITIAL_RTT / ROUND_TRIP + 1.1),
        (is_early, 3.5),
    ],
    ids=["the hello", "all of it", "early data"],
)
def test_a_flight_of_which_something_is_lost(site: Site, lost: Callable[[bytes], bool], most: float) -> None:
    """Early data is not waited for: it leaves again with the hello; or when what follows it is acknowledged."""
    pair = site.pair()
    first = pair.loop.time() + ROUND_TRIP / 2
    pair.up.drop = lambda data: pair.loop.time() < first and lost(data)
    pair.client.driver.connect(SERVER_ADDR)
    asked = ask(pair)
    assert round_trips(pair, asked, 5) <= most
    assert pair.client.driver.took_early


REJECTED = {
    "early data is off": {"early": False},
    "another key": {"tickets": policy(None, Clock(0.0), key=b"x" * 32).tickets},
}


@pytest.mark.parametrize("changes", REJECTED.values(), ids=REJECTED.keys())
def test_rejected_it_costs_one_round_trip_and_no_error(site: Site, changes: dict[str, Any]) -> None:
    site.change(**changes)
    pair = site.begin()
    asked = ask(pair)
    assert round_trips(pair, asked, 5) == pytest.approx(2, abs=0.1)
    assert not pair.client.driver.took_early
    assert not asked.lost


def test_a_lot_of_rejected_data_arrives_once_and_in_order(site: Site) -> None:
    site.change(early=False)
    pair = site.begin()
    data = bytes(range(256)) * 200
    first, second = ask(pair, data), ask(pair, data[::-1])
    pair.until(lambda: len(first.data) == len(second.data) == len(data))
    assert bytes(first.data) == data
    assert bytes(second.data) == data[::-1]
    pair.run(1.0)
    quic = pair.client.driver.quic
    assert quic._remote_max_data_used == pair.server.driver.quic._local_max_data.used
    assert quic._loss.bytes_in_flight == 0
    assert pair.client.driver.figures().packets_lost == 0


def test_what_ended_early_ends_when_it_is_rejected(site: Site) -> None:
    site.change(early=False)
    pair = site.begin(accept=Recorder)
    finished, aborted = ask(pair), ask(pair)
    pair.run(0.001)
    finished.transport.close()
    aborted.transport.abort()
    pair.run(5.0)
    assert [bytes(each.data) for each in pair.server.accepted] == [b"hello", b""]
    assert pair.server.accepted[0].calls == ["made", "eof", "lost"]
    assert not sessions_of(pair.client.driver.quic)
    assert not sessions_of(pair.server.driver.quic)


def test_a_limit_that_was_lowered_rejects_early_data_and_holds(site: Site) -> None:
    pair = site.begin(server=QuicLimits(stream_window=8 << 10))
    data = bytes(40 << 10)
    asked = ask(pair, data)
    pair.until(lambda: len(asked.data) == len(data))
    assert not pair.client.driver.took_early
    assert pair.client.driver.was_resumed


def test_a_limit_that_was_raised_is_used(site: Site) -> None:
    pair = site.begin(server=QuicLimits(stream_window=128 << 10))
    data = bytes(100 << 10)
    asked = ask(pair, data)
    pair.until(lambda: len(asked.data) == len(data))
    assert pair.client.driver.took_early


def test_fewer_streams_than_were_opened_end_the_connection_in_a_way_that_is_safe_to_retry(site: Site) -> None:
    pair = site.begin(server=QuicLimits(max_streams=2))
    asked = [ask(pair) for _ in range(3)]
    pair.until(lambda: all(each.lost for each in asked))
    for each in asked:
        (error,) = each.lost
        assert isinstance(error, SessionLost)
        assert error.retry_safe
        assert "3 streams were opened early, and 2 are allowed now" in str(error)
    assert not pair.server.accepted


def test_a_ticket_is_good_for_early_data_once(site: Site) -> None:
    ticket = site.tickets[-1]
    first = site.begin()
    assert round_trips(first, ask(first), 5) == pytest.approx(1, abs=0.1)
    first.close()
    site.tickets.append(ticket)
    again = site.begin()
    assert round_trips(again, ask(again), 5) == pytest.approx(2, abs=0.1)
    assert again.client.driver.was_resumed
    again.until(lambda: again.server.driver.is_ready)
    assert site.held_to.counters.late == 1


@pytest.mark.parametrize(("seconds", "taken"), [(5, True), (15, False), (-15, False)])
def test_a_ticket_must_be_as_old_as_the_client_says(site: Site, clock: Clock, seconds: float, taken: bool) -> None:
    clock.now += seconds
    pair = site.begin()
    ask(pair)
    pair.until(lambda: pair.server.driver.is_ready)
    assert pair.server.driver.was_resumed
    assert pair.server.driver.took_early is taken


def test_the_server_is_told_when_what_it_has_heard_is_no_replay(site: Site) -> None:
    said: list[str] = []
    pair = site.begin(accept=Recorder)
    ask(pair)
    pair.until(lambda: bool(pair.server.accepted) and bool(pair.server.accepted[0].data))
    server = pair.server.driver
    assert not server.is_confirmed
    assert server.took_early is False, "not known yet"
    assert pair.server.accepted[0].transport.get_extra_info("early") is True
    server.call_when_confirmed(lambda: said.append("first"))
    server.call_when_confirmed(lambda: 1 // 0)
    server.call_when_confirmed(lambda: said.append("third"))
    pair.run(0.5)
    assert said == ["first", "third"]
    assert server.is_confirmed
    assert len(pair.loop.failures) == 1
    server.call_when_confirmed(lambda: said.append("at once"))
    assert said[-1] == "at once"
    assert pair.server.accepted[0].transport.get_extra_info("early") is False


def test_a_handshake_that_fails_tells_nobody_and_leaves_what_was_asked_safe_to_repeat(site: Site) -> None:
    pair = site.begin(accept=Recorder, client=QuicLimits(max_streams=0, handshake_timeout=2.0))
    pair.down.drop = lambda data: True
    asked = ask(pair)
    pair.until(lambda: bool(pair.server.accepted))
    said: list[str] = []
    pair.server.driver.call_when_confirmed(lambda: said.append("confirmed"))
    pair.run(30.0)
    (error,) = asked.lost
    assert isinstance(error, SessionLost)
    assert error.retry_safe
    assert not error.sent
    assert said == []
    assert pair.server.driver.is_lost


def test_early_data_stays_within_what_a_connection_has_reserved(site: Site) -> None:
    """The credit is not renewed before the handshake is complete, whatever is consumed."""
    pair = site.begin(accept=Recorder)
    data = bytes(60 << 10)
    asked = [ask(pair, data) for _ in range(10)]
    pair.down.drop = lambda data: True
    pair.run(3.0)
    granted = pair.server.driver.quic._local_max_data
    assert granted.used <= granted.value == granted.sent == 256 << 10
    assert sum(len(each.data) for each in pair.server.accepted) <= granted.value
    pair.down.drop = lambda data: False
    pair.until(lambda: sum(len(each.data) for each in pair.server.accepted) == 10 * len(data))
    assert not any(each.lost for each in asked)
