"""The report's first section, and its last: the conclusions for who has two minutes, and what was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from netem.report.compare import Verdict
from netem.report.findings import tally
from netem.report.sentences import Fragment, bullet, sentence

if TYPE_CHECKING:
    from netem.report.chapters import Chapter
    from netem.report.findings import Finding

__all__ = ["GROUPS", "NOT_MEASURED", "Conclusion", "Short", "grouped", "in_short", "reservations"]

_MOST = 8
"""Conclusions of a kind; the others are in the chapters."""
NOT_MEASURED: Final = (
    (
        "Real networks: the long link is emulated, its round trip does not wander, and nothing on it drops or slows "
        "UDP, as some networks do. A change of address, which QUIC survives, was not tried."
    ),
    (
        "More than one machine: client, gateway, Postgres and the link share the cores named with each figure, so each "
        "takes time from the others, and the way that costs most CPU suffers most."
    ),
    "Other clients: there is one, asyncpg in one process of Python. Other drivers, many processes, many gateways: no.",
    "Slow queries and large databases: Postgres answers from memory at once, so that the link is what is seen.",
    "Hours and days: a run takes seconds. Memory that grows slowly would not show.",
)
_OF_ONE = 2
"""Of one chapter at most, so that others have their say."""
GROUPS: Final = (
    ("better", "Where QUIC is better"),
    ("depends", "Where it depends on the setting"),
    ("same", "Where there is no difference, and TCP is as good"),
    ("worse", "Where TCP is better"),
    ("besides", "Not QUIC against TCP"),
    ("unequal", "With unequal sessions"),
)


@dataclass(frozen=True, slots=True)
class Conclusion:
    chapter: str
    words: tuple[Fragment, ...]
    times: float


@dataclass(frozen=True, slots=True)
class Short:
    """Conclusions by what they say for QUIC; ``besides`` is not about QUIC against TCP."""

    better: tuple[Conclusion, ...]
    same: tuple[Conclusion, ...]
    worse: tuple[Conclusion, ...]
    besides: tuple[Conclusion, ...]
    unequal: tuple[Conclusion, ...]
    counts: dict[str, int]
    caution: str


def in_short(chapters: Sequence[Chapter]) -> Short:
    counts = {verdict: sum(tally(chapter.findings)[verdict] for chapter in chapters) for verdict in Verdict}
    verdicts = {verdict: _conclusions(chapters, verdict) for verdict in Verdict}
    return Short(
        better=verdicts[Verdict.BETTER],
        same=verdicts[Verdict.SAME],
        worse=verdicts[Verdict.WORSE],
        besides=_besides(chapters),
        unequal=tuple(
            Conclusion(chapter.name, tuple(sentence(finding, chapter.titles)), 1.0)
            for chapter in chapters
            for finding in chapter.findings
            if finding.rule.headline and not finding.equal
        )[:2],
        counts={verdict.name.lower(): count for verdict, count in counts.items()},
        caution=_caution(chapters),
    )


def _conclusions(chapters: Sequence[Chapter], verdict: Verdict) -> tuple[Conclusion, ...]:
    """For each rule that belongs here the pair of arms that shows it best."""
    found: dict[tuple[str, object], Conclusion] = {}
    for chapter, finding in _headlines(chapters):
        if not finding.of_transports or not (those := finding.those(verdict)):
            continue
        conclusion = Conclusion(chapter.name, tuple(bullet(finding, verdict, chapter.titles)), those[0].times)
        # A win against each of several is worth a line each, while one that is lost to all of them is one.
        key = (chapter.name, finding.rule if verdict is Verdict.BETTER else finding.rule.figure)
        if key not in found or found[key].times < conclusion.times:
            found[key] = conclusion
    return _taken(list(found.values()))


def _taken(found: list[Conclusion]) -> tuple[Conclusion, ...]:
    """Of each chapter its first, then of each its second: rules stand in the order of their weight."""
    places = {id(each): [other.chapter for other in found[:at]].count(each.chapter) for at, each in enumerate(found)}
    kept = [each for turn in range(_OF_ONE) for each in found if places[id(each)] == turn][:_MOST]
    return tuple(each for each in found if each in kept)


def _besides(chapters: Sequence[Chapter]) -> tuple[Conclusion, ...]:
    found: dict[tuple[str, object], Conclusion] = {}
    for chapter, finding in _headlines(chapters):
        if not finding.of_transports:
            best = max(finding.comparisons, key=lambda each: (each.verdict is not Verdict.SAME, each.times))
            words = tuple(bullet(finding, best.verdict, chapter.titles))
            found.setdefault((chapter.name, finding.rule), Conclusion(chapter.name, words, best.times))
    return tuple(found.values())


def _headlines(chapters: Sequence[Chapter]) -> Iterator[tuple[Chapter, Finding]]:
    for chapter in chapters:
        for finding in chapter.findings:
            if finding.rule.headline and finding.equal:
                yield chapter, finding


def grouped(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """A chapter's findings under the names of :data:`GROUPS`."""
    groups: dict[str, list[Finding]] = {name: [] for name, _ in GROUPS}
    for finding in findings:
        groups[_group(finding)].append(finding)
    return {name: each for name, each in groups.items() if each}


def _group(finding: Finding) -> str:
    if not finding.equal:
        return "unequal"
    if not finding.of_transports:
        return "besides"
    verdicts = {each.verdict for each in finding.comparisons}
    if len(verdicts) > 1:
        return "depends"
    return verdicts.pop().name.lower()


def reservations(chapters: Sequence[Chapter], scenarios: Sequence[str]) -> Iterator[str]:
    """What is to be said against the figures, from what is stored of them."""
    missing = [name for name in scenarios if name not in {chapter.name for chapter in chapters}]
    if missing:
        yield f"Scenarios that there are, and nothing is stored of: {', '.join(missing)}."
    once = [chapter.name for chapter in chapters if chapter.repetitions < 2]
    if once:
        yield f"Repetitions: in {', '.join(once)} there are arms that ran once; their figures are indications."
    quick = [chapter.name for chapter in chapters if any("--quick" in origin.command for origin in chapter.origins)]
    if quick:
        yield f"Full length: of {', '.join(quick)} there are runs with --quick, which are shorter and leave out arms."
    if caution := _caution(chapters):
        yield caution


def _caution(chapters: Sequence[Chapter]) -> str:
    busy = sum(_busy(chapter) for chapter in chapters)
    runs = sum(len(group.runs) for chapter in chapters for group in chapter.groups)
    return f"A quiet machine: when {busy} of {runs} runs began, more was running than there are cores." if busy else ""


def _busy(chapter: Chapter) -> int:
    made = [run.part("made") for group in chapter.groups for run in group.runs]
    return sum(each.get("load_average", 0) > each.get("cores", 1) for each in made)
