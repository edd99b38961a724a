"""Makes the report: results/wan/index.html, results/summary.json, and the tables in results/README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

from netem.errors import LabError
from netem.report import plots
from netem.report.data import Group, groups, read
from netem.scenario import Scenario

__all__ = ["make", "summary"]

_HEADS = {
    "sessions": "sessions",
    "per_second": "answers/s",
    "p50_ms": "p50 ms",
    "p90_ms": "p90 ms",
    "p99_ms": "p99 ms",
    "p99.9_ms": "p99.9 ms",
    "failed": "failed",
    "client_cpu_us": "client us",
    "server_us": "gateway us",
    "client_rss_mb": "client MB",
    "stalled_per_loss": "stalled/loss",
}
_BEGIN, _END = "<!-- made by python -m netem report: begin -->", "<!-- made by python -m netem report: end -->"


@dataclass(frozen=True, slots=True)
class Row:
    arm: str
    cells: list[str]
    files: list[str]


@dataclass(frozen=True, slots=True)
class Plot:
    alt: str
    png: str


@dataclass(frozen=True, slots=True)
class Part:
    """One setting of a scenario."""

    setting: str
    link: str
    made: str
    heads: list[str]
    rows: list[Row]
    plots: list[Plot]


@dataclass(frozen=True, slots=True)
class Chapter:
    name: str
    question: str
    parts: list[Part]


def make(results: Path) -> list[Path]:
    """Writes the report of what is under ``results`` -> the files. Raises :class:`LabError`."""
    found = groups(read(results / "wan"))
    if not found:
        raise LabError(f"nothing is stored in {results / 'wan'}: `python -m netem run NAME` comes first")
    chapters = [_chapter(name, list(each)) for name, each in groupby(found, key=lambda group: group.scenario)]
    page, table, figures = results / "wan" / "index.html", results / "README.md", results / "summary.json"
    page.write_text(_page(chapters))
    figures.write_text(json.dumps(summary(found), indent=1) + "\n")
    table.write_text(_with_tables(table.read_text(), chapters))
    return [page, table, figures]


def summary(found: Sequence[Group]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Figures by scenario, setting and arm."""
    tree: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for group in found:
        tree.setdefault(group.scenario, {}).setdefault(group.setting, {})[group.arm] = group.figures
    return tree


def _chapter(name: str, found: list[Group]) -> Chapter:
    parts = [_part(setting, list(each)) for setting, each in groupby(found, key=lambda group: group.setting)]
    question = Scenario.load(name, quick=False).question if name in Scenario.names() else ""
    return Chapter(name, question, parts)


def _part(setting: str, found: list[Group]) -> Part:
    first = found[0].runs[0].data
    wan, made = first["link"]["wan"], first["made"]
    rows = [Row(group.arm, list(_cells(group)), [run.file for run in group.runs]) for group in found]
    kept = [at for at in range(len(_HEADS)) if any(row.cells[at] not in ("", "0") for row in rows)]
    trips = f"{wan['median']:.1f} ms (p99 {wan['p99']:.1f}), {wan['lost']} of {wan['sent']} pings lost"
    return Part(
        setting=setting,
        link=f"{first['link']['kind']}, {trips}",
        made=f"`{made['command']}`, commit {made['commit']}, {made['cores']} cores, {made['date']}",
        heads=[list(_HEADS.values())[at] for at in kept],
        rows=[Row(row.arm, [row.cells[at] for at in kept], row.files) for row in rows],
        plots=list(_plots(setting, found)),
    )


def _cells(group: Group) -> Iterator[str]:
    figures = group.figures
    poolers = ("gateway_cpu_us", "pgbouncer_cpu_us", "pgbouncer-tls_cpu_us")
    server = next((figures[key] for key in poolers if key in figures), None)
    run = group.runs[0].result
    sessions = f"{run['sessions_used']}/{run['sessions']}"
    values: dict[str, Any] = {**figures, "server_us": server, "sessions": sessions}
    for key in _HEADS:
        yield _written(values.get(key))


def _written(value: float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _plots(setting: str, found: list[Group]) -> Iterator[Plot]:
    yield Plot(f"latency by percentile, {setting}", plots.latency(found, "latency by percentile"))
    if found[0].runs[0].data["plan"]["load"]["kind"] in ("ramp", "burst"):
        for key, label in (
            ("done", "answers/s"),
            ("queued", "queued"),
            ("p99", "p99 of each second, ms"),
            ("rss_mb", "client memory, MB"),
            ("cpu_ms", "client CPU, ms each second"),
        ):
            yield Plot(f"{label} over time, {setting}", plots.seconds(found, key, label, label))


def _page(chapters: list[Chapter]) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.j2").render(chapters=chapters) + "\n"


def _with_tables(text: str, chapters: list[Chapter]) -> str:
    """``text`` with the tables between the marks, at the end where there are none."""
    tables = "\n".join(
        [
            "## wan/",
            "",
            "The same with plots, and a link for each figure, is in [wan/index.html](wan/index.html).",
            "",
            *_lines(chapters),
        ]
    )
    block = f"{_BEGIN}\n{tables}\n{_END}"
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text)
    return f"{text.rstrip()}\n\n{block}\n"


def _lines(chapters: list[Chapter]) -> Iterator[str]:
    for chapter in chapters:
        yield f"### {chapter.name}: {chapter.question}"
        yield ""
        for part in chapter.parts:
            yield f"**{part.setting}** - link as measured: {part.link}. {part.made}"
            yield ""
            yield "| " + " | ".join(["arm", *part.heads]) + " |"
            yield "|---" * (len(part.heads) + 1) + "|"
            for row in part.rows:
                yield "| " + " | ".join([f"[{row.arm}](wan/{row.files[0]})", *row.cells]) + " |"
            yield ""
