"""Makes the report: results/wan/index.html, results/summary.json, and the report's part of results/README.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netem.errors import LabError
from netem.report.chapters import chapters
from netem.report.data import groups, read
from netem.report.figures import of_group
from netem.report.markdown import with_report
from netem.report.page import page
from netem.scenario import Scenario

if TYPE_CHECKING:
    from netem.report.data import Group

__all__ = ["make", "summary"]


def make(results: Path) -> list[Path]:
    """Writes the report of what is under ``results`` -> the files. Raises :class:`LabError` before it writes any."""
    found = groups(read(results / "wan"))
    if not found:
        raise LabError(f"nothing is stored in {results / 'wan'}: `python -m netem run NAME` comes first")
    said, readme = chapters(found), results / "README.md"
    written = {
        results / "wan" / "index.html": page(said, Scenario.names()),
        results / "summary.json": json.dumps(summary(found), indent=1) + "\n",
        readme: with_report(readme.read_text() if readme.exists() else "# Results\n", said),
    }
    for path, text in written.items():
        path.write_text(text)
    return list(written)


def summary(found: Sequence[Group]) -> dict[str, float]:
    """All figures, by ``scenario.setting.arm.figure``, sorted."""
    flat = {
        f"{group.scenario}.{group.setting}.{group.arm}.{name}": figure.value
        for group in found
        for name, figure in of_group(group).items()
    }
    return {key: flat[key] for key in sorted(flat)}
