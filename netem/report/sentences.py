"""Sentences of findings, as fragments: words, and figures that know the runs they come from; for Markdown and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netem.report.compare import Comparison, Verdict
from netem.report.figures import FIGURES, of_group
from netem.report.words import arm_label, capital, login_label, number, sessions, with_unit

if TYPE_CHECKING:
    from netem.report.data import Group
    from netem.report.findings import Finding

__all__ = ["Fragment", "Ref", "bullet", "direction", "label", "plain", "sentence", "times"]


@dataclass(frozen=True, slots=True)
class Ref:
    """A figure of a group's; whoever writes it down links it."""

    text: str
    group: Group


Fragment = str | Ref
Titles = Mapping[str, str]
"""What settings are called."""


def plain(fragments: Sequence[Fragment]) -> str:
    """Without links."""
    return "".join(each if isinstance(each, str) else each.text for each in fragments)


def label(finding: Finding, titles: Titles) -> str:
    """Whom it compares, and with how many sessions."""
    first = finding.comparisons[0]
    if finding.rule.base:
        count = f"{number(first.ours.sessions)} sessions"
        return f"{arm_label(first.ours.plan)} ({count}), against {titles[first.theirs.setting]}"
    ours, theirs = first.ours.plan, first.theirs.plan
    said, login = sessions(first.ours, first.theirs), login_label(ours)
    if login and login == login_label(theirs):  # said once
        ours, theirs, said = {**ours, "login": ""}, {**theirs, "login": ""}, f"{said}, {login}"
    return f"{arm_label(ours)} against {arm_label(theirs)} ({said})"


def direction(comparison: Comparison) -> str:
    """Such as ``lower``."""
    if comparison.verdict is Verdict.SAME:
        return "no difference"
    return "lower" if (comparison.verdict is Verdict.BETTER) == FIGURES[comparison.figure].lower else "higher"


def times(comparison: Comparison) -> str:
    """Such as ``7.6 times less`` or ``12 % more``; empty for no difference, and where one is 0."""
    small, large = sorted(comparison.values)
    if comparison.verdict is Verdict.SAME or not small:
        return ""
    less = comparison.values[0] < comparison.values[1]
    if large / small >= 1.95:
        ratio = large / small
        return f"{ratio:.1f} times {'less' if less else 'as much'}" if ratio < 20 else _rough(ratio, less)
    share = (large - small) / (large if less else small) * 100
    return f"{share:.0f}\u00a0% {'less' if less else 'more'}"


def _rough(ratio: float, less: bool) -> str:
    return f"{ratio:,.0f} times {'less' if less else 'as much'}"


def _values(comparison: Comparison) -> list[Fragment]:
    ours, theirs = comparison.values
    figure = comparison.figure
    said: list[Fragment] = [Ref(number(ours), comparison.ours), " against "]
    said.append(Ref(with_unit(theirs, figure), comparison.theirs))
    if ratio := times(comparison):
        said.append(f", {ratio}")
    return said


def sentence(finding: Finding, titles: Titles) -> list[Fragment]:
    """All of a finding: where it is better, where worse, where there is no difference."""
    parts = [part for verdict in Verdict if (part := _part(finding, verdict, titles))]
    said: list[Fragment] = [f"{label(finding, titles)}, {FIGURES[finding.rule.figure].words}: "]
    for place, part in enumerate(parts):
        said += ["; ", *part] if place else part
    said.append(_failures(finding) + ".")
    if not finding.equal:
        said += _qualified(finding)
    return said


def _part(finding: Finding, verdict: Verdict, titles: Titles) -> list[Fragment]:
    those, count = finding.those(verdict), len(finding.comparisons)
    if not those:
        return []
    first, words = those[0], direction(those[0])
    if count == 1:
        where = f" ({titles[first.ours.setting]})" if finding.rule.base else ""
        return [f"{words}{where}, ", *_values(first)]
    if len(those) == 1:
        return [f"{words} at {titles[first.ours.setting]}, ", *_values(first)]
    many = f"{len(those)} of {count}"
    if len(those) == count:
        many = "both" if count == 2 else f"all {count}"
    if verdict is Verdict.SAME:
        return [f"{words} in {many} settings, such as {titles[first.ours.setting]}, ", *_values(first)]
    return [f"{words} in {many} settings, most at {titles[first.ours.setting]}, ", *_values(first)]


def _failures(finding: Finding) -> str:
    """What part of its questions an arm did not answer, where it is worth a word."""
    shares: dict[str, tuple[float, Group]] = {}
    for each in finding.comparisons:
        for group in (each.ours, each.theirs):
            errors = of_group(group).get("errors_percent")
            if errors and errors.value >= 0.05 and finding.rule.figure != "errors_percent":
                shares[group.arm] = max(errors.value, shares.get(group.arm, (0.0, group))[0]), group
    said = [f"{number(share)} % of {arm_label(group.plan)}'s questions failed" for share, group in shares.values()]
    return f" (of what was answered: up to {' and '.join(said)})" if said else ""


def _qualified(finding: Finding) -> list[Fragment]:
    """What arms with equal sessions say to a comparison of unequal ones."""
    if not finding.beside:
        return [" No arms with equal sessions were run beside it."]
    said: list[Fragment] = [" With equal sessions: "]
    for place, each in enumerate(finding.beside):
        ours, theirs = arm_label(each.ours.plan), arm_label(each.theirs.plan)
        said += ["; " if place else "", f"{ours} against {theirs} ({sessions(each.ours, each.theirs)}) "]
        said += [f"{direction(each)}, ", *_values(each)]
    verdicts = {each.verdict for each in finding.comparisons}
    if verdicts.isdisjoint(each.verdict for each in finding.beside):
        return [*said, ". So it is the number of sessions that makes the difference, not what they travel over."]
    return [*said, "."]


def bullet(finding: Finding, verdict: Verdict, titles: Titles) -> list[Fragment]:
    """A line of the page's first section: the comparison with this verdict that differs most."""
    those = finding.those(verdict)
    first, more = those[0], len(those) - 1
    where = "" if len(set(titles.values())) == 1 else f" at {titles[first.ours.setting]}"
    words = FIGURES[finding.rule.figure].words
    said: list[Fragment] = [f"{capital(words)}{where}: ", *_values(first)]
    others = f"; so it is in {more} more setting{'s' if more > 1 else ''}" if more else ""
    once = "" if first.repeated else "; one run each"
    return [*said, f" ({label(finding, titles)}{others}{once})."]
