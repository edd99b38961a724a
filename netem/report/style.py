"""How plots look: a colour for each kind of arm, a dash for each of its arms, labels beside lines, SVG as text.

Colours are names that the page gives values, for light and dark; they are of Okabe and Ito's set, which people with
any colour vision tell apart. Plots are as wide as a phone, so that letters there are as large as they are here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from netem.report.words import KINDS, arm_label, number

if TYPE_CHECKING:
    from netem.report.data import Group

__all__ = ["COLOURS", "Canvas", "Looks", "order"]

COLOURS: Final = {
    "quic": ("#0072b2", "#58b4e8"),
    "sidecar": ("#00866a", "#2fc79d"),
    "tcp": ("#a8467f", "#dd8fbb"),
    "tls": ("#a8467e", "#dd8fba"),
    "pgbouncer": ("#c94f00", "#f28c4b"),
    "pgbouncer-tls": ("#9c6f00", "#e6b23c"),
    "direct": ("#5a5a5a", "#b4b4b4"),
    "mux": ("#7a6a00", "#d8cd4a"),
    "ink": ("#1f2328", "#e6e8eb"),
    "muted": ("#656d76", "#9aa4af"),
    "grid": ("#dfe3e8", "#343a42"),
}
"""On light and on dark ground; the page knows them as variables of these names."""
_DASHES: Final = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2), (3, 1), (9, 3))
_MARKERS: Final = "osD^vP"
_LABEL: Final = 1.06
"""Where labels begin, as a share of the width of what is drawn."""
_LETTER: Final = 5.4
"""Points that a label's letter takes, about."""
_WIDTH, _HEIGHT = 5.2, 3.1
_RC: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": COLOURS["ink"][0],
    "axes.edgecolor": COLOURS["grid"][0],
    "axes.labelcolor": COLOURS["muted"][0],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"][0],
    "grid.linewidth": 0.7,
    "xtick.color": COLOURS["muted"][0],
    "ytick.color": COLOURS["muted"][0],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "path.simplify": True,
}


def order(found: Sequence[Group]) -> list[Group]:
    """The arms as they are always listed: by kind, then by size."""
    kinds = list(KINDS)

    def key(group: Group) -> tuple[int, int, str]:
        kind = group.plan["kind"]
        return (kinds.index(kind) if kind in kinds else len(kinds), group.sessions, group.arm)

    return sorted(found, key=key)


class Looks:
    """The looks of a scenario's arms, the same in all of its plots."""

    def __init__(self, found: Sequence[Group]) -> None:
        self._place: dict[str, int] = {}
        seen: dict[str, list[str]] = {}
        for group in order(found):
            beside = seen.setdefault(group.plan["kind"], [])
            if group.arm not in beside:
                beside.append(group.arm)
            self._place[group.arm] = beside.index(group.arm)

    def colour(self, group: Group) -> str:
        return COLOURS.get(group.plan["kind"], COLOURS["ink"])[0]

    def marker(self, group: Group) -> str:
        return _MARKERS[self._place[group.arm] % len(_MARKERS)]

    def line(self, group: Group) -> dict[str, Any]:
        dashes = _DASHES[self._place[group.arm] % len(_DASHES)]
        return {"color": self.colour(group), "dashes": dashes or (None, None), "linewidth": 1.8}


class Canvas:
    """One plot. ``name`` is unique on the page."""

    def __init__(
        self, name: str, *, left: float = 0.105, right: float = 0.705, height: float = _HEIGHT, below: float = 0.5
    ) -> None:
        self.name = name
        mpl.rcParams.update(_RC)
        self._height = height
        self.figure, self.axes = plt.subplots(figsize=(_WIDTH, height))
        self.figure.subplots_adjust(left=left, right=right, top=1 - 0.11 / height, bottom=below / height)

    def logarithmic(self, axis: Any) -> None:
        """With plain numbers at 1, 2 and 5."""
        (self.axes.set_xscale if axis is self.axes.xaxis else self.axes.set_yscale)("log")
        low, high = axis.get_view_interval()
        wide = high / max(low, 1e-9) > 120
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axis.set_minor_formatter(NullFormatter())

    def labels(self, ends: Mapping[Group, tuple[float, float]], looks: Looks) -> None:
        """The arms' names beside where their lines end, moved apart."""
        self._make_room(max(len(arm_label(group.plan)) for group in ends))
        transform = self.axes.transData
        places = sorted(((transform.transform(end)[1], group.arm, group, end) for group, end in ends.items()))
        heights = _apart([each[0] for each in places], 12.5 * self.figure.dpi / 72, self.axes.bbox)
        for height, (_, _, group, end) in zip(heights, places, strict=True):
            inside = self.axes.transAxes.inverted()
            x, y = inside.transform(transform.transform(end))
            place = inside.transform((0, height))[1]
            colour = looks.colour(group)
            leader = Line2D(
                [x, _LABEL - 0.01],
                [y, place],
                transform=self.axes.transAxes,
                color=colour,
                linewidth=0.5,
                clip_on=False,
            )
            self.axes.add_artist(leader)
            self.axes.text(
                _LABEL,
                place,
                arm_label(group.plan),
                transform=self.axes.transAxes,
                va="center",
                fontsize=9,
                color=colour,
            )

    def _make_room(self, letters: int) -> None:
        """For labels of so many letters at the right side."""
        share, left = letters * _LETTER / (_WIDTH * 72), self.figure.subplotpars.left
        self.figure.subplots_adjust(right=min(0.8, (1 - share + (_LABEL - 1) * left) / _LABEL))

    def discard(self) -> None:
        """There is nothing to draw."""
        plt.close(self.figure)

    def svg(self, words: str) -> str:
        """The plot as a part of a page; the same data give the same text."""
        mpl.rcParams["svg.hashsalt"] = self.name
        out = io.StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(self.figure)
        return _for_page(out.getvalue(), words, _WIDTH * 72, self._height * 72)


def plain(value: float) -> str:
    """A tick's number."""
    return number(value) if value >= 1 else f"{value:g}"


def _apart(wanted: list[float], gap: float, box: Any) -> list[float]:
    """Places near the wanted ones, in their order, at least ``gap`` apart and inside of the box if they fit."""
    placed: list[float] = []
    for each in wanted:
        placed.append(max(each, placed[-1] + gap) if placed else max(each, box.y0))
    if placed and (beyond := placed[-1] - box.y1) > 0:
        placed[-1] -= beyond
        for at in range(len(placed) - 2, -1, -1):
            placed[at] = min(placed[at], placed[at + 1] - gap)
    return placed


def _for_page(svg: str, words: str, width: float, height: float) -> str:
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<svg[^>]*>", "", body, count=1)
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", body)
    for name, (light, _) in COLOURS.items():
        body = body.replace(light, f"var(--{name})")
    body = re.sub(r"\n\s*", "\n", body)
    head = (
        f'<svg role="img" aria-label="{words}" viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg" '
    )
    return head + 'xmlns:xlink="http://www.w3.org/1999/xlink">' + body.strip()
