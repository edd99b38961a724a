"""Figures of runs, of repetitions, and thresholds."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from helpers.stored_runs import encoded, group, run
from netem.errors import LabError
from netem.plan import Arm
from netem.report.checks import checks
from netem.report.data import Group, Stored
from netem.report.figures import FIGURES, of_group, of_run
from netem.report.latencies import Latencies
from netem.report.rules import FRAMES, UNKNOWN

QUIC = Arm(kind="quic", sessions=40, connections=1, streams=40)


def test_latencies_are_those_of_hdrhistogram() -> None:
    histogram, rng = HdrHistogram(1, 120_000_000, 3), random.Random(1)
    for _ in range(5000):
        histogram.record_value(int(rng.lognormvariate(10, 2)))
    latencies = Latencies.decode(histogram.encode().decode())
    points = [0.0, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0]
    assert latencies.at(points) == [histogram.get_value_at_percentile(each) / 1000 for each in points]
    assert (latencies + latencies).total == 2 * histogram.get_total_count()
    assert latencies.above(0.0) == latencies.total


def test_latencies_of_nothing() -> None:
    nothing = Latencies.decode(encoded([]))
    assert nothing.at([50.0]) == []
    assert nothing.total == nothing.above(1.0) == 0


def test_figures_are_medians_and_failures_add_up() -> None:
    runs = tuple(run(QUIC, at, p99_ms=90.0 + at, failed=at, asked=3 + at, done=3) for at in (1, 2, 3))
    figures = of_group(Group(runs))
    assert figures["p99_ms"].value == 92.0
    assert figures["p99_ms"].spread == 2.0
    assert figures["failed"].value == 6
    assert figures["unanswered"].value == 0
    assert figures["errors_percent"].value == 40.0


def test_cpu_is_that_of_the_servers_which_had_a_part() -> None:
    ours = of_run(run(QUIC))
    assert (ours["pooler_cpu_us"], ours["postgres_cpu_us"]) == (100_000.0, 300_000.0)
    assert of_run(run(Arm(kind="pgbouncer", sessions=4)))["pooler_cpu_us"] == 10_000.0
    assert "pooler_cpu_us" not in of_run(run(Arm(kind="direct", sessions=4)))


def test_shares_of_a_core() -> None:
    figures = of_run(run(QUIC, seconds=2.0, client_cpu_us=100_000.0))
    assert (figures["client_cpu_percent"], figures["pooler_cpu_percent"]) == (15.0, 15.0)


def test_slow_answers_for_each_packet_lost() -> None:
    figures = of_run(run(QUIC, latencies=[30.0] * 98 + [80.0] * 2, lost=4))
    assert figures["stalled_per_loss"] == 0.5
    assert "stalled_per_loss" not in of_run(run(QUIC))


def test_nested_numbers_count_and_words_and_lists_do_not() -> None:
    figures = of_run(run(QUIC, trunk={"copies_sent": 7, "name": "x"}, each=[1, 2], errors={"OSError": 3}))
    assert figures["trunk_copies_sent"] == 7
    assert of_run(run(QUIC, trunk={"redundancy": {"copies": 6}}))["copies_per_answer"] == 2.0
    assert not [key for key in figures if key.startswith(("each", "errors_O", "trunk_name"))]


def test_no_latency_where_nothing_was_answered() -> None:
    figures = of_run(run(QUIC, latencies=[], asked=5, done=0, failed=5, p50_ms=0.0, p99_ms=0.0))
    assert "p50_ms" not in figures
    assert figures["errors_percent"] == 100.0


def test_what_stalled_for_each_of_no_drops_is_unknown() -> None:
    assert "stalled_sessions" not in of_run(run(QUIC, drops=0, stalled_sessions=0))
    assert of_run(run(QUIC, drops=3, stalled_sessions=2.0))["stalled_sessions"] == 2.0


def test_an_old_run_that_says_little_has_few_figures() -> None:
    data: dict[str, Any] = {
        "scenario": "s",
        "setting": "",
        "arm": "quic-1x40",
        "repetition": 1,
        "result": {"p50_ms": 3},
    }
    figures = of_run(Stored("s/x.json", {**data, "plan": {"arm": {"kind": "quic"}}}, encoded([3.0])))
    assert figures == {"p50_ms": 3}


@pytest.mark.parametrize("wrong", [{"p99_ms": "fast"}, {"p99_ms": -1.0}, {"p99_ms": float("nan")}, {"done": 99}])
def test_wrong_figures_are_refused_with_the_files_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(LabError, match=r"ramp/clean\.quic-1x40\.1\.json"):
        of_run(run(QUIC, **wrong))


LIMITS = {"p95_ms": 2000.0, "p99_ms": 5000.0, "errors": 0.01, "too_late_ms": 4000.0}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"p95_ms": 1999.0, "p99_ms": 4999.0}, ["pass", "pass", "pass"]),
        ({"p95_ms": 2000.0, "p99_ms": 5000.0}, ["FAIL", "FAIL", "pass"]),
        ({"p99_ms": 1.0, "too_late": 1}, ["", "pass", "FAIL"]),
        ({"asked": 4, "failed": 1}, ["", "", "FAIL"]),
        ({"asked": 4, "done": 0, "failed": 4}, ["FAIL", "FAIL", "FAIL"]),
        ({"asked": None}, ["", "", ""]),
    ],
)
def test_thresholds(figures: dict[str, Any], words: list[str]) -> None:
    found = checks(Group((run(QUIC, thresholds=LIMITS, **figures),)))
    assert [each.head for each in found] == ["p95 < 2 s", "p99 < 5 s", "errors < 1 %"]
    assert [each.words for each in found] == words


def test_a_threshold_is_for_each_repetition() -> None:
    (found,) = checks(group(QUIC, [1.0, 3.0, 1.5], thresholds={"p99_ms": 2.0}))
    assert (found.head, found.words) == ("p99 < 0.00 s", "FAIL 1 of 3")


def test_no_thresholds() -> None:
    assert checks(group(QUIC, [1.0], thresholds={"p95_ms": 0.0, "errors": 0.0})) == []


def test_rules_compare_what_there_is_a_meaning_for_and_frames_claim_no_figures() -> None:
    for name, each in {**FRAMES, "unknown": UNKNOWN}.items():
        assert {rule.figure for rule in each.rules} | set(each.along) <= set(FIGURES), name
        assert not any(letter.isdigit() for letter in each.why), name
