"""The two lists that are kept here: which tests make up a tier, and what each of them is expected to do.

A test is named as pytest names it, without the folder and without parameters: ``test_admin.py::test_help``. One that
has parameters passes when it does with all of them. Pure: lines in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from conformance.errors import ConformanceError

__all__ = ["Expected", "Verdict", "judge", "read_expected", "read_tier"]

_NAME = re.compile(r"test_\w+\.py::test_\w+")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a test is expected to do; ``reason`` says what is missing where it does not pass."""

    passes: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run differs from what was expected of it, each as names of tests, in order."""

    broken: tuple[str, ...] = field(default=())
    """Expected to pass, and did not: the run fails."""
    mended: tuple[str, ...] = field(default=())
    """Expected to fail, and passed: the list is to be changed."""
    unknown: tuple[str, ...] = field(default=())
    """Not in the list."""


def read_tier(lines: Iterable[str]) -> tuple[str, ...]:
    """The tests of a tier, in the list's order. Raises :class:`ConformanceError` for a line that is no test's name, or
    one that is there twice."""
    names: dict[str, None] = {}
    for number, line in _meaningful(lines):
        if not _NAME.fullmatch(line) or line in names:
            raise ConformanceError(f"line {number}: not the name of a test, or named before: {line}")
        names[line] = None
    return tuple(names)


def read_expected(lines: Iterable[str]) -> dict[str, Expected]:
    """Name -> expectation, from lines ``pass <name>`` and ``fail <name>: <what is missing>``. Raises
    :class:`ConformanceError`, also where a failure has no reason."""
    expected: dict[str, Expected] = {}
    for number, line in _meaningful(lines):
        word, _, rest = line.partition(" ")
        name, _, reason = rest.partition(": ")
        if word not in ("pass", "fail") or not _NAME.fullmatch(name) or name in expected:
            raise ConformanceError(
                f"line {number}: neither `pass <test>` nor `fail <test>: <reason>`, or twice: {line}"
            )
        if (word == "fail") != bool(reason.strip()):
            raise ConformanceError(f"line {number}: what fails needs a reason, what passes has none: {line}")
        expected[name] = Expected(word == "pass", reason.strip())
    return expected


def _meaningful(lines: Iterable[str]) -> Iterable[tuple[int, str]]:
    stripped = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return ((number, line) for number, line in stripped if line and not line.startswith("#"))


def judge(expected: Mapping[str, Expected], passed: Mapping[str, bool]) -> Verdict:
    """Compares what the tests that ran did with what was expected of them."""
    known = [name for name in passed if name in expected]
    return Verdict(
        broken=tuple(name for name in known if expected[name].passes and not passed[name]),
        mended=tuple(name for name in known if passed[name] and not expected[name].passes),
        unknown=tuple(name for name in passed if name not in expected),
    )
