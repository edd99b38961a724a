"""The stages of queries: what comes of a client's exchanges and its gateway's reports, without a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.histogram import Histogram
from pgtrunk.quic.control import Stage, Stats
from pgtrunk.quic.stages import FEW, MOST, ConnectionStages, StageMeter
from pgtrunk.stages import Stages, Timing

TIMES = st.floats(1e-3, 10.0)


def measured(exchanges: list[float], stats: Stats) -> Stages:
    meter = StageMeter()
    connection = ConnectionStages(meter)
    for seconds in exchanges:
        connection.took(seconds)
    connection.report(stats)
    return Stages.of(Histogram(), meter)


def test_what_the_gateway_did_not_take_is_the_transfer() -> None:
    stages = measured([1.5, 0.1, 0.03], Stats(Stage.of([0.8]), Stage.of([0.6, 0.05, 0.001])))
    assert (stages.exchange.count, stages.execution.count, stages.backend.count, stages.transfer.count) == (3, 3, 3, 3)
    assert stages.transfer.total == pytest.approx(0.1 + 0.05 + 0.029, rel=0.1)
    assert (stages.backend.p50, stages.backend.total) == (0.0, 0.8)
    assert stages.execution.total == pytest.approx(0.651)


@given(st.lists(st.tuples(TIMES, st.just(0.0) | TIMES), min_size=1, max_size=2 * FEW), st.floats(1e-3, 1.0))
def test_where_the_way_takes_the_same_for_all_that_is_found(parts: list[tuple[float, float]], way: float) -> None:
    executions = [execution for execution, _ in parts]
    waits = [wait for _, wait in parts if wait]
    stages = measured([sum(part) + way for part in parts], Stats(wait=Stage.of(waits), execution=Stage.of(executions)))
    # Waits and executions that are slow for reasons of their own are laid beside each other wrongly, but all of them.
    assert stages.transfer.count == len(parts)
    assert stages.transfer.total >= way * len(parts) * 0.9 - 0.01
    if not waits:
        slack = sum(executions) / 8
        assert stages.transfer.total == pytest.approx(way * len(parts), rel=0.1, abs=slack)


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 5 * FEW])
def test_queries_that_are_alike_leave_what_is_exact(count: int) -> None:
    """However wide the bucket of a second is, twenty milliseconds on top of it are found."""
    stages = measured([1.02] * count, Stats(execution=Stage.of([1.0] * count)))
    assert stages.transfer.total == pytest.approx(0.02 * count, rel=0.01)
    assert stages.transfer.p50 == stages.transfer.p99 == pytest.approx(0.02, rel=1 / 16)


def test_what_no_backend_answered_was_all_transfer() -> None:
    stages = measured([0.5, 0.03, 0.03], Stats(execution=Stage.of([0.47])))
    assert stages.transfer.total == pytest.approx(0.09, rel=0.1)


@given(st.lists(TIMES, max_size=20), st.lists(TIMES, max_size=20), st.lists(TIMES, max_size=20))
def test_a_report_that_does_not_fit_harms_nothing(
    exchanges: list[float], executions: list[float], waits: list[float]
) -> None:
    stages = measured(exchanges, Stats(Stage.of(waits), Stage.of(executions)))
    assert (stages.exchange.count, stages.execution.count) == (len(exchanges), len(executions))
    assert stages.transfer.count == len(exchanges)
    assert 0 <= stages.transfer.total <= sum(exchanges) * 1.1
    assert stages.backend.count == max(len(executions), len(waits))


@pytest.mark.parametrize(
    "stage",
    [
        Stage(2**64 - 1, tuple((bucket, 2**32 - 1) for bucket in range(256))),
        Stage(0, ((255, 2**32 - 1),)),
        Stage(2**64 - 1, ((0, 1),)),
        Stage(5, ((7, 0), (3, 1), (3, 1))),
    ],
)
def test_a_gateway_that_exaggerates_costs_no_more_for_it(stage: Stage) -> None:
    for count in (3, 3 * FEW):
        stages = measured([0.1] * count, Stats(stage, stage))
        assert stages.transfer.count == count
        assert stages.transfer.total >= 0


def test_exchanges_are_counted_before_anybody_reports_and_when_nobody_does() -> None:
    meter = StageMeter()
    connection = ConnectionStages(meter)
    for _ in range(3):
        connection.took(0.1)
        assert Stages.of(Histogram(), meter).transfer.count == 0
    assert Stages.of(Histogram(), meter).exchange.count == 3
    connection.report(Stats(execution=Stage.of([0.05] * 3)))
    assert Stages.of(Histogram(), meter).transfer.total == pytest.approx(0.15)
    for _ in range(MOST + 5):
        connection.took(0.1)
    assert Stages.of(Histogram(), meter).exchange.count == 3 + MOST
    # Which of them the next report is about is not known any more; from then on it is again.
    connection.report(Stats(execution=Stage.of([0.05])))
    assert Stages.of(Histogram(), meter).transfer.count == 3
    connection.took(0.1)
    connection.end()
    assert (len(meter.connections), meter.exchange.count) == (0, 3 + MOST + 1)


def test_a_connection_that_was_given_up_before_it_was_open_is_forgotten() -> None:
    meter = StageMeter()
    connections = [ConnectionStages(meter) for _ in range(3)]
    assert len(meter.connections) == 3
    del connections[1:]
    assert len(meter.connections) == 1


def test_a_timing_since_an_earlier_one_and_its_percentiles() -> None:
    histogram = Histogram()
    for _ in range(90):
        histogram.add(0.01)
    before = Timing.of(histogram)
    for _ in range(10):
        histogram.add(1.0)
    after = Timing.of(histogram)
    assert [after.p50, after.p90] == pytest.approx([0.01, 0.01], rel=1 / 16)
    assert [after.p99, after.quantile(0.91)] == pytest.approx([1.0, 1.0], rel=1 / 16)
    assert after.mean == pytest.approx((90 * 0.01 + 10) / 100)
    since = after.since(before)
    assert (since.count, since.p50) == (10, after.p99)
    assert since.total == pytest.approx(10.0)
    assert (Timing().mean, Timing().quantile(0.5), Timing().since(before)) == (0.0, 0.0, Timing())
    assert repr(Timing()) == "Timing(count=0, total=0.0, p50=0.0, p90=0.0, p99=0.0)"
