"""What SHOW STATS makes of the counters."""

from __future__ import annotations

from typing import Any

import pytest

from pgtrunk_gateway.stats.averages import Averages, Figures, total
from pgtrunk_gateway.stats.counters import PoolStats


def stats(**counts: Any) -> PoolStats:
    made = PoolStats()
    for name, count in counts.items():
        setattr(made, name, count)
    return made


def test_totals_are_counts_and_microseconds() -> None:
    counted = stats(
        xact_count=2, inner_query_count=3, received=10, sent=20, xact_time=1.5, think_time=0.5, wait_time=0.25,
        client_parse_count=4, server_parse_count=5, bind_count=6, login_count=7,
    )  # fmt: skip
    assert Figures.of(counted, 8).row() == (8, 2, 5, 10, 20, 1_500_000, 1_000_000, 250_000, 4, 5, 6, 7)


def test_averages_are_per_second_and_times_per_piece() -> None:
    old = Figures(xact_count=10, query_count=10, xact_time=100)
    new = Figures(
        server_assignment_count=4, xact_count=20, query_count=30, client_bytes=1000, xact_time=1100, query_time=400,
        wait_time=40, client_login_count=5,
    )  # fmt: skip
    assert Figures.between(old, new, 10.0) == Figures(
        xact_count=1, query_count=2, client_bytes=100, xact_time=100, query_time=20, wait_time=10
    )


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_has_no_average(seconds: float) -> None:
    assert Figures.between(Figures(), Figures(xact_count=5), seconds) == Figures()


def test_what_was_forgotten_is_no_negative_average() -> None:
    assert Figures.between(Figures(xact_count=9, xact_time=9), Figures(xact_count=5), 1.0) == Figures()


def test_an_average_reaches_back_one_to_two_periods() -> None:
    averages = Averages(100.0)
    assert averages.of("a", Figures(xact_count=50), 105.0).xact_count == 10
    averages.tick({"a": Figures(xact_count=60)}, 110.0)
    # The first period is not over as far as SHOW STATS is concerned.
    assert averages.of("a", Figures(xact_count=80), 120.0).xact_count == 4
    averages.tick({"a": Figures(xact_count=80)}, 120.0)
    assert averages.of("a", Figures(xact_count=260), 130.0).xact_count == 10


def test_a_period_is_averaged_over_all_databases() -> None:
    averages = Averages(0.0)
    averages.tick({"a": Figures(xact_count=10), "b": Figures(xact_count=10)}, 10.0)
    period = averages.tick({"a": Figures(xact_count=30), "c": Figures(xact_count=90)}, 20.0)
    assert period.xact_count == 10
    assert averages.of("", Figures(xact_count=320), 30.0).xact_count == 15
    assert averages.of("new", Figures(xact_count=20), 30.0).xact_count == 1


def test_the_total_is_the_sum() -> None:
    assert total({}) == Figures()
    assert total({"a": Figures(xact_count=1), "b": Figures(xact_count=2)}) == Figures(xact_count=3)
