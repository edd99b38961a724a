"""Short runs in a real laboratory, and what is stored of them."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from netem.lab import Lab
from netem.runner import Runner
from netem.scenario import Scenario

pytestmark = [
    pytest.mark.wan,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces and devices"),
]
QUIC = {"kind": "quic", "connections": 2, "streams": 8, "sessions": 10}
TCP = {"kind": "tcp", "sessions": 10}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What was stored of each run, by its name."""
    folder = tmp_path_factory.mktemp("results")
    load = {"kind": "fixed", "rate": 100, "seconds": 2}
    scenarios: dict[str, dict[str, Any]] = {
        "loss": {"link": [{"spec": "rtt=10,loss=10", "name": "10.0"}], "load": [load], "arm": [QUIC, TCP]},
        "beside": {
            "load": [load],
            "workload": [{"beside": "copy-in", "octets": 1_000_000}],
            "arm": [{**QUIC, "competing": True}],
        },
        "transactions": {
            "load": [{"kind": "closed", "seconds": 2}],
            "workload": [{"kind": "transaction", "think": 0.002}, {"kind": "function", "think": 0.002}],
            "arm": [TCP],
        },
    }
    with Lab() as lab:
        for name, data in scenarios.items():
            scenario = Scenario.read(name, {"question": "?", "repetitions": 1, "pool_size": 5, **data})
            Runner(scenario, lab, command="test", folder=folder).run(lambda _cell, _result: None)
    return {f"{path.parent.name}/{path.stem}": json.loads(path.read_text()) for path in folder.glob("*/*.json")}


def test_each_run_is_stored_with_its_latencies(stored: dict[str, dict[str, Any]]) -> None:
    assert stored.keys() == {
        "loss/10.0.100.quic-2x8.1",
        "loss/10.0.100.tcp-10.1",
        "beside/100.quic-2x8-shared.1",
        "transactions/transaction.tcp-10.1",
        "transactions/function.tcp-10.1",
    }
    for run in stored.values():
        result = run["result"]
        assert result["done"] == result["asked"] > 0
        assert (result["failed"], result["unanswered"]) == (0, 0)
        assert 0 < result["p50_ms"] <= result["p95_ms"] <= result["p99.9_ms"] <= result["max_ms"]
        assert not {"late", "ports", "histogram"} & result.keys()


@pytest.mark.parametrize("arm", ["quic-2x8", "tcp-10"])
def test_lost_packets_stall_sessions(stored: dict[str, dict[str, Any]], arm: str) -> None:
    run = stored[f"loss/10.0.100.{arm}.1"]
    result, carried = run["result"], run["link_counters"]
    assert 0 < result["drops"] <= carried["there"]["lost"] + carried["back"]["lost"] + 5
    assert result["harmless_drops"] < result["drops"]
    assert 0 < result["waiting_sessions"] <= result["stalled_sessions"] <= result["stalled_sessions_max"] <= 10


def test_a_session_over_tcp_stalls_alone(stored: dict[str, dict[str, Any]]) -> None:
    assert stored["loss/10.0.100.tcp-10.1"]["result"]["stalled_sessions_max"] == 1


def test_what_goes_on_beside_is_counted(stored: dict[str, dict[str, Any]]) -> None:
    result = stored["beside/100.quic-2x8-shared.1"]["result"]
    assert result["bulk_octets"] > 0
    assert result["bulk_mbit_s"] > 0
    assert result["competing_octets"] > 0


def test_a_transaction_pins_a_backend_for_its_round_trips(stored: dict[str, dict[str, Any]]) -> None:
    """Three of them at the least, as BEGIN waits for the first statement, and thoughts; a function has neither."""
    slow, quick = (stored[f"transactions/{kind}.tcp-10.1"]["result"] for kind in ("transaction", "function"))
    assert slow["pinned_ms"] > 3 * 30
    assert 0 < quick["pinned_ms"] < slow["pinned_ms"] / 2
    assert slow["done"] <= slow["pooler_transactions"] <= slow["done"] + 20


def test_processes_hosts_and_link_are_sampled(stored: dict[str, dict[str, Any]]) -> None:
    used = stored["loss/10.0.100.quic-2x8.1"]["used"]
    assert {"client", "gateway", "postgres", "link"} <= used["cpu_s"].keys()
    sample = used["samples"][0]
    assert sample["network"]["client"]["Udp.sockets"] == 2
    assert sample["network"]["gateway"]["Tcp.CurrEstab"] >= 1
    assert sample["link_counters"]["back"]["sent"] > 0


def test_what_tcp_does_is_stored(stored: dict[str, dict[str, Any]]) -> None:
    assert stored["loss/10.0.100.quic-2x8.1"]["result"]["tcp"] == {}
    found = stored["loss/10.0.100.tcp-10.1"]["result"]["tcp"]
    assert sum(found["client"]["congestion"].values()) == 10
