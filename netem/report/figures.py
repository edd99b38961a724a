"""The figures of a run, and of its repetitions: medians, and between which values they lie.

A figure that a run lacks is absent; one that is no number, or negative, raises :class:`LabError` with the file's name.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from netem.errors import LabError

if TYPE_CHECKING:
    from netem.report.data import Group, Stored

__all__ = ["FIGURES", "LATE", "Figure", "Meaning", "of_group", "of_run"]

LATE = 15.0
"""Milliseconds above the link's round trip from which an answer counts as stalled."""
_LATENCY = re.compile(r"(mean|max|p[\d.]+)_ms")
"""What is 0 where nothing was answered, which is not the best of latencies."""
_SUMS = {"failed", "unanswered", "too_late", "asked", "done"}
"""Of these all repetitions are added up, so that no failure hides behind a median."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """How a figure is written: as a column's head, in a sentence, and which of two is the better one."""

    head: str
    words: str
    unit: str = ""
    lower: bool = True


FIGURES: dict[str, Meaning] = {
    "per_second": Meaning("answers", "throughput", "/s", lower=False),
    "mean_ms": Meaning("mean", "mean latency", "ms"),
    "p50_ms": Meaning("p50", "median latency", "ms"),
    "p90_ms": Meaning("p90", "p90", "ms"),
    "p95_ms": Meaning("p95", "p95", "ms"),
    "p99_ms": Meaning("p99", "p99", "ms"),
    "p99.9_ms": Meaning("p99.9", "p99.9", "ms"),
    "max_ms": Meaning("max", "slowest answer", "ms"),
    "failed": Meaning("failed", "failures"),
    "unanswered": Meaning("unanswered", "questions without an answer"),
    "too_late": Meaning("too late", "answers that came too late"),
    "errors_percent": Meaning("errors", "errors", "%"),
    "seconds": Meaning("done after", "time until the last answer", "s"),
    "setup_s": Meaning("set-up", "time to open all sessions", "s"),
    "login_round_trips": Meaning("trips to log in", "round trips until a session can ask", ""),
    "round_trips": Meaning("trips to answer", "round trips until the first answer", ""),
    "login_round_trips_warm": Meaning("trips to log in, warm", "round trips until a further session can ask", ""),
    "round_trips_warm": Meaning("trips to answer, warm", "round trips until a further session's first answer", ""),
    "round_trips_resumed": Meaning(
        "trips to answer, resumed", "round trips until the first answer to a client that comes back", ""
    ),
    "elapsed_ms": Meaning("first answer", "time until the first answer", "ms"),
    "elapsed_ms_warm": Meaning("first answer, warm", "time until a further session's first answer", "ms"),
    "elapsed_ms_resumed": Meaning(
        "first answer, resumed", "time until the first answer to a client that comes back", "ms"
    ),
    "last_ms": Meaning("last ready", "time until the last of all sessions can ask", "ms"),
    "last_ms_warm": Meaning("last ready, warm", "the same, by a client that has had sessions", "ms"),
    "all_answered_ms": Meaning("all answered", "time until all new sessions have an answer", "ms"),
    "pinned_ms": Meaning("pinned", "time that a backend is held for each transaction", "ms"),
    "stalled_sessions": Meaning("stalled/loss", "sessions that stalled for each packet lost", ""),
    "stalled_per_loss": Meaning("slow/loss", "slow answers for each packet lost", ""),
    "client_cpu_us": Meaning("client CPU", "the client's CPU for each answer", "µs"),
    "pooler_cpu_us": Meaning("pooler CPU", "the pooler's CPU for each answer", "µs"),
    "postgres_cpu_us": Meaning("Postgres CPU", "Postgres' CPU for each answer", "µs"),
    "client_cpu_percent": Meaning("client", "the client's share of a core", "%"),
    "pooler_cpu_percent": Meaning("pooler", "the pooler's share of a core", "%"),
    "postgres_cpu_percent": Meaning("Postgres", "what Postgres takes of a core, all its processes together", "%"),
    "link_cpu_percent": Meaning("link", "the emulated link's share of a core", "%"),
    "client_rss_mb": Meaning("client", "the client's memory", "MB"),
    "pooler_rss_mb": Meaning("pooler", "the pooler's memory", "MB"),
    "bulk_mbit_s": Meaning("bulk Mbit/s", "throughput of the large transfer", "Mbit/s", lower=False),
    "competing_mbit_s": Meaning("TCP beside", "what a TCP flow beside it gets", "Mbit/s", lower=False),
    "copies_per_answer": Meaning("copies", "small frames that the client sent twice, for each answer", ""),
    "packets_per_answer": Meaning("packets", "packets on the long link for each answer", ""),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of all repetitions. ``values`` are theirs, in order; ``value`` is what is published."""

    value: float
    values: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Between the largest and the smallest repetition."""
        return max(self.values) - min(self.values)


@cache
def of_group(group: Group) -> dict[str, Figure]:
    """By name, sorted."""
    runs = [of_run(run) for run in group.runs]
    figures = {}
    for key in sorted({key for run in runs for key in run}):
        values = tuple(run[key] for run in runs if key in run)
        value = sum(values) if key in _SUMS else statistics.median(values)
        figures[key] = Figure(round(value, 6), values)
    return figures


def of_run(run: Stored) -> dict[str, float]:
    """All that is a number in its result, and what follows from its other parts."""
    figures = dict(_numbers(run, run.result))
    if run.encoded and not run.latencies.total:
        figures = {key: value for key, value in figures.items() if not _LATENCY.fullmatch(key)}
    if not figures.get("drops", 1):  # and what stalled for each of none is unknown
        figures = {key: value for key, value in figures.items() if not key.startswith(("stalled_", "waiting_"))}
    figures.update(_answers(run, figures))
    figures.update(_processes(run, figures.get("done", 0)))
    figures.update(_cores(run, figures))
    copies, done = figures.get("trunk_redundancy_copies"), figures.get("done")
    if copies is not None and done:
        figures["copies_per_answer"] = round(copies / done, 3)
    figures.update(_link(run, figures.get("done", 0)))
    return figures


def _numbers(run: Stored, values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        name = prefix + key
        match value:
            case bool() | None | list():
                continue
            case int() | float():
                yield name, _checked(run, name, value)
            case dict() if key != "errors":
                yield from _numbers(run, value, f"{name}_")
            case str() if prefix and _is_number(value):
                yield name, _checked(run, name, float(value))
            case _ if name in FIGURES or name in _SUMS:
                raise LabError(f"{run.file}: {name} is not a number, but {value!r}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _checked(run: Stored, name: str, value: float) -> float:
    if not math.isfinite(value) or (name in FIGURES and value < 0):
        raise LabError(f"{run.file}: {name} cannot be {value}")
    return value


def _answers(run: Stored, figures: dict[str, float]) -> Iterator[tuple[str, float]]:
    asked, done, failed = (figures.get(key) for key in ("asked", "done", "failed"))
    if asked is None or done is None or failed is None:
        return
    if done + failed > asked:
        raise LabError(f"{run.file}: {done + failed:g} answers and failures to {asked:g} questions")
    unanswered = figures.get("unanswered", asked - done - failed)
    yield "unanswered", unanswered
    if asked:
        yield "errors_percent", round(100 * (failed + unanswered + figures.get("too_late", 0)) / asked, 3)


def _processes(run: Stored, done: float) -> Iterator[tuple[str, float]]:
    """CPU for each answer and memory of those servers that had a part in it."""
    kind = run.plan["kind"]
    pooler = {"direct": "", "pgbouncer": "pgbouncer", "pgbouncer-tls": "pgbouncer"}.get(kind, "gateway")
    parts = {"pooler": pooler, "postgres": "postgres", "sidecar": "sidecar" if kind == "sidecar" else ""}
    for name, start in parts.items():
        used = [cpu for process, cpu in run.part("used", "cpu_s").items() if start and process.startswith(start)]
        held = [rss for process, rss in run.part("used", "rss_mb").items() if start and process.startswith(start)]
        if used and done:
            yield f"{name}_cpu_us", round(max(0.0, sum(used)) / done * 1e6, 1)
        if held and name != "postgres":  # whose processes share most of what each of them counts
            yield f"{name}_rss_mb", max(held)


def _cores(run: Stored, figures: dict[str, float]) -> Iterator[tuple[str, float]]:
    """How much of a core each process kept busy."""
    seconds, done = figures.get("seconds"), figures.get("done")
    if not seconds or not done:
        return
    for name in ("client", "pooler", "postgres", "sidecar"):
        if f"{name}_cpu_us" in figures:
            yield f"{name}_cpu_percent", round(figures[f"{name}_cpu_us"] * done / seconds / 1e4, 1)
    if (link := run.part("used", "cpu_s").get("link")) is not None:
        yield "link_cpu_percent", round(link / seconds * 100, 1)


def _link(run: Stored, done: float) -> Iterator[tuple[str, float]]:
    ways = [run.part("link_counters", way) for way in ("there", "back")]
    lost = sum(way.get("lost", way.get("drops", 0)) for way in ways)
    sent = sum(way.get("sent", way.get("packets", 0)) for way in ways)
    if any(ways):
        yield "lost_packets", lost
    if sent and done:
        yield "packets_per_answer", round(sent / done, 3)
    median = run.part("link", "wan").get("median")
    if median is not None:
        yield "link_rtt_ms", median
        if lost:
            yield "stalled_per_loss", round(run.latencies.above(median + LATE) / lost, 3)
    hosts = [run.part("used", "network", host) for host in ("client", "gateway")]
    if all("Tcp.RetransSegs" in host for host in hosts):
        yield "retransmissions", sum(host["Tcp.RetransSegs"] for host in hosts)
