"""Scenarios, loads and schedules, without a network."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from netem import schedule
from netem.errors import LabError
from netem.plan import Arm, Load, Run, Thresholds, Workload
from netem.play import growth
from netem.scenario import Scenario

FIXED = Load(kind="fixed", rate=500, seconds=3)
RAMP = Load(kind="ramp", rate=10_000, seconds=30)
STEPS = replace(RAMP, step=0.006)
BURST = Load(kind="burst", size=500, every=2.0, seconds=5)


@pytest.mark.parametrize(("load", "total"), [(FIXED, 1500), (RAMP, 150_000), (STEPS, 147_480), (BURST, 1500)])
def test_as_much_is_asked_as_the_load_says(load: Load, total: int) -> None:
    assert schedule.total(load) == total


@pytest.mark.parametrize("load", [FIXED, RAMP, STEPS, BURST])
def test_what_is_asked_by_a_moment_was_to_be_asked_before_it(load: Load) -> None:
    last = schedule.total(load)
    moments = [schedule.moment(load, number) for number in range(last)]
    assert moments == sorted(moments)
    assert 0 <= moments[0] <= moments[-1] <= load.seconds
    for at in (0.0, 0.1, 1.0, 1.999, 2.0, load.seconds):
        asked = schedule.asked_by(load, at)
        assert all(moment <= at + 1e-6 for moment in moments[:asked])
        assert all(moment >= at - 1e-6 for moment in moments[asked:])


def test_nothing_is_asked_before_the_start_and_after_the_end() -> None:
    assert schedule.asked_by(FIXED, -1.0) == 0
    assert schedule.asked_by(FIXED, 99.0) == 1500


def test_a_ramp_ends_at_its_rate() -> None:
    assert schedule.asked_by(RAMP, 30) - schedule.asked_by(RAMP, 29.9) == pytest.approx(1000, rel=0.01)


def test_a_closed_loop_has_no_schedule() -> None:
    closed = Load(kind="closed", seconds=1)
    for function in (lambda: schedule.total(closed), lambda: schedule.moment(closed, 0)):
        with pytest.raises(LabError):
            function()


@pytest.mark.parametrize(
    ("arm", "name"),
    [
        (Arm(kind="quic", sessions=400, connections=10, streams=40), "quic-10x40"),
        (Arm(kind="pgbouncer", sessions=400, rto_min=0.03), "pgbouncer-400-rto30"),
        (Arm(kind="direct", sessions=20, congestion="cubic"), "direct-20-cubic"),
        (Arm(kind="quic", sessions=400, connections=10, streams=40, redundancy="off"), "quic-10x40-plain"),
        (Arm(kind="direct", sessions=50, per_request=True, login="md5"), "direct-50-each-md5"),
        (Arm(kind="mux", sessions=9, competing=True, links=("loss=1",), initial=3), "mux-9-shared"),
    ],
)
def test_the_name_of_an_arm(arm: Arm, name: str) -> None:
    assert arm.name == name


def test_a_run_goes_through_json_with_its_password() -> None:
    arm = Arm(kind="quic", sessions=4, connections=1, streams=4, links=("loss=1",), loads=("500",))
    load = Load(kind="closed", seconds=1, think=(0.5, 1.5))
    limits = Thresholds(p95_ms=2000, errors=0.01)
    run = Run(
        arm=arm,
        load=load,
        workload=Workload(),
        thresholds=limits,
        host="h",
        port=1,
        database="d",
        user="u",
        password="p",
    )
    assert Run.from_json(json.loads(json.dumps(run.as_json()))) == run
    assert "'p'" not in repr(run)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", Scenario.names())
def test_each_scenario_can_be_read(name: str, quick: bool) -> None:
    scenario = Scenario.load(name, quick=quick)
    cells = list(scenario.cells())
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names) == len(cells) > 0
    assert scenario.question.endswith("?")
    assert all(set("/ \\") & set(each) == set() for each in names)
    if quick:
        assert scenario.seconds < 15 * 60
        assert scenario.arms
    for cell in cells:
        assert cell.arm.sessions > 0
        if cell.arm.kind in ("quic", "sidecar"):
            assert cell.arm.sessions <= cell.arm.connections * cell.arm.streams


FILE = {
    "question": "?",
    "link": [{"spec": "loss=1"}, {"spec": "burst=0.3:30"}, {"spec": "rate=1.2,buffer=30", "name": "1.2.30"}],
    "load": [{"kind": "fixed", "rate": 500, "seconds": 1}, {"kind": "burst", "size": 40, "seconds": 1}],
    "arm": [
        {"kind": "direct", "sessions": 1},
        {"kind": "tcp", "sessions": 1, "links": ["loss=1"]},
        {"kind": "mux", "sessions": 1, "loads": ["500"]},
    ],
    "thresholds": {"p95_ms": 2000},
    "quick": {"links": ["loss=1"]},
}


def test_a_setting_is_named_by_numbers() -> None:
    settings = {cell.setting for cell in Scenario.read("x", FILE).cells()}
    assert settings == {f"{link}.{load}" for link in ("1.0", "burst", "1.2.30") for load in ("500", "40")}


def test_a_part_of_a_setting_that_says_nothing_is_left_out() -> None:
    file = {**FILE, "link": [{"spec": ""}], "load": [{"kind": "closed", "seconds": 1}]}
    assert {cell.setting for cell in Scenario.read("x", file).cells()} == {"clean"}
    workloads = [{"kind": "rows", "octets": 10}, {"beside": "copy-in"}, {"name": "alone"}]
    cells = Scenario.read("x", {**file, "workload": workloads}).cells()
    assert {cell.setting for cell in cells} == {"rows-10", "copy-in", "alone"}


def test_an_arm_runs_under_the_links_and_loads_it_names() -> None:
    cells = list(Scenario.read("x", {**FILE, "repetitions": 1}).cells())
    ran = {kind: {cell.setting for cell in cells if cell.arm.kind == kind} for kind in ("direct", "tcp", "mux")}
    assert len(ran["direct"]) == 6
    assert ran["tcp"] == {"1.0.500", "1.0.40"}
    assert ran["mux"] == {"1.0.500", "burst.500", "1.2.30.500"}


def test_a_quick_run_has_the_names_of_a_full_one() -> None:
    full, quick = (Scenario.read("x", FILE, quick=each) for each in (False, True))
    assert {cell.setting for cell in quick.cells()} == {"1.0.500", "1.0.40"}
    assert {cell.setting for cell in quick.cells()} <= {cell.setting for cell in full.cells()}
    assert quick.thresholds == Thresholds(p95_ms=2000)


@pytest.mark.parametrize("wrong", [{"kind": "carrier pigeon"}, {"login": "kerberos"}, {"redundancy": "on"}])
def test_an_arm_that_cannot_be(wrong: dict[str, str]) -> None:
    with pytest.raises(LabError, match="unknown"):
        Scenario.read("x", {**FILE, "arm": [{"kind": "direct", "sessions": 1, **wrong}]})


def test_every_second_repetition_has_the_other_order() -> None:
    scenario = replace(Scenario.load("loss", quick=True), repetitions=2)
    cells = list(scenario.cells())
    arms = len(scenario.arms)
    assert [cell.arm for cell in cells[:arms]] == [cell.arm for cell in cells[-arms:]][::-1]
    assert cells[0].link.seed != cells[-1].link.seed


def test_what_the_link_carried_before_a_run_is_not_counted_with_it() -> None:
    before = {"there": {"lost": 5, "deepest": 90}, "back": {"lost": 1, "deepest": 3}, "cpu_s": 1.0}
    after = {"there": {"lost": 7, "deepest": 99}, "back": {"lost": 1, "deepest": 3}, "cpu_s": 2.0}
    way = {"lost": 0, "deepest": 3}
    assert growth(before, after) == {"there": {"lost": 2, "deepest": 99}, "back": way, "cpu_s": 2.0}


def test_a_scenario_that_is_not_there() -> None:
    with pytest.raises(LabError, match=r"there are .*loss"):
        Scenario.load("los", quick=False)
