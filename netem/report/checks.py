"""Thresholds: which repetitions were within what users would put up with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netem.report.figures import of_run
from netem.report.words import number

if TYPE_CHECKING:
    from netem.report.data import Group, Stored

__all__ = ["Check", "checks"]


@dataclass(frozen=True, slots=True)
class Check:
    """``passed`` of ``runs`` were below the limit; none is counted that lacks the figure."""

    head: str
    passed: int
    runs: int

    @property
    def words(self) -> str:
        """``pass`` where all of them passed; empty where there is nothing to judge by."""
        if not self.runs:
            return ""
        if self.passed == self.runs:
            return "pass"
        return "FAIL" if not self.passed else f"FAIL {self.runs - self.passed} of {self.runs}"


def checks(group: Group) -> list[Check]:
    """One for each threshold that is set."""
    judged: dict[str, list[bool]] = {}
    for run in group.runs:
        for head, passed in _of_run(run):
            judged.setdefault(head, []).extend([] if passed is None else [passed])
    return [Check(head, sum(passed), len(passed)) for head, passed in judged.items()]


def _of_run(run: Stored) -> Iterator[tuple[str, bool | None]]:
    limits, figures = run.part("plan", "thresholds"), of_run(run)
    for key, name in (("p95_ms", "p95"), ("p99_ms", "p99")):
        if limit := limits.get(key):
            value = figures.get(key)
            # Where nothing came, no latency is known, and yet nobody would have put up with it.
            passed = value < limit if value is not None else (False if figures.get("done") == 0 else None)
            yield f"{name} < {number(limit / 1000)} s", passed
    if limit := limits.get("errors"):
        share = figures.get("errors_percent")
        yield f"errors < {limit * 100:g} %", None if share is None else share < limit * 100
