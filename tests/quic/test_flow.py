"""Receive credit: who may send how much, and what it costs in promises."""

from __future__ import annotations

from typing import Any

import pytest
from aioquic.quic.connection import Limit

from pgtrunk.quic.config import ByteBudget, QuicLimits
from pgtrunk.quic.flow import FORGET, ConnectionCredit
from pgtrunk.quic.stream import Stream

KIB = 1 << 10
RTT = 0.03


class Account:
    """One connection's credit, and the peer that uses it."""

    def __init__(self, budget: ByteBudget | None = None, **limits: Any) -> None:
        self.limits = QuicLimits(**limits)
        self.max_data = Limit(0x10, "max_data", 1)
        self.woken = 0
        self.credit = ConnectionCredit(self.limits, self.max_data, budget, self._wake)
        self.now = 1000.0

    def _wake(self) -> None:
        self.woken += 1

    @property
    def ahead(self) -> int:
        return self.max_data.value - self.max_data.used

    def receive(self, size: int) -> None:
        assert size <= self.ahead, "the peer has no such credit"
        self.max_data.used += size
        self.credit.renew(self.now, RTT)

    def stream(self) -> Stream:
        return Stream(0, self.limits.initial_window, 0)

    def fill(self, most: int = 1 << 40) -> int:
        """Receive all that the peer may send, and nothing is read."""
        total = 0
        while self.ahead and total < most:
            step = min(self.ahead, 1000, most - total)
            self.receive(step)
            total += step
        return total


def test_a_connection_gets_credit_as_bytes_arrive() -> None:
    account = Account()
    for _ in range(100):
        account.receive(100 * KIB)
        assert account.ahead >= 100 * KIB
    assert account.credit.held == 100 * 100 * KIB


def test_held_and_promised_stay_within_the_connections_budget() -> None:
    account = Account(connection_budget=1 << 20)
    assert account.fill() == account.credit.held == 1 << 20
    account.credit.release(1000)
    assert account.credit.renew(account.now, RTT)
    assert account.ahead == 1000


def test_what_is_read_makes_room() -> None:
    account = Account(connection_budget=1 << 20)
    for _ in range(50):
        account.receive(100_000)
        account.credit.release(100_000)
    assert account.credit.held == 0


def test_credit_ahead_grows_with_the_rate_and_shrinks_after_a_rest() -> None:
    account = Account()
    first = account.ahead
    for _ in range(200):
        account.now += 0.001
        account.receive(account.ahead // 2 + 1)
        account.credit.release(account.credit.held)
    grown = account.ahead
    assert first < grown <= 4 << 20
    account.now += FORGET
    account.receive(account.ahead - 10)
    assert account.ahead <= first


def test_the_process_budget_is_never_exceeded() -> None:
    budget = ByteBudget(4 << 20, reserve=256 * KIB)
    accounts = [Account(budget) for _ in range(8)]
    assert budget.committed == 8 * 256 * KIB
    for account in accounts:
        account.fill()
        assert budget.committed <= budget.limit
        assert budget.held <= budget.limit
    assert budget.held == sum(account.credit.held for account in accounts)
    assert budget.held > budget.limit * 0.9


def test_each_connection_has_its_reserve_whatever_the_others_do() -> None:
    budget = ByteBudget(2 << 20, reserve=256 * KIB)
    greedy = Account(budget)
    modest = Account(budget)
    greedy.fill()
    assert modest.fill() >= 256 * KIB


def test_a_connection_that_waits_for_the_budget_is_woken_when_there_is_room() -> None:
    budget = ByteBudget(1 << 20, reserve=64 * KIB)
    first, second = Account(budget), Account(budget)
    first.fill()
    second.fill()
    assert second.ahead == 0
    assert second.woken == 0
    first.credit.release(300 * KIB)
    assert second.woken == 1
    assert second.credit.renew(second.now, RTT)
    assert budget.committed <= budget.limit


def test_a_lost_connection_gives_everything_back() -> None:
    budget = ByteBudget(1 << 20, reserve=64 * KIB)
    account, other = Account(budget), Account(budget)
    account.fill()
    account.credit.close()
    account.credit.close()
    account.credit.release(500)
    assert (account.credit.held, budget.held) == (0, 0)
    other.credit.close()
    assert budget.committed == 0
    assert budget.admits


def test_admission_stops_when_no_reserve_is_left() -> None:
    budget = ByteBudget(1 << 20, reserve=256 * KIB)
    accounts = []
    while budget.admits:
        accounts.append(Account(budget))
    assert len(accounts) == 4
    accounts.pop().credit.close()
    assert budget.admits


@pytest.mark.parametrize("streams", [1, 100, 1000, 5000])
def test_all_streams_blocked_leave_room_for_the_connection(streams: int) -> None:
    limits = QuicLimits(max_streams=streams)
    assert limits.initial_window * streams <= limits.connection_budget // 2
    assert limits.initial_window <= limits.stream_window


def test_a_streams_window_follows_its_consumption() -> None:
    account = Account(max_streams=100)
    stream = account.stream()
    window = stream.window
    stream.consumed = 10_000
    account.credit.renew_stream(stream, account.now, RTT)
    assert stream.max_stream_data_local == 10_000 + window


def test_a_window_grows_while_the_stream_is_read_quickly() -> None:
    account = Account(max_streams=100)
    stream = account.stream()
    for _ in range(20):
        account.now += RTT
        stream.consumed = stream.max_stream_data_local - stream.window // 2
        account.credit.renew_stream(stream, account.now, RTT)
    assert stream.window == account.limits.max_stream_window
    for _ in range(20):
        account.now += FORGET
        stream.consumed = stream.max_stream_data_local
        account.credit.renew_stream(stream, account.now, RTT)
    assert stream.window == account.limits.initial_window


def test_windows_grow_only_as_far_as_blocked_streams_leave_room() -> None:
    account = Account(max_streams=100, connection_budget=16 << 20)
    streams = [account.stream() for _ in range(100)]
    for _ in range(10):
        account.now += RTT / 2
        for stream in streams:
            stream.consumed = stream.max_stream_data_local
            account.credit.renew_stream(stream, account.now, RTT)
    assert sum(stream.window for stream in streams) <= (16 << 20) * 3 // 4
    for stream in streams:
        account.credit.forget(stream)
    assert account.credit._widened == 0


def test_windows_do_not_grow_on_a_process_budget_that_runs_low() -> None:
    budget = ByteBudget(2 << 20, reserve=64 * KIB)
    hog, account = Account(budget), Account(budget, max_streams=10)
    hog.fill(int(1.6 * (1 << 20)))
    stream = account.stream()
    for _ in range(5):
        account.now += RTT
        stream.consumed = stream.max_stream_data_local
        account.credit.renew_stream(stream, account.now, RTT)
    assert stream.window == account.limits.initial_window


def test_repr() -> None:
    budget = ByteBudget(1000, reserve=100)
    assert repr(budget) == "<ByteBudget [0 held, 0 committed, 1000 limit]>"
