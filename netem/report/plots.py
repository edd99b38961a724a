"""The report's plots: what is drawn of which figures. How it looks is :mod:`netem.report.style`'s.

Each returns a :class:`Plot`, or None where the runs do not hold what it is of.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from netem.report.figures import FIGURES, of_group
from netem.report.style import COLOURS, Canvas, Looks, order
from netem.report.words import arm_label, capital, number

if TYPE_CHECKING:
    from netem.report.data import Group, Stored

__all__ = ["Plot", "along", "costs", "percentiles", "ranges", "seconds"]

_TAIL = (50, 90, 99, 99.9, 99.99)
_MARKS = (("p50_ms", "o"), ("p99_ms", "D"), ("p99.9_ms", "|"))
_ROW = 0.235
"""Inches for an arm in a plot that has a row for each."""


@dataclass(frozen=True, slots=True)
class Plot:
    """``svg`` is a part of a page, ``title`` and ``words`` are what stands above it."""

    title: str
    words: str
    svg: str


def percentiles(name: str, found: Sequence[Group], looks: Looks) -> Plot | None:
    """Latency of all repetitions together, up to the percentile that ten answers were above."""
    canvas, ends = Canvas(name), {}
    for group in order(found):
        total = group.latencies.total
        if total < 20:
            continue
        tail = np.linspace(0, max(math.log10(total / 10), math.log10(2)), 80)
        values = group.latencies.at([100 * (1 - 10**-each) for each in tail])
        canvas.axes.plot(tail, values, **looks.line(group))
        ends[group] = (float(tail[-1]), values[-1])
    if not ends:
        return None
    canvas.logarithmic(canvas.axes.yaxis)
    last = max(end[0] for end in ends.values())
    ticks = [each for each in _TAIL if _place(each) <= last + 0.01]
    canvas.axes.set_xticks([_place(each) for each in ticks], [f"{each:g} %" for each in ticks])
    canvas.axes.set_xlabel("share of answers that came within the time")
    canvas.labels(ends, looks)
    words = "milliseconds, all repetitions together; to the right the slowest answers, stretched"
    return Plot("Latency: the whole distribution", words, canvas.svg("latency by percentile"))


def _place(percentile: float) -> float:
    return -math.log10(1 - percentile / 100)


def ranges(name: str, found: Sequence[Group], looks: Looks) -> Plot | None:
    """For each arm its median, p99 and p99.9, and between what repetitions had their p99."""
    rows = [group for group in order(found) if "p99_ms" in of_group(group)]
    if not rows:
        return None
    canvas = Canvas(name, left=0.33, right=0.955, height=0.62 + _ROW * len(rows))
    for place, group in enumerate(rows):
        figures, colour = of_group(group), looks.colour(group)
        marks = [(figures[key].value, marker) for key, marker in _MARKS if key in figures]
        canvas.axes.plot([each[0] for each in marks], [place] * len(marks), color=colour, linewidth=1.3)
        for value, marker in marks:
            canvas.axes.plot([value], [place], marker, color=colour, markersize=9 if marker == "|" else 5)
        spread = figures["p99_ms"].values
        canvas.axes.plot([min(spread), max(spread)], [place] * 2, color=colour, linewidth=4.5, alpha=0.35)
    _rows(canvas, rows, looks)
    canvas.logarithmic(canvas.axes.xaxis)
    words = "milliseconds; ● median, ◆ p99, ❘ p99.9; wide: where the p99 of the repetitions lay"
    return Plot("Latency: median, p99, p99.9", words, canvas.svg("latency of each arm"))


def _rows(canvas: Canvas, rows: Sequence[Group], looks: Looks) -> None:
    canvas.axes.set_yticks(range(len(rows)), [arm_label(group.plan) for group in rows], fontsize=9)
    for tick, group in zip(canvas.axes.get_yticklabels(), rows, strict=True):
        tick.set_color(looks.colour(group))
    canvas.axes.set_ylim(len(rows) - 0.4, -0.6)
    canvas.axes.grid(visible=False, axis="y")


def costs(name: str, found: Sequence[Group], looks: Looks) -> Plot | None:
    """CPU for each answer, of the client and of what pools."""
    rows = [group for group in order(found) if "client_cpu_us" in of_group(group)]
    if not rows:
        return None
    canvas = Canvas(name, left=0.33, right=0.93, height=0.62 + _ROW * len(rows))
    for place, group in enumerate(rows):
        figures, colour = of_group(group), looks.colour(group)
        mine = figures["client_cpu_us"].value
        others = sum(figures[key].value for key in ("pooler_cpu_us", "sidecar_cpu_us") if key in figures)
        canvas.axes.barh(place, mine, height=0.62, color=colour)
        canvas.axes.barh(place, others, left=mine, height=0.62, color=colour, alpha=0.4)
        canvas.axes.annotate(
            number(mine + others), (mine + others, place), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    _rows(canvas, rows, looks)
    canvas.axes.margins(x=0.12)
    words = "microseconds; full colour: the client, faint: gateway, pooler and sidecar"
    return Plot("CPU for each answer", words, canvas.svg("CPU for each answer by arm"))


def along(name: str, figure: str, found: Mapping[str, Sequence[Group]], looks: Looks, words: str) -> Plot | None:
    """One figure along a scenario's settings, in their order; bars are what repetitions had."""
    canvas, lines = Canvas(name, below=0.62), _lines(figure, found)
    if not lines:
        return None
    ends = {}
    for group, points in lines.items():
        values = [point[1] for point in points]
        places = [point[0] for point in points]
        canvas.axes.plot(places, values, marker=looks.marker(group), markersize=4.5, **looks.line(group))
        for place, _, low, high in points:
            canvas.axes.plot([place, place], [low, high], color=looks.colour(group), linewidth=4.5, alpha=0.3)
        ends[group] = (places[-1], values[-1])
    canvas.axes.set_xticks(range(len(found)), list(found), fontsize=8.5)
    canvas.axes.set_xlim(-0.15, len(found) - 0.85)
    everything = [point[1] for points in lines.values() for point in points]
    if min(everything) > 0 and max(everything) > 4 * min(everything):
        canvas.logarithmic(canvas.axes.yaxis)
    else:
        _from_zero(canvas)
    canvas.labels(ends, looks)
    meaning = FIGURES[figure]
    return Plot(
        capital(meaning.words),
        ", ".join(filter(None, (_unit(meaning.unit), words))),
        canvas.svg(f"{meaning.words} by setting"),
    )


