"""What a scenario's figures mean: its rules applied to its arms. Comparisons; the sentences are made of them elsewhere.

Arms with as many sessions are preferred: those with unequal ones are compared where a rule asks for it, or where there
are no others, and then what equal ones say is kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from netem.report.compare import Comparison, Verdict, compare, refuse_contradicted, with_equal_sessions
from netem.report.rules import FRAMES, UNKNOWN, Frame, Rule
from netem.report.words import way

if TYPE_CHECKING:
    from netem.report.data import Group

__all__ = ["Finding", "find", "frame", "tally"]

_OVER_TCP = ("direct", "pgbouncer", "pgbouncer-tls", "tcp", "tls", "mux")


@dataclass(frozen=True, slots=True)
class Finding:
    """One pair of arms in one figure: a comparison for each setting that both have.

    Where their sessions are unequal, ``beside`` is all that equal ones say about the same.
    """

    rule: Rule
    comparisons: tuple[Comparison, ...]
    beside: tuple[Comparison, ...] = ()

    @property
    def equal(self) -> bool:
        return all(each.equal for each in self.comparisons)

    @property
    def of_transports(self) -> bool:
        """Whether it is QUIC that is held against TCP."""
        first = self.comparisons[0]
        return not self.rule.base and first.ours.plan["kind"] == "quic" and first.theirs.plan["kind"] in _OVER_TCP

    def those(self, verdict: Verdict) -> list[Comparison]:
        """With this verdict, the largest difference first."""
        return sorted((each for each in self.comparisons if each.verdict is verdict), key=lambda each: -each.times)


def frame(scenario: str) -> Frame:
    return FRAMES.get(scenario, UNKNOWN)


def find(found: Sequence[Group]) -> list[Finding]:
    """What there is to say of one scenario. Raises :class:`LabError` for what must not be published."""
    framed = frame(found[0].scenario)
    findings = [finding for rule in framed.rules for finding in _of_rule(rule, framed, found)]
    for finding in findings:
        refuse_contradicted([*finding.comparisons, *finding.beside], found)
    return findings


def tally(findings: Sequence[Finding]) -> dict[Verdict, int]:
    """How often QUIC was better, no different and worse than TCP with as many sessions."""
    compared = [each for finding in findings if finding.of_transports for each in finding.comparisons if each.equal]
    return {verdict: sum(each.verdict is verdict for each in compared) for verdict in Verdict}


def _of_rule(rule: Rule, framed: Frame, found: Sequence[Group]) -> Iterator[Finding]:
    if rule.base:
        yield from _by_workload(rule, found)
        return
    pairs = _pairs(rule, found)
    equal = {arms: each for arms, each in pairs.items() if each[0].equal}
    for comparisons in equal.values():
        yield Finding(rule, tuple(comparisons))
    unequal = {arms: each for arms, each in pairs.items() if arms not in equal}
    if rule.unequal:
        unequal = {arms: unequal[arms] for arms in framed.unequal if arms in unequal}
    elif equal:
        return
    else:
        unequal = dict(sorted(unequal.items(), key=lambda item: _apart(item[1][0]))[:1])
    for comparisons in unequal.values():
        beside = [other for each in comparisons for other in with_equal_sessions(each, found)]
        yield Finding(rule, tuple(comparisons), tuple(beside))


def _pairs(rule: Rule, found: Sequence[Group]) -> dict[tuple[str, str], list[Comparison]]:
    """By the names of both arms: a comparison for each setting."""
    pairs: dict[tuple[str, str], list[Comparison]] = {}
    for setting in dict.fromkeys(group.setting for group in found):
        beside = [group for group in found if group.setting == setting]
        ours = [group for group in beside if _is(group, rule.ours)]
        theirs = [group for group in beside if _is(group, rule.theirs)]
        for mine, other in product(ours, theirs):
            if mine.plan.get("login") == other.plan.get("login") and (each := compare(rule.figure, mine, other)):
                pairs.setdefault((mine.arm, other.arm), []).append(each)
    return pairs


def _is(group: Group, wanted: str) -> bool:
    """Whether it goes this way, with whatever login."""
    login = group.plan.get("login")
    return way(group) in (wanted, f"{wanted}-{login}" if login else wanted)


def _apart(comparison: Comparison) -> float:
    """How unequal the sessions are."""
    few, many = sorted((comparison.ours.sessions, comparison.theirs.sessions))
    return many / max(few, 1)


def _by_workload(rule: Rule, found: Sequence[Group]) -> Iterator[Finding]:
    """The same arm under other workloads than the base."""
    for arm in dict.fromkeys(group.arm for group in found):
        mine = [group for group in found if group.arm == arm]
        bases = [group for group in mine if _workload(group) == rule.base]
        others = [group for group in mine if _workload(group) != rule.base]
        pairs = [(other, base) for other, base in product(others, bases) if _around(other) == _around(base)]
        comparisons = [each for pair in pairs if (each := compare(rule.figure, *pair))]
        if comparisons:
            yield Finding(rule, tuple(comparisons))


def _workload(group: Group) -> str:
    return str(group.runs[0].part("plan", "workload").get("kind", ""))


def _around(group: Group) -> tuple[object, object]:
    """The link and the load, without the seed of the losses."""
    run = group.runs[0]
    return run.part("link", "asked", "there"), run.part("plan", "load")
