"""``make deaths``: plays all cells of the death matrix, and prints what came of each, as a table.

A cell is what its client was told and which backend the next session got; one that is not as expected says both, and
its traceback follows. Exit code 0 where all are as expected. Arguments are pytest's: ``-k sidecar`` plays one row.
"""

# ruff: noqa: E402 - modules are found only once the path is set
from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Not the folder of this file, which comes first otherwise: our modules are `deaths.` something.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import pytest
from rich.console import Console
from rich.table import Table

from deaths.matrix import EXPECTED, STATES

_UNPLAYED = "not played"


class Spectator:
    """Keeps what the tests of the cells have observed."""

    def __init__(self) -> None:
        self.observed: dict[tuple[str, str], str] = {}
        self.passed: set[tuple[str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cell = _cell(report.nodeid)
        if cell is None or report.when != "call":
            return
        self.observed[cell] = str(dict(report.user_properties).get("observed", "failed"))
        if report.passed:
            self.passed.add(cell)


def _cell(nodeid: str) -> tuple[str, str] | None:
    """The cell of a test "...[who-state]"."""
    who, dash, state = nodeid.rpartition("[")[2].rstrip("]").rpartition("-")
    return (who, state) if dash and who in EXPECTED else None


def table(observed: Mapping[tuple[str, str], str], passed: set[tuple[str, str]]) -> Table:
    """Who dies, downwards; in which state, across."""
    made = Table(title="told, backend", title_justify="left")
    for heading in ("", *STATES):
        made.add_column(heading, no_wrap=True)
    for who, row in EXPECTED.items():
        made.add_row(who, *(_text(observed.get((who, s)), str(row[s]), (who, s) in passed) for s in STATES))
    return made


def _text(observed: str | None, expected: str, is_right: bool) -> str:
    if observed is None:
        return _UNPLAYED
    return observed if is_right else f"[red]{observed}[/] (not {expected})"


def main(arguments: Sequence[str]) -> int:
    """Returns pytest's exit code."""
    spectator = Spectator()
    tests = str(Path(__file__).with_name("test_matrix.py"))
    options = ["-q", "--no-header", "-m", "long or not long", "--timeout", "180", tests]
    code = pytest.main([*options, *arguments], plugins=[spectator])
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table(spectator.observed, spectator.passed))
    console.print(f"{len(spectator.passed)} of {len(spectator.observed)} cells as expected")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
