"""What is stored of the runs, and what several repetitions of one come to. Reads files; computes; draws nothing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from netem.errors import LabError

__all__ = ["LATE", "Group", "Stored", "groups", "read"]

LATE = 15.0
"""Milliseconds above the link's round trip from which an answer counts as stalled."""
_SHARE = ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "mean_ms", "max_ms", "per_second", "sessions_used", "setup_s")


@dataclass(frozen=True)
class Stored:
    """One run as it is stored, in ``file``, a path from the folder of results."""

    file: str
    data: dict[str, Any]
    encoded: str = field(repr=False)

    @property
    def scenario(self) -> str:
        return str(self.data["scenario"])

    @property
    def setting(self) -> str:
        return str(self.data["setting"])

    @property
    def arm(self) -> str:
        return str(self.data["arm"])

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.data["result"]
        return result

    @cached_property
    def histogram(self) -> HdrHistogram:
        """Latencies in microseconds."""
        return HdrHistogram.decode(self.encoded)

    @property
    def lost(self) -> int:
        """Packets that the link has dropped in this run."""
        counters = self.data["link_counters"]
        return sum(int(counters[way].get("lost", counters[way].get("drops", 0))) for way in ("there", "back"))

    @property
    def stalled(self) -> int:
        """Answers that took `LATE` longer than the link's round trip."""
        limit = int((self.data["link"]["wan"]["median"] + LATE) * 1000)
        histogram = self.histogram
        return int(histogram.get_total_count() - round(histogram.get_total_count() * _share_below(histogram, limit)))


def _share_below(histogram: HdrHistogram, value: int) -> float:
    total = histogram.get_total_count()
    if not total:
        return 1.0
    below: int = 0
    for item in histogram.get_recorded_iterator():
        if item.value_iterated_to > value:
            break
        below = item.total_count_to_this_value
    return float(below / total)


@dataclass(frozen=True)
class Group:
    """The repetitions of one arm in one setting."""

    runs: tuple[Stored, ...]

    @property
    def arm(self) -> str:
        return self.runs[0].arm

    @property
    def setting(self) -> str:
        return self.runs[0].setting

    @property
    def scenario(self) -> str:
        return self.runs[0].scenario

    def together(self) -> HdrHistogram:
        """The latencies of all repetitions."""
        histogram = HdrHistogram.decode(self.runs[0].encoded)
        for run in self.runs[1:]:
            histogram.add(run.histogram)
        return histogram

    def median(self, key: str) -> float:
        """Of a figure of the results."""
        return float(statistics.median(run.result[key] for run in self.runs))

    @property
    def figures(self) -> dict[str, float]:
        """Medians of the repetitions."""
        figures = {key: self.median(key) for key in _SHARE}
        figures["failed"] = sum(run.result["failed"] for run in self.runs)
        figures["client_cpu_us"] = self.median("client_cpu_us")
        figures["client_rss_mb"] = self.median("client_rss_mb")
        for server in ("gateway", "pgbouncer", "pgbouncer-tls", "postgres"):
            used = [cpu for run in self.runs if (cpu := _server_us(run, server)) is not None]
            if used:
                figures[f"{server}_cpu_us"] = round(statistics.median(used), 1)
        lost = sum(run.lost for run in self.runs)
        if lost:
            figures["stalled_per_loss"] = round(sum(run.stalled for run in self.runs) / lost, 2)
        return figures


def _server_us(run: Stored, server: str) -> float | None:
    """CPU of a server for each answer, microseconds; None where it had no part in it."""
    kind = run.data["plan"]["arm"]["kind"]
    part = {
        "gateway": kind in ("tcp", "tls", "quic", "sidecar", "mux"),
        "pgbouncer": kind == "pgbouncer",
        "pgbouncer-tls": kind == "pgbouncer-tls",
        "postgres": True,
    }
    names = {"pgbouncer": "pgbouncer-6433", "pgbouncer-tls": "pgbouncer-6434"}
    used = run.data["used"]["cpu_s"].get(names.get(server, server))
    if not part[server] or used is None or not run.result["done"]:
        return None
    return float(used / run.result["done"] * 1e6)


def read(folder: Path) -> list[Stored]:
    """All that is stored under ``folder``. Raises :class:`LabError` for what cannot be read."""
    found = []
    for path in sorted(folder.glob("*/*.json")):
        try:
            data = json.loads(path.read_text())
            encoded = path.with_suffix(".hdr").read_text().strip()
        except (OSError, ValueError) as error:
            raise LabError(f"{path}: {error}") from error
        found.append(Stored(str(path.relative_to(folder)), data, encoded))
    return found


def groups(stored: Sequence[Stored]) -> list[Group]:
    """Repetitions put together, in the order of scenario, setting and arm."""
    together: dict[tuple[str, str, str], list[Stored]] = {}
    for run in stored:
        together.setdefault((run.scenario, run.setting, run.arm), []).append(run)
    return [Group(tuple(together[key])) for key in sorted(together)]
