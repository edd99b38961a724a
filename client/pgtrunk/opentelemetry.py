"""Trunks for OpenTelemetry: observable instruments on a meter of the application's. Needs ``pgtrunk[opentelemetry]``.

    from opentelemetry import metrics
    import pgtrunk.opentelemetry

    pgtrunk.opentelemetry.instrument(metrics.get_meter("shop"), manager)

All that `StreamManager.stats` has is there, read when it is asked for: ``pgtrunk.sessions_in_use`` and the like, each
with the attribute ``trunk``. OpenTelemetry has no observable histograms, so a stage is the number of its times
(``pgtrunk.stage.count``), their sum (``pgtrunk.stage.time``), and percentiles of the last one to two minutes
(``pgtrunk.stage.quantile``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Observation

from pgtrunk.exporting import PREFIX, Trunks, Watched, described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import CallbackOptions, Meter

    from pgtrunk.metric import Family, Sample, Unit

__all__ = ["TrunkInstruments", "instrument"]

UNITS: Final[dict[Unit, str]] = {"": "1", "seconds": "s", "bytes": "By"}
"""In UCUM, as OpenTelemetry has them."""

QUANTILES: Final = (0.5, 0.9, 0.99)


class TrunkInstruments:
    """The trunks of one meter. `add` more of them here: a meter has each instrument once."""

    def __init__(self, meter: Meter) -> None:
        self._trunks = Trunks()
        for family in described():
            self._make(meter, family)

    def add(self, trunk: Watched, name: str | None = None) -> None:
        """Exports a `StreamManager` or a `BackgroundTrunk` with the attribute ``trunk=name``, its gateway unless given.

        Before it is opened it shows nothing. Raises `UsageError` for a name that is taken.
        """
        self._trunks.add(trunk, name)

    def remove(self, trunk: Watched) -> None:
        """Exports it no more."""
        self._trunks.remove(trunk)

    def _make(self, meter: Meter, family: Family) -> None:
        name, unit, text = f"{PREFIX}.{family.name}", UNITS[family.unit], family.help
        if family.kind == "gauge":
            meter.create_observable_gauge(name, [self._observe(family.name, _value)], unit, text)
        elif family.kind == "counter":
            meter.create_observable_counter(name, [self._observe(family.name, _value)], unit, text)
        else:
            meter.create_observable_counter(f"{name}.count", [self._observe(family.name, _count)], "1", text)
            meter.create_observable_counter(f"{name}.time", [self._observe(family.name, _time)], unit, text)
            meter.create_observable_gauge(f"{name}.quantile", [self._observe(family.name, self._quantiles)], unit, text)

    def _observe(
        self, name: str, read: Callable[[str, Family, Sample], Iterator[Observation]]
    ) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for trunk, families in self._trunks.families():
                for family in families:
                    if family.name == name:
                        for sample in family.samples:
                            yield from read(trunk, family, sample)

        return observe

    def _quantiles(self, trunk: str, family: Family, sample: Sample) -> Iterator[Observation]:
        timing = self._trunks.recent(trunk, family, sample)
        if timing.count:
            for share in QUANTILES:
                attributes = {"trunk": trunk, **sample.labels, "quantile": f"{share:g}"}
                yield Observation(timing.quantile(share), attributes)


def instrument(meter: Meter, *trunks: Watched) -> TrunkInstruments:
    """Makes the instruments on a meter, for these; more can be added to what is returned, and with names."""
    made = TrunkInstruments(meter)
    for trunk in trunks:
        made.add(trunk)
    return made


def _value(trunk: str, _: Family, sample: Sample) -> Iterator[Observation]:
    yield Observation(sample.value, {"trunk": trunk, **sample.labels})


def _count(trunk: str, _: Family, sample: Sample) -> Iterator[Observation]:
    yield Observation(sample.value.count, {"trunk": trunk, **sample.labels})


def _time(trunk: str, _: Family, sample: Sample) -> Iterator[Observation]:
    yield Observation(sample.value.total, {"trunk": trunk, **sample.labels})
