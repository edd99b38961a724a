"""The report's plots, as PNG in memory: readable at 400 pixels, told apart by colour, dash and marker alike."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from netem.report.data import Group

__all__ = ["latency", "seconds"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's, which people with any colour vision tell apart."""
_DASHES = ("-", "--", "-.", ":")
_POINTS = (0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99)


def latency(groups: Sequence[Group], title: str) -> str:
    """Percentiles of all repetitions together, on a scale that has room for the tail."""
    figure, axes = plt.subplots(figsize=(6, 4), dpi=110)
    for number, group in enumerate(groups):
        histogram = group.together()
        values = [histogram.get_value_at_percentile(point) / 1000 for point in _POINTS]
        axes.plot(range(len(_POINTS)), values, label=group.arm, **_style(number))
    axes.set_xticks(range(len(_POINTS)), [f"{point:g}" for point in _POINTS], fontsize=8)
    axes.set_yscale("log")
    axes.set_xlabel("percentile")
    axes.set_ylabel("latency, ms")
    return _finished(figure, axes, title)


def seconds(groups: Sequence[Group], key: str, label: str, title: str) -> str:
    """One figure of each second, of the first repetition."""
    figure, axes = plt.subplots(figsize=(6, 4), dpi=110)
    for number, group in enumerate(groups):
        rows = group.runs[0].data["seconds"]
        axes.plot([row["at"] for row in rows], [row[key] for row in rows], label=group.arm, **_style(number))
    axes.set_xlabel("seconds")
    axes.set_ylabel(label)
    return _finished(figure, axes, title)


def _style(number: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": "os^Dv<>P"[number % 8],
        "markersize": 4,
        "linewidth": 1.6,
    }


def _finished(figure: Any, axes: Any, title: str) -> str:
    axes.set_title(title, fontsize=11)
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.tight_layout()
    out = io.BytesIO()
    # Without the time of its making: the same data give the same file.
    figure.savefig(out, format="png", metadata={"Software": None})
    plt.close(figure)
    return base64.b64encode(out.getvalue()).decode()
