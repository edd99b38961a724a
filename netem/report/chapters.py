"""What the report says, before it is a page or Markdown: chapters, settings, rows and cells, and where they are from.

A cell knows the run whose figure it shows; a chapter knows the commands, commits, machines and dates of its runs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from netem.report import plots
from netem.report.checks import checks
from netem.report.figures import FIGURES, Figure, of_group, of_run
from netem.report.findings import Finding, find, frame
from netem.report.style import Looks, order
from netem.report.words import arm_label, number, setting, titles

if TYPE_CHECKING:
    from netem.report.data import Group, Stored
    from netem.report.plots import Plot

__all__ = ["Cell", "Chapter", "Origin", "Part", "Row", "chapters"]

_ORDER = (
    "ramp",
    "loss",
    "burst",
    "bulk",
    "bottleneck",
    "first_row",
    "setup",
    "transactions",
    "pooled",
    "rows",
    "cpu",
    "ceiling",
)
_MANY = 3
"""Settings of a scenario."""
_OPTIONAL = {"failed", "unanswered", "too_late", "errors_percent", "copies_per_answer"}
"""Columns that are left out where all of them are 0."""
_ASKED_FOR = {"seconds", "setup_s", *(f"{each}_cpu_percent" for each in ("client", "pooler", "postgres", "link"))}
"""Columns only where a scenario's rules compare them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """``file`` is of the run whose figure it is, or is nearest to it; ``hint`` says what each repetition had."""

    words: str
    file: str = ""
    hint: str = ""
    verdict: str = ""
    """Of a threshold: pass or fail."""


