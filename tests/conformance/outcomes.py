"""What pytest's JUnit report says of each test, parameters put together under the name of their test."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

__all__ = ["Outcome", "read_report"]

_WORST_FIRST = ("failed", "skipped", "passed")
_LONGEST = 200
"""Characters of a failure's message that are kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``result`` is passed, failed or skipped; ``message`` the first line of why."""

    result: str
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.result == "passed"


def read_report(xml: str) -> dict[str, Outcome]:
    """Test -> the worst outcome of its parameters, by name. A report that pytest has just written is trusted."""
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.fromstring(xml).iter("testcase"):
        name = _name(case)
        outcome = _outcome(case)
        before = outcomes.get(name, outcome)
        outcomes[name] = min(before, outcome, key=lambda each: _WORST_FIRST.index(each.result))
    return dict(sorted(outcomes.items()))


def _name(case: ElementTree.Element) -> str:
    module = case.get("classname", "").rpartition(".")[2]
    return f"{module}.py::{case.get('name', '').partition('[')[0]}"


def _outcome(case: ElementTree.Element) -> Outcome:
    for tag, result in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            message = found.get("message", "").strip().partition("\n")[0]
            return Outcome(result, message[:_LONGEST])
    return Outcome("passed")
