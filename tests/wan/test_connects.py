"""What is said of sessions that were opened; arms of logins and pools; the stages of the pooled study."""

from __future__ import annotations

import pytest

from netem.connects import Trips, summary
from netem.errors import LabError
from netem.plan import Arm, Workload
from netem.scenario import Scenario
from netem.servers import Servers
from netem.workloads import connecting


def trips(count: int, milliseconds: float, *, login: int = 4) -> Trips:
    return Trips(login_round_trips=login, round_trips=count, login_ms=milliseconds / 2, elapsed_ms=milliseconds)


def test_the_smallest_count_the_median_time_and_the_quickest_by_the_clock() -> None:
    found = summary([trips(7, 400.0, login=5), trips(6, 189.0), trips(7, 195.0)], rtt=0.030)
    assert (found["round_trips"], found["login_round_trips"]) == (6, 4)
    assert (found["elapsed_ms"], found["login_ms"]) == (195.0, 97.5)
    assert found["elapsed_rtts"] == 6.3


def test_a_link_without_delay_has_no_round_trips_by_the_clock() -> None:
    assert summary([trips(1, 1.0)], rtt=0.0)["elapsed_rtts"] == 0.0


@pytest.mark.parametrize(
    ("arm", "name"),
    [
        (Arm(kind="quic", sessions=1, connections=1, streams=4, login="cert"), "quic-1x4-cert"),
        (Arm(kind="tls", sessions=1, login="scram", tls_at_once=True), "tls-1-scram-atonce"),
        (Arm(kind="pgbouncer", sessions=32, initial=16, reset=False), "pgbouncer-32-noreset"),
        (Arm(kind="direct", sessions=400, per_request=True), "direct-400-each"),
    ],
)
def test_the_name_of_an_arm_says_how_it_logs_in_and_pools(arm: Arm, name: str) -> None:
    assert arm.name == name


def test_a_client_starts_its_sidecar_itself_only_where_logins_count() -> None:
    arm = Arm(kind="sidecar", sessions=4, connections=1, streams=4)
    assert not arm.starts_sidecar
    assert Arm(kind="sidecar", sessions=4, connections=1, streams=4, login="trust").starts_sidecar
    assert not Arm(kind="tcp", sessions=4, login="trust").starts_sidecar


def test_a_postgres_without_tls_takes_no_certificates() -> None:
    servers = Servers(lab=None)  # type: ignore[arg-type]  # nothing is started
    with pytest.raises(LabError, match="no TLS"):
        servers.address(Arm(kind="direct", sessions=1, login="cert"))


def test_only_plain_queries_can_be_asked_over_a_new_session() -> None:
    with pytest.raises(LabError, match="select or insert"):
        connecting(lambda: None, Workload(kind="bulk"))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("quick", [False, True])
def test_setup_asks_for_each_login_by_each_way(quick: bool) -> None:
    scenario = Scenario.load("setup", quick=quick)
    single = {(arm.kind, arm.login) for arm in scenario.arms if arm.sessions == 1 or arm.streams == 4}
    storms = [arm for arm in scenario.arms if arm.sessions == 1000]
    assert {load.kind for load in scenario.loads} == {"connect"}
    assert storms
    assert all(arm.sessions < scenario.max_connections for arm in storms if arm.kind == "direct")
    assert {cell.setting for cell in scenario.cells()} == {"clean"}
    if not quick:
        assert {("quic", "cert"), ("tls", "cert"), ("pgbouncer-tls", "cert"), ("direct", "md5")} <= single
        assert ("direct", "cert") not in single
        assert len({arm.kind for arm in storms}) == 7


def test_the_pooled_study_has_its_stages_and_thresholds() -> None:
    scenario = Scenario.load("pooled", quick=False)
    assert [load.users for load in scenario.loads] == [25, 50, 85, 200, 300, 400]
    assert {load.think for load in scenario.loads} == {(0.5, 1.5)}
    limits = scenario.thresholds
    assert (limits.p95_ms, limits.p99_ms, limits.errors, limits.too_late_ms) == (2000, 5000, 0.01, 4000)
    assert scenario.max_connections == 100
    pools = [arm for arm in scenario.arms if not arm.per_request]
    assert all(arm.initial == 16 for arm in pools)
    assert {arm.sessions for arm in pools} == {32, 400}
    # As many backends as the pool straight to Postgres has sessions.
    assert scenario.pool_size == 32
    stages = {cell.setting for cell in scenario.cells() if cell.arm.name == "direct-32"}
    assert stages == {"25", "50", "85", "200", "300", "400"}
