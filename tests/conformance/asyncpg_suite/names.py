"""What is kept of the suite's tests: what each did in a run, and which are known to differ behind a gateway, and why.

A test is named as pytest names it, from the suite's folder: ``test_pool.py::TestPool::test_pool_01``. Pure: lines in,
values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from conformance.errors import ConformanceError
from conformance.lists import Verdict

__all__ = ["CARRIED", "Difference", "Outcome", "Verdict", "judge", "read_differences", "read_record"]

CARRIED = ("session", "transaction")
"""The pool modes in which the tests are carried over QUIC."""

_LINE = re.compile(
    r"(?P<modes>session|transaction|both) (?P<name>test_\w+\.py(?:::\w+)+): (?P<row>[^;]+)(?:; (?P<words>.+))?"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a test that passes against Postgres does not pass here: the row of POOLS.md that says so, and more words."""

    row: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``result`` is passed, failed or skipped; ``sessions`` of the test were carried."""

    result: str
    message: str = ""
    sessions: int = 0

    @property
    def passed(self) -> bool:
        return self.result == "passed"


def read_differences(lines: Iterable[str]) -> dict[str, dict[str, Difference]]:
    """Pool mode -> test -> why, from lines ``<session, transaction or both> <test>: <row>; <more words>``, the latter
    if there are any. Raises :class:`ConformanceError`, also for a test that is named twice."""
    named: dict[str, dict[str, Difference]] = {mode: {} for mode in CARRIED}
    for number, line in enumerate((line.strip() for line in lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        modes = () if match is None else CARRIED if match["modes"] == "both" else (match["modes"],)
        if match is None or any(match["name"] in named[mode] for mode in modes):
            raise ConformanceError(f"line {number}: not `<mode> <test>: <row of POOLS.md>`, or twice: {line}")
        for mode in modes:
            named[mode][match["name"]] = Difference(match["row"].strip(), match["words"] or "")
    return named


def read_record(text: str) -> dict[str, Outcome]:
    """Test -> what it did, by name, from the plugin's lines. Raises :class:`ConformanceError` for a file of tests that
    could not be read, for then nobody knows what is in it."""
    outcomes: dict[str, Outcome] = {}
    for line in text.splitlines():
        entry = json.loads(line)
        name = entry.pop("test")
        if "::" not in name:
            raise ConformanceError(f"{name} could not be collected: {entry['message']}")
        outcomes[name] = Outcome(**entry)
    return dict(sorted(outcomes.items()))


def judge(direct: Mapping[str, Outcome], carried: Mapping[str, Outcome], named: Mapping[str, Difference]) -> Verdict:
    """Compares a run behind the gateway with the one against Postgres, and both with the list. What does not pass
    directly says nothing, but has no place in the list."""
    passing = [name for name, outcome in direct.items() if outcome.passed]
    passed = [name for name in passing if name in carried and carried[name].passed]
    return Verdict(
        broken=tuple(name for name in passing if name not in passed and name not in named),
        mended=tuple(name for name in passed if name in named),
        unknown=tuple(name for name in named if name not in passing),
    )
