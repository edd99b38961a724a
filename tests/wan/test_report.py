"""The report, made from runs that the test has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from netem.errors import LabError
from netem.report.make import make

WAN = {"sent": 300, "lost": 0, "minimum": 29.9, "median": 30.2, "p90": 30.4, "p99": 30.6, "maximum": 31.0, "mean": 30.2}


def store(
    results: Path, arm: str, repetition: int, latencies: list[float], *, lost: int = 0, setting: str = "clean"
) -> None:
    """A run of the scenario `ramp`, with these latencies in milliseconds."""
    histogram = HdrHistogram(1, 60_000_000, 3)
    for latency in latencies:
        histogram.record_value(int(latency * 1000))
    data: dict[str, Any] = {
        "scenario": "ramp",
        "arm": arm,
        "setting": setting,
        "repetition": repetition,
        "made": {"command": "python -m netem run ramp", "commit": "abc", "date": "2026-11-30", "cores": 2},
        "link": {"kind": "tun", "why": "", "wan": WAN},
        "link_counters": {"there": {"lost": lost}, "back": {"lost": 0}},
        "plan": {"arm": {"kind": arm.partition("-")[0]}, "load": {"kind": "ramp"}},
        "result": {
            "done": len(latencies), "failed": 0, "per_second": 10.0 * repetition, "mean_ms": 1.0, "p50_ms": 30.5,
            "p90_ms": 31.0, "p99_ms": 90.0 + repetition, "p99.9_ms": 99.0, "max_ms": 100.0, "sessions": 40,
            "sessions_used": 17, "setup_s": 0.1, "client_cpu_us": 80.0, "client_rss_mb": 60.0,
        },
        "used": {"cpu_s": {"gateway": 0.5, "pgbouncer-6433": 0.1, "postgres": 1.0}},
        "seconds": [{"at": 1.0, "done": 3, "queued": 0, "p99": 40.0, "rss_mb": 60.0, "cpu_ms": 5.0}],
    }  # fmt: skip
    folder = results / "wan" / "ramp"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{setting}.{arm}.{repetition}.json").write_text(json.dumps(data))
    (folder / f"{setting}.{arm}.{repetition}.hdr").write_text(histogram.encode().decode())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("# Results\n\nWords.\n")
    for repetition in (1, 2, 3):
        store(tmp_path, "quic-1x40", repetition, [30.0] * 98 + [80.0] * 2, lost=4)
        store(tmp_path, "pgbouncer-10", repetition, [31.0] * 100)
    return tmp_path


def test_figures_are_medians_by_scenario_setting_and_arm(results: Path) -> None:
    make(results)
    figures = json.loads((results / "summary.json").read_text())["ramp"]["clean"]
    assert figures["quic-1x40"]["p99_ms"] == 92.0
    assert figures["quic-1x40"]["per_second"] == 20.0
    assert figures["quic-1x40"]["gateway_cpu_us"] == 5000.0
    assert figures["quic-1x40"]["stalled_per_loss"] == 0.5
    assert figures["pgbouncer-10"]["pgbouncer_cpu_us"] == 1000.0
    assert "gateway_cpu_us" not in figures["pgbouncer-10"]
    assert "stalled_per_loss" not in figures["pgbouncer-10"]


def test_the_page_has_all_in_itself_and_links_each_run(results: Path) -> None:
    make(results)
    page = (results / "wan" / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 6
    for repetition in (1, 2, 3):
        assert f'href="ramp/clean.quic-1x40.{repetition}.json"' in page
    assert "python -m netem run ramp" in page
    assert "http" not in page.partition("<body>")[2]


def test_the_tables_take_the_place_of_those_before(results: Path) -> None:
    make(results)
    first = (results / "README.md").read_text()
    assert first.startswith("# Results\n\nWords.\n")
    assert "| [quic-1x40](wan/ramp/clean.quic-1x40.1.json) | 17/40 |" in first
    make(results)
    assert (results / "README.md").read_text() == first


def test_nothing_is_stored(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="nothing is stored"):
        make(tmp_path)


def test_a_file_that_is_broken_is_named(results: Path) -> None:
    (results / "wan" / "ramp" / "clean.quic-1x40.2.json").write_text("{")
    with pytest.raises(LabError, match=r"clean\.quic-1x40\.2\.json"):
        make(results)
