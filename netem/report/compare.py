"""Two arms, one figure: better, worse, or no difference. And when such a sentence must not be published.

The rules, in their order:

1. Figures are medians over repetitions. Where the repetitions of one reach into those of the other, there is no
   difference; where all of one are on the same side of all of the other, there is one, however far apart they are among
   themselves.
2. A difference of less than `SMALLEST` is none, however well repetitions agree.
3. One repetition has no spread. It is taken to be `UNREPEATED` of the larger figure, and the sentence says so.
4. A comparison of unequal sessions is contradicted by one of the same ways, in the same setting, with equal sessions
   that comes out otherwise. Who publishes the first has to publish the second beside it.
5. Latencies are those of answers. Of two arms whose errors differ by more than `ERRORS` points, the one with more of
   them is not called better in latency or throughput, nor alike: the two are not compared.
6. Nor are arms under different loads or kinds of link, such as a short run beside those of a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from netem.errors import LabError
from netem.report.figures import FIGURES, of_group
from netem.report.words import way

if TYPE_CHECKING:
    from netem.report.data import Group
    from netem.report.figures import Figure

__all__ = ["SMALLEST", "UNREPEATED", "Comparison", "Verdict", "compare", "refuse_contradicted", "with_equal_sessions"]

SMALLEST = 0.03
"""The share of the larger figure from which a difference is worth a word."""
ERRORS = 1.0
"""Percent."""
UNREPEATED = 0.25
"""The share of the larger figure that repetitions might differ by, had there been any."""


class Verdict(Enum):
    """Of ours against theirs."""

    BETTER = "better"
    SAME = "no difference"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``ours`` against ``theirs`` in one figure; both are of one setting."""

    figure: str
    ours: Group
    theirs: Group
    verdict: Verdict

    @property
    def equal(self) -> bool:
        """Whether both have as many sessions."""
        return self.ours.sessions == self.theirs.sessions

    @property
    def values(self) -> tuple[float, float]:
        return of_group(self.ours)[self.figure].value, of_group(self.theirs)[self.figure].value

    @property
    def times(self) -> float:
        """How many times the smaller figure is in the larger one; infinite where it is 0."""
        small, large = sorted(self.values)
        return large / small if small else float("inf")

    @property
    def repeated(self) -> bool:
        return min(len(self.ours.runs), len(self.theirs.runs)) > 1


def compare(figure: str, ours: Group, theirs: Group) -> Comparison | None:
    """None where one of them lacks the figure, or they cannot be compared in it."""
    mine, other = of_group(ours).get(figure), of_group(theirs).get(figure)
    if mine is None or other is None or ours.runs[0].terms != theirs.runs[0].terms:
        return None
    verdict = _verdict(figure, mine, other)
    if figure.endswith("_ms") or figure == "per_second":
        more = _errors(ours) - _errors(theirs)
        if (more > ERRORS and verdict is not Verdict.WORSE) or (more < -ERRORS and verdict is not Verdict.BETTER):
            return None
    return Comparison(figure, ours, theirs, verdict)


def _errors(group: Group) -> float:
    share = of_group(group).get("errors_percent")
    return share.value if share else 0.0


def _verdict(figure: str, mine: Figure, other: Figure) -> Verdict:
    larger = max(mine.value, other.value)
    least = SMALLEST if min(len(mine.values), len(other.values)) > 1 else UNREPEATED
    overlap = max(min(mine.values), min(other.values)) <= min(max(mine.values), max(other.values))
    if overlap or abs(mine.value - other.value) <= least * larger:
        return Verdict.SAME
    return Verdict.BETTER if (mine.value < other.value) == FIGURES[figure].lower else Verdict.WORSE


def with_equal_sessions(claim: Comparison, found: Sequence[Group]) -> list[Comparison]:
    """Those of the same ways, in the same setting and figure, that have as many sessions; none for one that has."""
    if claim.equal:
        return []
    beside = [group for group in found if (group.scenario, group.setting) == (claim.ours.scenario, claim.ours.setting)]
    ours = [group for group in beside if way(group) == way(claim.ours)]
    theirs = [group for group in beside if way(group) == way(claim.theirs)]
    pairs = [(mine, other) for mine in ours for other in theirs if mine.sessions == other.sessions]
    compared = [compare(claim.figure, *pair) for pair in pairs]
    return [each for each in compared if each is not None]


def refuse_contradicted(claims: Sequence[Comparison], found: Sequence[Group]) -> None:
    """Raises :class:`LabError` where a claim is contradicted by what is not among those published together with it."""
    said = {(each.figure, each.ours.setting, each.ours.arm, each.theirs.arm) for each in claims}
    for claim in claims:
        for other in with_equal_sessions(claim, found):
            if (
                other.verdict is claim.verdict
                or (other.figure, other.ours.setting, other.ours.arm, other.theirs.arm) in said
            ):
                continue
            raise LabError(
                f"{claim.ours.scenario}, {claim.ours.setting}: that {claim.ours.arm} against {claim.theirs.arm} is "
                f"{claim.verdict.value} in {claim.figure} cannot be published by itself: their sessions are "
                f"{claim.ours.sessions} and {claim.theirs.sessions}, and with {other.ours.sessions} each, "
                f"{other.ours.arm} against {other.theirs.arm} is {other.verdict.value}; say both"
            )
