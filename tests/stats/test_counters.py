"""What is counted for SHOW STATS."""

from __future__ import annotations

from pgtrunk_gateway.stats.counters import PoolStats


def _some(factor: int) -> PoolStats:
    stats = PoolStats()
    for number, name in enumerate(PoolStats.__slots__, 1):
        setattr(stats, name, number * factor)
    return stats


def test_every_query_ends_a_transaction_or_does_not() -> None:
    stats = PoolStats()
    stats.xact_count, stats.inner_query_count = 2, 3
    assert stats.query_count == 5


def test_the_time_of_queries_is_that_of_transactions_without_the_clients_turns() -> None:
    stats = PoolStats()
    stats.xact_time, stats.think_time = 5.0, 1.5
    assert stats.query_time == 3.5


def test_adding_adds_every_counter() -> None:
    stats = _some(1)
    stats.add(_some(10))
    for name in PoolStats.__slots__:
        assert getattr(stats, name) == getattr(_some(11), name), name


def test_a_copy_stays_as_it_is() -> None:
    stats = _some(1)
    copy = stats.copy()
    stats.add(_some(1))
    assert copy.xact_count == _some(1).xact_count
