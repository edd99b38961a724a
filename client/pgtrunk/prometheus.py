"""Trunks for Prometheus: a collector that an application registers. Needs ``pgtrunk[prometheus]``.

    from prometheus_client import REGISTRY
    import pgtrunk.prometheus

    REGISTRY.register(pgtrunk.prometheus.collector(manager))

All that `StreamManager.stats` has is there, read when it is asked for: ``pgtrunk_sessions_in_use`` and the like, times
in seconds, sizes in bytes, totals with ``_total``, stages as histograms, each with the label ``trunk``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pgtrunk.exporting import PREFIX, Trunks, Watched, cumulative, described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgtrunk.metric import Family, Kind
    from pgtrunk.stages import Timing

__all__ = ["TrunkCollector", "collector"]

_FAMILIES: Final[dict[Kind, Callable[[str, str], Metric]]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "times": HistogramMetricFamily,
}


class TrunkCollector(Collector):
    """The trunks of a process. `add` more of them here: a registry has each name once."""

    def __init__(self) -> None:
        self._trunks = Trunks()

    def add(self, trunk: Watched, name: str | None = None) -> None:
        """Exports a `StreamManager` or a `BackgroundTrunk` with the label ``trunk=name``, its gateway unless given.

        Before it is opened it shows nothing. Raises `UsageError` for a name that is taken.
        """
        self._trunks.add(trunk, name)

    def remove(self, trunk: Watched) -> None:
        """Exports it no more."""
        self._trunks.remove(trunk)

    def describe(self) -> list[Metric]:
        """The names, without values: what a registry compares with those that it has."""
        return [_metric(family) for family in described()]

    def collect(self) -> Iterator[Metric]:
        """For the registry; from any thread."""
        found: dict[str, Metric] = {}
        for trunk, families in self._trunks.families():
            for family in families:
                metric = found.setdefault(family.name, _metric(family))
                for labels, value in family.samples:
                    _add(metric, {"trunk": trunk, **labels}, value)
        yield from found.values()


def collector(*trunks: Watched) -> TrunkCollector:
    """Returns a collector of these, for a registry; more can be added to it, and with names of one's own."""
    made = TrunkCollector()
    for trunk in trunks:
        made.add(trunk)
    return made


def _metric(family: Family) -> Metric:
    name = "_".join(filter(None, (PREFIX, family.name, family.unit)))
    return _FAMILIES[family.kind](name, family.help)


def _add(metric: Metric, labels: Mapping[str, str], value: float | Timing) -> None:
    if isinstance(value, (int, float)):
        metric.add_sample(metric.name + ("_total" if metric.type == "counter" else ""), dict(labels), value)
        return
    for bound, count in cumulative(value):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": f"{bound:.9g}"}, count)
    metric.add_sample(f"{metric.name}_bucket", {**labels, "le": "+Inf"}, value.count)
    metric.add_sample(f"{metric.name}_count", dict(labels), value.count)
    metric.add_sample(f"{metric.name}_sum", dict(labels), value.total)
