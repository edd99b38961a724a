"""The report as one HTML page that needs nothing beside it: no scripts, no network, plots inside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup, escape

from netem.report.compare import Comparison, Verdict
from netem.report.sentences import Fragment, sentence
from netem.report.short import GROUPS, NOT_MEASURED, grouped, in_short, reservations
from netem.report.style import COLOURS
from netem.report.words import KINDS

if TYPE_CHECKING:
    from netem.report.chapters import Chapter

__all__ = ["page"]

_SIGNS = {Verdict.BETTER: "+", Verdict.SAME: "=", Verdict.WORSE: "−"}


def page(chapters: Sequence[Chapter], scenarios: Sequence[str]) -> str:
    """``scenarios`` are those that there are, whether or not something is stored of them."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(linked=_linked, chip=_chip, verdict=lambda each: each.verdict.name.lower())
    template = environment.get_template("page.html.j2")
    text = template.render(
        chapters=chapters,
        short=in_short(chapters),
        groups=dict(GROUPS),
        grouped=grouped,
        sentence=sentence,
        colours=COLOURS,
        kinds=KINDS,
        kinds_used=sorted({row.kind for each in chapters for part in each.parts for row in part.rows}, key=_kind),
        not_measured=NOT_MEASURED,
        reservations=list(reservations(chapters, scenarios)),
        anchor=_anchor,
    )
    return re.sub(r"\n\s*\n", "\n", text) + "\n"


def _kind(kind: str) -> int:
    return list(KINDS).index(kind) if kind in KINDS else len(KINDS)


def _anchor(comparison: Comparison) -> str:
    group = comparison.ours
    return f"{group.scenario}.{group.setting}.{group.arm}"


def _linked(fragments: Sequence[Fragment]) -> Markup:
    """A sentence whose figures lead to their rows, which lead to the files."""
    said = []
    for each in fragments:
        if isinstance(each, str):
            said.append(escape(each))
        else:
            row = f"{each.group.scenario}.{each.group.setting}.{each.group.arm}"
            said.append(Markup('<a href="#{}">{}</a>').format(row, each.text))
    return Markup("").join(said)


def _chip(comparison: Comparison) -> str:
    """What a setting's verdict is, as short as can be: a sign, and a ratio where there is a difference."""
    small, large = sorted(comparison.values)
    if comparison.verdict is Verdict.SAME:
        return _SIGNS[comparison.verdict]
    if not small:
        return _SIGNS[comparison.verdict]
    ratio = large / small
    words = f"{(ratio - 1) * 100:.0f}\u00a0%" if ratio < 1.95 else f"{ratio:.1f}×" if ratio < 20 else f"{ratio:,.0f}×"
    return f"{_SIGNS[comparison.verdict]}\u00a0{words}"
