"""Runs of the laboratory as they are stored, made up: what a report is made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from netem.plan import Arm, Load, Workload
from netem.report.data import Group, Stored

WAN = {"sent": 300, "lost": 0, "minimum": 29.9, "median": 30.2, "p90": 30.4, "p99": 30.6, "maximum": 31.0, "mean": 30.2}
SECOND = {"at": 1.0, "asked": 100, "done": 99, "queued": 0, "p50": 31.0, "p99": 40.0, "rss_mb": 60.0, "cpu_ms": 5.0}


def encoded(latencies: Sequence[float]) -> str:
    """A histogram of these milliseconds."""
    histogram = HdrHistogram(1, 120_000_000, 3)
    for latency in latencies:
        histogram.record_value(int(latency * 1000))
    text: str = histogram.encode().decode()
    return text


def run(
    arm: Arm,
    repetition: int = 1,
    *,
    scenario: str = "ramp",
    setting: str = "clean",
    loss: float = 0.0,
    load: Load | None = None,
    workload: str = "select",
    latencies: Sequence[float] = (30.0, 31.0, 32.0),
    lost: int = 0,
    thresholds: dict[str, float] | None = None,
    **figures: Any,
) -> Stored:
    """One run; ``figures`` are put into its result, None takes one out of it."""
    way = {"delay": 0.015, "jitter": 0.0, "loss": loss, "burst": None, "rate": 0.0}
    answers = len(latencies)
    result = {"asked": answers, "done": answers, "failed": 0, "sessions": arm.sessions, "sessions_used": 17, **figures}
    data: dict[str, Any] = {
        "scenario": scenario,
        "question": "Who keeps up?",
        "arm": arm.name,
        "setting": setting,
        "repetition": repetition,
        "made": {
            "command": f"python -m netem run {scenario}", "commit": "abc1234", "date": f"2026-12-01 02:0{repetition}",
            "cpu": "A CPU", "cores": 2, "kernel": "6.1", "python": "3.11.7", "load_average": 0.5,
        },
        "link": {"kind": "tun", "why": "", "wan": WAN, "asked": {"there": way, "back": way, "seed": repetition}},
        "link_counters": {"there": {"lost": lost, "sent": 200}, "back": {"lost": 0, "sent": 100}},
        "plan": {
            "arm": {"kind": arm.kind, "sessions": arm.sessions, "connections": arm.connections, "streams": arm.streams,
                    "rto_min": arm.rto_min, "redundancy": arm.redundancy, "login": arm.login},
            "load": {"kind": "ramp", "rate": 100, "seconds": 2} if load is None else
                    {"kind": load.kind, "rate": load.rate, "seconds": load.seconds, "users": load.users},
            "workload": {"kind": Workload(kind=workload).kind},  # type: ignore[arg-type]
            "thresholds": thresholds or {},
            "pool_size": 20,
        },
        "result": {key: value for key, value in result.items() if value is not None},
        "used": {"cpu_s": {"gateway": 0.3, "pgbouncer-6433": 0.03, "postgres": 0.9, "client": -0.4}, "samples": []},
        "seconds": [SECOND, {**SECOND, "at": 2.0}],
    }  # fmt: skip
    return Stored(f"{scenario}/{setting}.{arm.name}.{repetition}.json", data, encoded(latencies))


def group(arm: Arm, values: Sequence[float], *, figure: str = "p99_ms", **more: Any) -> Group:
    """Repetitions that differ in one figure."""
    return Group(tuple(run(arm, at, **{**more, figure: value}) for at, value in enumerate(values, 1)))


def store(results: Path, *stored: Stored) -> None:
    """Under ``results``, as the laboratory does."""
    for each in stored:
        path = results / "wan" / each.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(each.data))
        path.with_suffix(".hdr").write_text(each.encoded + "\n")