def _lines(figure: str, found: Mapping[str, Sequence[Group]]) -> dict[Group, list[tuple[int, float, float, float]]]:
    """For each arm, by its last group, its points: place, value, lowest and highest repetition."""
    by_arm: dict[str, list[tuple[int, float, float, float]]] = {}
    last: dict[str, Group] = {}
    for place, groups in enumerate(found.values()):
        for group in groups:
            each = of_group(group).get(figure)
            if each is not None:
                by_arm.setdefault(group.arm, []).append((place, each.value, min(each.values), max(each.values)))
                last[group.arm] = group
    return {group: by_arm[group.arm] for group in order(list(last.values()))}


def _unit(unit: str) -> str:
    return {"ms": "milliseconds", "µs": "microseconds", "s": "seconds", "MB": "megabytes", "/s": "each second"}.get(
        unit, unit
    )


def _from_zero(canvas: Canvas) -> None:
    canvas.axes.set_ylim(bottom=0)
    canvas.axes.yaxis.set_major_formatter(lambda value, _: _short(value))


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 2000 else f"{value:g}"


def seconds(name: str, found: Sequence[Group], looks: Looks, keys: Container[str] | None = None) -> Iterator[Plot]:
    """How each second of the load went, by medians over the repetitions; all plots, or those of ``keys``."""
    for key, title, words, values, steep in _OVER_TIME:
        if keys is not None and key not in keys:
            continue
        canvas, ends, highest = Canvas(f"{name}.{key}"), {}, 0.0
        for group in order(found):
            points = _by_second(group, values)
            if len(points) > 1:
                highest = max(highest, *points.values())
                canvas.axes.plot(list(points), list(points.values()), **looks.line(group))
                ends[group] = list(points.items())[-1]
        if key == "done" and ends:
            _asked(canvas, found)
        if not ends or not highest:
            canvas.discard()
            continue
        if steep:
            canvas.logarithmic(canvas.axes.yaxis)
        else:
            _from_zero(canvas)
        canvas.axes.set_xlabel("seconds since the load began")
        canvas.labels(ends, looks)
        yield Plot(title, words, canvas.svg(title))


def _asked(canvas: Canvas, found: Sequence[Group]) -> None:
    points = max((_by_second(group, _row("asked")) for group in found), key=len)
    canvas.axes.plot(list(points), list(points.values()), color=COLOURS["muted"][0], linewidth=4, alpha=0.25, zorder=0)


def _by_second(group: Group, values: Callable[[Stored], Iterator[tuple[float, float]]]) -> dict[int, float]:
    seconds: dict[int, list[float]] = {}
    for run in group.runs:
        for at, value in values(run):
            seconds.setdefault(round(at), []).append(value)
    return {at: statistics.median(seconds[at]) for at in sorted(seconds)}


def _row(key: str) -> Callable[[Stored], Iterator[tuple[float, float]]]:
    def values(run: Stored) -> Iterator[tuple[float, float]]:
        for row in run.data.get("seconds") or ():
            if key in row and (row.get("done", 1) or key not in ("p50", "p99")):
                yield row["at"], row[key]

    return values


def _pooler(key: str) -> Callable[[Stored], Iterator[tuple[float, float]]]:
    """Of the gateway or PgBouncer: memory, or milliseconds of CPU in each second."""

    def values(run: Stored) -> Iterator[tuple[float, float]]:
        start = {"direct": "postgres", "pgbouncer": "pgbouncer", "pgbouncer-tls": "pgbouncer"}
        names = start.get(run.plan["kind"], "gateway")
        rows = [(row["at"], _sum(row, names, key)) for row in run.part("used").get("samples") or ()]
        if key == "rss_mb":
            yield from rows if names != "postgres" else ()
        else:
            for (before, first), (at, second) in pairwise(rows):
                yield at, (second - first) / (at - before) * 1000

    return values


def _sum(row: Mapping[str, Any], names: str, key: str) -> float:
    return float(sum(each[key] for process, each in row.items() if process.startswith(names) and key in each))


_OVER_TIME: tuple[tuple[str, str, str, Callable[[Stored], Iterator[tuple[float, float]]], bool], ...] = (
    ("done", "Throughput", "answers in each second; the grey band is what was asked", _row("done"), False),
    ("queued", "Queue", "questions that wait for a session, at the end of each second", _row("queued"), False),
    ("p99", "p99 over time", "milliseconds, of the answers of each second", _row("p99"), True),
    ("p50", "Median over time", "milliseconds, of the answers of each second", _row("p50"), True),
    ("cpu_ms", "CPU of the client", "milliseconds in each second", _row("cpu_ms"), False),
    (
        "pooler",
        "CPU of gateway or pooler",
        "milliseconds in each second; Postgres' where asked directly",
        _pooler("cpu_s"),
        False,
    ),
    ("rss_mb", "Memory of the client", "megabytes", _row("rss_mb"), False),
    ("held", "Memory of gateway or pooler", "megabytes", _pooler("rss_mb"), False),
)
