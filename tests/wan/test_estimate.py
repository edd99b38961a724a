"""About how long runs take: as long as those took that are stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from netem.estimate import opening, seconds
from netem.plan import AT_ONCE, Arm, Load
from netem.scenario import Scenario
from netem.spec import WAN, LinkSpec

RESULTS = Path(__file__).resolve().parents[2] / "results" / "wan"
FIXED = Load(kind="fixed", rate=500, seconds=9)
DIRECT = Arm(kind="direct", sessions=2000)
LOSSY = LinkSpec.parse("loss=3")


def stored(scenario: str) -> list[tuple[str, float, float]]:
    """Of each run that is stored and that the scenario still has: its name, seconds of opening, and the estimate."""
    cells = {cell.name: cell for cell in Scenario.load(scenario, quick=False).cells()}
    found = []
    for path in sorted((RESULTS / scenario).glob("*.json")):
        if (cell := cells.get(path.stem)) is not None:
            took = json.loads(path.read_text())["result"]["setup_s"]
            found.append((path.stem, took, opening(cell.arm, cell.link)))
    return found


@pytest.mark.parametrize("scenario", ["loss", "ramp"])
def test_sessions_are_opened_about_as_quickly_as_they_were(scenario: str) -> None:
    runs = stored(scenario)
    assert len(runs) > 20
    assert sum(estimate for _, _, estimate in runs) == pytest.approx(sum(took for _, took, _ in runs), rel=0.2)
    # Losses are chance: of TCP's first packet, one takes a second. But most are about right.
    wrong = [run for run in runs if not 1 / 1.6 <= run[2] / run[1] <= 1.6]
    assert len(wrong) < len(runs) / 8, wrong


@pytest.mark.parametrize("kind", ["direct", "quic"])
def test_many_sessions_take_longer_than_few_and_a_lossy_link_longer_than_a_clean_one(kind: str) -> None:
    many = Arm(kind=kind, sessions=2000)  # type: ignore[arg-type]
    few = replace(many, sessions=40)
    assert opening(few, WAN) < 1 < 5 < opening(many, WAN)
    assert (opening(many, LOSSY) > opening(many, WAN)) is (kind == "direct")
    assert opening(many, LinkSpec.parse("rtt=60")) > 1.5 * opening(many, WAN)


def test_a_burst_loses_its_share_and_one_that_never_begins_loses_nothing() -> None:
    assert opening(DIRECT, LinkSpec.parse("burst=1:99")) == pytest.approx(opening(DIRECT, LinkSpec.parse("loss=1")))
    assert opening(DIRECT, LinkSpec.parse("burst=0:30")) == opening(DIRECT, WAN)


def test_only_what_is_opened_ahead_of_the_load_takes_time_besides_it() -> None:
    pool = replace(DIRECT, initial=AT_ONCE)
    assert opening(pool, WAN) == opening(replace(DIRECT, sessions=AT_ONCE), WAN)
    assert opening(replace(DIRECT, per_request=True), WAN) == 0
    besides = seconds(DIRECT, FIXED, WAN, 1.0) - FIXED.seconds
    assert besides > opening(DIRECT, WAN) + 1.0
    storm = Load(kind="connect", seconds=9)
    assert 0 < seconds(DIRECT, storm, WAN, 1.0) - storm.seconds < 1 + opening(replace(DIRECT, sessions=1), WAN) + 1


def test_a_scenario_takes_the_sum_of_its_runs() -> None:
    scenario = Scenario.load("ramp", quick=False)
    assert scenario.seconds == pytest.approx(sum(map(scenario.seconds_of, scenario.cells())))
    assert scenario.seconds > len(list(scenario.cells())) * scenario.warmup + sum(
        cell.load.seconds for cell in scenario.cells()
    )
