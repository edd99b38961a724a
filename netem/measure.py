"""Measures the link that a laboratory got, before anything is said about what ran over it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.errors import LabError
from netem.topology import ADDRESSES, WAN_DEVICE, Host

if TYPE_CHECKING:
    from netem.lab import Lab

__all__ = ["LinkReport", "RoundTrips", "interval", "measure", "round_trips"]

_ROOT = str(Path(__file__).resolve().parents[1])
_PORT = 7077


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrips:
    """Of pings, milliseconds; ``lost`` of ``sent`` had no answer, on either way."""

    sent: int
    lost: int
    minimum: float
    median: float
    p90: float
    p99: float
    maximum: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """What is stored with each result."""

    kind: str
    why: str
    asked: dict[str, Any]
    wan: RoundTrips
    lan: RoundTrips
    mbit_s_there: float | None
    """Of one TCP connection; None where it was not asked for."""
    mbit_s_back: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def round_trips(sent: int, seconds: Sequence[float]) -> RoundTrips:
    """Raises :class:`LabError` where none came back."""
    if not seconds:
        raise LabError(f"none of {sent} pings came back: there is no link")
    ordered = sorted(each * 1000 for each in seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)], 3)

    return RoundTrips(
        sent=sent,
        lost=sent - len(ordered),
        minimum=round(ordered[0], 3),
        median=at(0.5),
        p90=at(0.9),
        p99=at(0.99),
        maximum=round(ordered[-1], 3),
        mean=round(sum(ordered) / len(ordered), 3),
    )


def interval(probability: float, number: int, deviations: float = 3.0) -> tuple[float, float]:
    """Between which counts of ``number`` a ``probability`` lies: 3 standard deviations leave out 0.3 % of all runs."""
    spread = deviations * math.sqrt(number * probability * (1 - probability)) + 1
    return max(0.0, number * probability - spread), number * probability + spread


def measure(lab: Lab, *, pings: int = 500, pause: float = 0.004, bulk: float = 2.0) -> LinkReport:
    """Pings over both links, and ``bulk`` seconds of TCP each way (0: none). Raises :class:`LabError`."""
    there = back = None
    wan = _ping(lab, "client", ADDRESSES["gateway", WAN_DEVICE], pings, pause)
    lan = _ping(lab, "gateway", ADDRESSES["database", "lan0"], min(pings, 200), pause)
    if bulk:
        there = _bulk(lab, "client", "gateway", bulk)
        back = _bulk(lab, "gateway", "client", bulk)
    return LinkReport(
        kind=lab.link.kind,
        why=lab.why,
        asked=lab.spec.as_json(),
        wan=wan,
        lan=lan,
        mbit_s_there=there,
        mbit_s_back=back,
    )


def _probe(*words: object) -> list[str]:
    return [sys.executable, "-m", "netem.probe", *map(str, words)]


def _ping(lab: Lab, host: Host, address: str, pings: int, pause: float) -> RoundTrips:
    process = lab.hosts.popen(host, _probe("ping", address, pings, pause), stdout=-1, stderr=-1, cwd=_ROOT)
    out, said = process.communicate(timeout=pings * pause + 30)
    if process.returncode:
        raise LabError(f"pings from {host} failed: {said.strip().rpartition(chr(10))[2]}")
    found = json.loads(out)
    return round_trips(found["sent"], found["trips"])


def _bulk(lab: Lab, source: Host, target: Host, seconds: float) -> float:
    address = ADDRESSES[target, WAN_DEVICE]
    sink = lab.hosts.popen(target, _probe("sink", address, _PORT), stdout=-1, stderr=-1, cwd=_ROOT)
    assert sink.stdout is not None
    if sink.stdout.readline() != "open\n":
        raise LabError(f"nothing could be received on {target}")
    blast = lab.hosts.popen(source, _probe("blast", address, _PORT, seconds), stdout=-1, stderr=-1, cwd=_ROOT)
    blast.communicate(timeout=seconds + 30)
    out, _ = sink.communicate(timeout=30)
    rate: float = json.loads(out)["mbit_s"]
    return rate