@dataclass(frozen=True, slots=True)
class Row:
    anchor: str
    arm: str
    kind: str
    cells: tuple[Cell, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One setting."""

    title: str
    anchor: str
    heads: tuple[tuple[str, str], ...]
    """Of columns: what and in which unit."""
    rows: tuple[Row, ...]
    plots: tuple[Plot, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where runs come from."""

    command: str
    commit: str
    machine: str
    dates: str
    runs: int


@dataclass(frozen=True, slots=True)
class Chapter:
    name: str
    question: str
    why: str
    facts: tuple[tuple[str, str], ...]
    titles: dict[str, str]
    findings: tuple[Finding, ...]
    plots: tuple[Plot, ...]
    parts: tuple[Part, ...]
    origins: tuple[Origin, ...]
    groups: tuple[Group, ...]

    @property
    def repetitions(self) -> int:
        """The fewest that an arm has."""
        return min(len(group.runs) for group in self.groups)


def chapters(found: Sequence[Group], *, draw: bool = True) -> list[Chapter]:
    """One for each scenario, in the order in which they are read. Raises :class:`LabError`."""
    by_name = {name: list(each) for name, each in groupby(found, key=lambda group: group.scenario)}
    names = sorted(by_name, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    return [_chapter(name, by_name[name], draw) for name in names]


def _chapter(name: str, found: list[Group], draw: bool) -> Chapter:
    looks, names = Looks(found), titles(found)
    settings = sorted(names, key=_numeric)
    over_time = _over_time(name, len(settings))
    beside = {each: order([group for group in found if group.setting == each]) for each in settings}
    return Chapter(
        name=name,
        question=next((str(run.data["question"]) for run in _runs(found) if run.data.get("question")), ""),
        why=frame(name).why,
        facts=tuple(_facts([group for each in settings for group in beside[each]])),
        titles=names,
        findings=tuple(find([group for each in settings for group in beside[each]])),
        plots=tuple(_overview(name, beside, looks)) if draw else (),
        parts=tuple(_part(name, each, names[each], beside[each], looks, draw, over_time) for each in settings),
        origins=tuple(_origins(found)),
        groups=tuple(found),
    )


def _runs(found: Sequence[Group]) -> Iterator[Stored]:
    for group in found:
        yield from group.runs


def _numeric(name: str) -> list[tuple[int, float, str]]:
    """Settings in the order of their numbers: 0.1 before 1.0, 500 before 2000; words after all numbers."""
    return [(0, float(part), "") if part.isdigit() else (1, 0.0, part) for part in name.replace("-", ".").split(".")]


def _facts(found: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """The set-up, and the link as it was measured."""
    settings = [setting(group.runs[0]) for group in found]
    for term, key in (("Link", "link"), ("Load", "load"), ("Workload", "workload")):
        yield term, "; ".join(filter(None, dict.fromkeys(getattr(each, key) for each in settings)))
    seconds = sorted({load["seconds"] for run in _runs(found) if (load := run.part("plan", "load")).get("seconds")})
    if seconds:
        counts = sorted({len(group.runs) for group in found})
        lasted = " or ".join(f"{each:g} s" for each in seconds)
        yield (
            "Runs",
            f"{sum(len(group.runs) for group in found)}, {_range(counts)} for each arm and setting, {lasted} each",
        )
    pools = sorted({size for run in _runs(found) if (size := run.part("plan").get("pool_size"))})
    if pools:
        yield "Pool", f"{_range(pools)} backends of Postgres, in each pooler"
    scaled = sorted({words for run in _runs(found) if (words := run.part("scaled").get("words"))})
    if scaled:
        yield "Scaled", "; ".join(scaled)
    yield "Sessions", _sessions(found)
    yield "Link as measured", _measured(found)


def _range(values: Sequence[float]) -> str:
    return number(values[0]) if values[0] == values[-1] else f"{number(values[0])} to {number(values[-1])}"


def _sessions(found: Sequence[Group]) -> str:
    """Which arms have as many, so that they can be compared, and which have a number of their own."""
    by_count: dict[int, dict[str, None]] = {}
    for group in order(found):
        by_count.setdefault(group.sessions, {})[arm_label(group.plan)] = None
    shared = {count: list(arms) for count, arms in sorted(by_count.items()) if len(arms) > 1}
    alone = {count: list(arms) for count, arms in sorted(by_count.items()) if len(arms) == 1}
    said = [f"equal, {number(count)}: {' · '.join(arms)}" for count, arms in shared.items()]
    if alone:
        listed = " · ".join(f"{arms[0]} ({number(count)})" for count, arms in alone.items())
        said.append(f"unequal to all others: {listed}")
    return "; ".join(said)


def _measured(found: Sequence[Group]) -> str:
    trips = [wan for run in _runs(found) if "median" in (wan := run.part("link", "wan"))]
    if not trips:
        return "not stored"
    medians = sorted(each["median"] for each in trips)
    kinds = sorted({run.part("link").get("kind", "") for run in _runs(found)})
    sent, lost = sum(each.get("sent", 0) for each in trips), sum(each.get("lost", 0) for each in trips)
    worst = max(each.get("p99", 0) for each in trips)
    medians_said = f"{medians[0]:.1f} ms" if medians[0] == medians[-1] else f"{medians[0]:.1f} to {medians[-1]:.1f} ms"
    return (
        f"{' and '.join(kinds)}; before each run {number(trips[0].get('sent', 0))} pings: median round trip "
        f"{medians_said}, largest p99 {worst:.1f} ms; {number(lost)} of {number(sent)} pings lost"
    )


def _origins(found: Sequence[Group]) -> Iterator[Origin]:
    together: dict[tuple[str, str, str], list[str]] = {}
    for run in _runs(found):
        made = run.part("made")
        key = (str(made.get("command", "")), str(made.get("commit", "")), _machine(made))
        together.setdefault(key, []).append(str(made.get("date", "")))
    for (command, commit, machine), dates in sorted(together.items()):
        first, last = min(dates), max(dates)
        yield Origin(command, commit, machine, first if first == last else f"{first} to {last}", len(dates))


def _machine(made: dict[str, Any]) -> str:
    parts = [
        made.get("cpu", ""),
        f"{made['cores']} cores" if "cores" in made else "",
        f"Linux {made['kernel']}" if "kernel" in made else "",
        f"Python {made['python']}" if "python" in made else "",
        f"within it {made['guest']['kind']} {made['guest']['kernel']}" if "guest" in made else "",
    ]
    return ", ".join(filter(None, parts))


def _overview(name: str, beside: dict[str, list[Group]], looks: Looks) -> Iterator[Plot]:
    """One figure along the dimension of the settings that has most values, a plot for each of the others."""
    if len(beside) < 2:
        return
    settings = {each: asdict(setting(groups[0].runs[0])) for each, groups in beside.items()}
    counts = {key: len({words[key] for words in settings.values()}) for key in ("link", "load", "workload")}
    first, *others = sorted(counts, key=lambda key: -counts[key])
    around: dict[str, dict[str, list[Group]]] = {}
    for each, words in settings.items():
        rest = ", ".join(words[key] for key in others if counts[key] > 1)
        around.setdefault(rest, {})[_tick(words[first])] = beside[each]
    for figure in frame(name).along:
        for place, (rest, along) in enumerate(around.items()):
            plot = plots.along(f"{name}.{figure}.{place}", figure, along, looks, rest) if len(along) > 1 else None
            if plot is not None:
                yield plot


def _tick(words: str) -> str:
    """In lines that are short enough for several in a row."""
    return "\n".join(textwrap.wrap(words.partition(", thinking")[0], 13))


def _over_time(name: str, settings: int) -> Container[str] | None:
    """Which plots over time each setting has; None for all of them. Fewer where there are many settings."""
    if not frame(name).over_time:
        return ("p99",)
    return None if settings <= _MANY else ("p99", "done", "queued")


def _part(
    name: str, key: str, title: str, found: list[Group], looks: Looks, draw: bool, over_time: Container[str] | None
) -> Part:
    ruled = {rule.figure for rule in frame(name).rules} | set(frame(name).along)
    keys = [each for each in FIGURES if _is_column(each, found) and (each in ruled or each not in _ASKED_FOR)]
    judged = {group.arm: {check.head: check.words for check in checks(group)} for group in found}
    limits = list(dict.fromkeys(head for each in judged.values() for head in each))
    heads = [("sessions", "used / of"), *((FIGURES[each].head, FIGURES[each].unit) for each in keys)]
    return Part(
        title=title,
        anchor=f"{name}.{key}",
        heads=(*heads, *((head, "") for head in limits)),
        rows=tuple(_row(group, keys, [judged[group.arm].get(head, "") for head in limits]) for group in found),
        plots=tuple(_drawn(f"{name}.{key}", found, looks, over_time)) if draw else (),
    )


def _is_column(figure: str, found: Sequence[Group]) -> bool:
    values = [of_group(group)[figure].value for group in found if figure in of_group(group)]
    return bool(values) and (figure not in _OPTIONAL or any(values))


def _row(group: Group, keys: Sequence[str], judged: Sequence[str]) -> Row:
    figures = of_group(group)
    used = figures.get("sessions_used")
    said = f"{number(used.value)} / {number(group.sessions)}" if used else number(group.sessions)
    cells = [Cell(said, group.runs[0].file), *(_cell(group, key, figures.get(key)) for key in keys)]
    verdicts = [Cell(words, verdict=words[:4].lower()) for words in judged]
    anchor = f"{group.scenario}.{group.setting}.{group.arm}"
    files = tuple(run.file for run in group.runs)
    return Row(anchor, arm_label(group.plan), group.plan["kind"], (*cells, *verdicts), files)


def _cell(group: Group, key: str, figure: Figure | None) -> Cell:
    if figure is None:
        return Cell("")
    runs = [run for run in group.runs if key in of_run(run)]
    nearest = min(zip(figure.values, runs, strict=True), key=lambda each: abs(each[0] - figure.value))[1]
    return Cell(number(figure.value), nearest.file, " · ".join(number(each) for each in figure.values))


def _drawn(name: str, found: list[Group], looks: Looks, over_time: Container[str] | None) -> Iterator[Plot]:
    for draw, kind in ((plots.ranges, "ranges"), (plots.percentiles, "percentiles"), (plots.costs, "costs")):
        plot = draw(f"{name}.{kind}", found, looks)
        if plot is not None:
            yield plot
    yield from plots.seconds(f"{name}.seconds", found, looks, over_time)
